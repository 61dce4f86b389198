"""What the HTTP door asks of the application beyond lookups and moves, and how it refuses.

All methods raise `Unavailable` while ZooKeeper cannot be read or written.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace, TopicName
from loadmanager.core.rates import Rates
from loadmanager.ports.lookup import LookupRefused


class Missing(LookupRefused):
    """What a request names does not exist."""


class Conflict(LookupRefused):
    """A request contradicts what exists, or what somebody else does at the same moment."""


class Unfit(LookupRefused):
    """A request can never be met as it is."""


class NamespaceService(Protocol):
    """Namespaces as a whole."""

    async def of_tenant(self, tenant: str) -> Sequence[Namespace]:
        """Return all namespaces of a tenant, sorted.

        Raises:
            Missing: there is no such tenant.
        """

    async def policies(self, namespace: Namespace) -> Mapping[str, Any]:
        """Return a namespace's policies in Pulsar's form, with its present bundles.

        Raises:
            NamespaceUnknown: it does not exist.
        """

    async def create(self, boundaries: Boundaries, policies: Mapping[str, Any]) -> None:
        """Create a namespace, and its tenant if need be, with these bundles or not at all.

        Raises:
            NamespaceTaken: it exists, or bundles of a former one of that name are not let go yet.
            Conflict: others changed it again and again meanwhile.
        """

    async def delete(self, namespace: Namespace, *, force: bool) -> None:
        """Delete a namespace, and return when no broker owns a bundle of it, or soon after.

        Raises:
            LeaderElsewhere: another sidecar leads.
            NamespaceUnknown: it does not exist.
            Conflict: brokers report topics of it, or topics are partitioned, and not ``force``.
        """


class TopicLine(Protocol):
    """How a sidecar asks others for the topics of their brokers."""

    async def topics(
        self, sidecar_url: str, namespace: Namespace
    ) -> Mapping[BundleId, Mapping[TopicName, Rates]]:
        """Return what `TopicService.own` of another sidecar returns.

        Raises:
            Unavailable: it gave no answer that can be used.
        """


class PartitionService(Protocol):
    """How many partitions topics have."""

    async def create(self, topic: TopicName, partitions: int) -> None:
        """Make a topic a partitioned one.

        Raises:
            NamespaceUnknown: its namespace does not exist.
            Conflict: it has partitions already.
        """

    async def delete(self, topic: TopicName) -> None:
        """Forget the partitions of a topic.

        Raises:
            Missing: it has none.
        """

"""What the HTTP door asks of the application beyond lookups and moves, and how it refuses.

All methods raise `Unavailable` while ZooKeeper cannot be read or written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.bundles import Boundaries
from loadmanager.core.cost import CostDocument
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName
from loadmanager.core.rates import Rates
from loadmanager.ports.lookup import LookupRefused

TopicMode = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]


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
        """Delete a namespace, and return when nobody owns a bundle of it, or soon after.

        Raises:
            LeaderElsewhere: another sidecar leads.
            NamespaceUnknown: it does not exist.
            Conflict: brokers report topics of it, or topics are partitioned, and not ``force``.
        """


class AffinityService(Protocol):
    """Anti-affinity groups: namespaces of one group are kept apart."""

    async def group(self, namespace: Namespace) -> str:
        """Return the group of a namespace, "" for none.

        Raises:
            NamespaceUnknown: it does not exist.
        """

    async def put(self, namespace: Namespace, group: str) -> None:
        """Put a namespace into a group, "" into none; raises as `group`."""

    async def members(self, cluster: str, group: str, tenant: str) -> Sequence[Namespace]:
        """Return the namespaces of a group, of one tenant or with "" of all.

        Raises:
            Unfit: ``cluster`` is not this one.
        """


@dataclass(frozen=True, slots=True)
class IsolatedBroker:
    """One policy that is about one registered broker."""

    broker: BrokerId
    policy: str
    is_primary: bool
    namespaces: tuple[str, ...]


class IsolationService(Protocol):
    """Isolation policies of the cluster. All raise `Missing` for another cluster."""

    async def policies(self, cluster: str) -> Mapping[str, Any]:
        """Return all policies by name, in Pulsar's form."""

    async def put(self, cluster: str, name: str, policy: Mapping[str, Any]) -> None:
        """Set a policy, given in Pulsar's form and checked, and move what it does not let stay.

        Its ``unload_scope`` says of which namespaces: ``changed`` (or none) those it was
        not about before or with other primary brokers, ``all_matching`` all, ``none``
        none. What no other broker can take stays.

        Raises:
            LeaderElsewhere: another sidecar leads, and something may have to move.
        """

    async def remove(self, cluster: str, name: str) -> None:
        """Remove a policy.

        Raises:
            Missing: there is none of that name.
        """

    async def brokers(self, cluster: str) -> Sequence[IsolatedBroker]:
        """Return which policies are about each registered broker."""


class DomainService(Protocol):
    """Failure domains of the cluster. All raise `Missing` for another cluster."""

    async def domains(self, cluster: str) -> Mapping[str, Sequence[BrokerId]]:
        """Return the brokers of every domain by its name."""

    async def put(self, cluster: str, name: str, brokers: Sequence[BrokerId]) -> None:
        """Set a domain's brokers.

        Raises:
            Conflict: one of them is in another domain.
        """

    async def remove(self, cluster: str, name: str) -> None:
        """Remove a domain.

        Raises:
            Missing: there is none of that name.
        """


class QuotaService(Protocol):
    """Resource quotas in Pulsar's form. Those of bundles raise as `bundle_in`."""

    async def default(self) -> Mapping[str, Any]:
        """Return the quota of bundles without one of their own."""

    async def put_default(self, quota: Mapping[str, Any]) -> None:
        """Set it."""

    async def of_bundle(self, namespace: Namespace, range_text: str) -> Mapping[str, Any]:
        """Return the quota of a bundle, its own or the default."""

    async def put(self, namespace: Namespace, range_text: str, quota: Mapping[str, Any]) -> None:
        """Set the quota of a bundle."""

    async def reset(self, namespace: Namespace, range_text: str) -> None:
        """Let a bundle have the default quota again."""


class SteeringService(Protocol):
    """How far leaders go by themselves."""

    async def state(self) -> Balancing:
        """Return the mode that stands."""

    async def put(self, mode: BalancingMode, *, by: str, reason: str) -> None:
        """Set the mode, for this and every later leader; one that stands already is kept."""


class CostModelService(Protocol):
    """What traffic costs, as leaders are to compute."""

    async def published(self) -> CostDocument:
        """Return what is published.

        Raises:
            Missing: nothing is.
        """

    async def publish(self, document: CostDocument, *, force: bool) -> None:
        """Publish a document, in the place of the one before.

        Raises:
            Conflict: it was learned from another cluster, and not ``force``.
            Unfit: it cannot be stored.
        """

    async def remove(self) -> None:
        """Publish none any more; raises as `published`."""


class BrokerService(Protocol):
    """The brokers of the cluster, and the one beside this sidecar."""

    async def registered(self, cluster: str | None) -> Sequence[BrokerId]:
        """Return every registered broker, sorted.

        Raises:
            Missing: ``cluster`` is another one.
        """

    async def owned(self, cluster: str, broker: BrokerId) -> Mapping[BundleId, str]:
        """Return what a broker owns, and why it may: ``shared``, ``primary`` or ``secondary``.

        Raises:
            Missing: ``cluster`` is another one.
            BrokerUnknown: the broker is not registered.
        """

    async def load_report(self) -> Mapping[str, Any]:
        """Return the last load report of this broker, as in ZooKeeper."""


class TopicService(Protocol):
    """Topics, as the brokers have them open."""

    async def own(
        self, namespace: Namespace | None
    ) -> Mapping[BundleId, Mapping[TopicName, Rates]]:
        """Return the topics of this broker's bundles, of one namespace or of all."""

    async def of_namespace(self, namespace: Namespace, mode: TopicMode) -> Sequence[TopicName]:
        """Return the topics of a namespace, those of all brokers, partitions one by one.

        Raises:
            NamespaceUnknown: it does not exist.
            Unavailable: a broker with bundles of it cannot be asked.
        """

    async def positions(
        self, namespace: Namespace, range_text: str, topics: Sequence[TopicName]
    ) -> Mapping[TopicName, int]:
        """Return where topics of a bundle lie; of all its open ones, if none is named.

        Raises as `of_namespace`, and `BundleUnknown`.
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


class DynamicService(Protocol):
    """Settings changed for the whole cluster while it runs."""

    def names(self) -> Sequence[str]:
        """Return every name that can be set."""

    async def values(self) -> Mapping[str, str]:
        """Return what is set now, as texts by name."""

    async def effective(self) -> Mapping[str, str]:
        """Return this sidecar's whole configuration with what is set, secrets hidden."""

    async def put(self, name: str, value: str) -> None:
        """Set a value.

        Raises:
            Unfit: the name cannot be set, or the value is none for it.
        """

    async def remove(self, name: str) -> None:
        """Let every sidecar use its own value again; what is not set is left alone.

        Raises:
            Unfit: the name cannot be set.
        """

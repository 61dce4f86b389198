from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, TopicName
from loadmanager.core.load import BrokerUrls
from loadmanager.core.wire.records import LeaderRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The broker that serves a bundle, with its addresses for clients.

    ``fencing_token`` is the czxid of the ownership lock; it grows with every change
    of owner. ``epoch`` is that of the leader this sidecar follows, 0 for none.
    """

    bundle: BundleId
    broker: BrokerId
    urls: BrokerUrls
    listeners: Mapping[str, BrokerUrls]
    fencing_token: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether this sidecar can answer lookups, with the reasons if it cannot.

    ``troubles`` are other problems, which do not affect readiness.
    """

    ready: bool
    reasons: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()


class LookupRefused(LoadManagerError):
    """A lookup, an assignment or an admin request is refused. Base of the classes below."""


class NamespaceUnknown(LookupRefused):
    pass


class NamespaceTaken(LookupRefused):
    pass


class Unavailable(LookupRefused):
    """The request cannot be answered now, for example because no sidecar leads.

    ``retry_after_s`` is the time after which the client may retry.
    """

    def __init__(self, why: str, retry_after_s: float = 1.0) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class NotLeader(LookupRefused):
    """The sidecar that received an assignment request does not lead."""


class LeaderElsewhere(LookupRefused):
    """Another sidecar leads, at ``sidecar_url``."""

    def __init__(self, sidecar_url: str) -> None:
        super().__init__(f"the leader's sidecar is {sidecar_url}")
        self.sidecar_url = sidecar_url


class Missing(LookupRefused):
    """What is asked about does not exist."""


class Conflict(LookupRefused):
    """The request conflicts with the present state; it may succeed once that changes."""


class Unfit(LookupRefused):
    """The request cannot be carried out; a retry cannot succeed unless something changes."""


class LookupService(Protocol):
    @property
    def cluster_state_version(self) -> int: ...

    @property
    def leader(self) -> LeaderRecord | None: ...

    def readiness(self) -> Readiness:
        """Return whether lookups can be answered from a current cluster state."""

    def owner_if_known(self, topic: TopicName) -> Owner | None:
        """Return the owner from the cluster state alone, without waiting or sending requests."""

    async def find_owner(self, topic: TopicName) -> Owner:
        """Return the owner; have the leader place the bundle if no broker owns it.

        Waits, up to the configured time, for a bundle that is under way. Raises `NamespaceUnknown`:
        the topic's namespace does not exist; `Unavailable`: no broker owns the bundle, and none
        could be made to in time.
        """

    async def bundle_of(self, topic: TopicName) -> BundleId: ...

    async def partitions(self, topic: TopicName) -> int: ...

    async def assign(self, bundle: BundleId) -> BrokerId:
        """Decide, as the leader, the owner of ``bundle``; a bundle under way keeps its plan.

        Raises `NotLeader`: this sidecar does not lead; `NamespaceUnknown`: the bundle is in no
        namespace's boundaries; `Unavailable`: no broker can take it.
        """


AskLeader = Callable[[LeaderRecord, BundleId], Awaitable[BrokerId]]
"""Has the leader assign a bundle, and returns the broker that is to own it.

Raises as `LookupService.assign`; `Unavailable` also if the leader does not answer.
"""

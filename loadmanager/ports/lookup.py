"""What HTTP, and other sidecars, ask of lookups and of the leader."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName
from loadmanager.core.load import BrokerUrls


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The broker that serves a bundle, and what a client needs to reach it.

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
class Assignment:
    """The broker that is to own a bundle, as the leader decided; None if it did not in time.

    ``fencing_token`` is that of the lock under which the broker serves the bundle; None if, as
    far as the leader has read, it does not serve it yet.
    """

    broker: BrokerId | None
    fencing_token: int | None = None


@dataclass(frozen=True, slots=True)
class Redirection:
    """Ask the sidecar at ``sidecar_url`` instead.

    ``authoritative`` says that the leader has decided: the sidecar that is asked then
    answers by itself and never redirects again.
    """

    sidecar_url: str
    authoritative: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderInfo:
    """The elected leader, as its election node names it."""

    broker: BrokerId
    service_url: str
    sidecar_url: str
    instance: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether this sidecar can answer for the cluster; if not, why not.

    ``troubles`` are other problems, which do not affect readiness.
    """

    ready: bool
    reasons: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()


class LookupRefused(LoadManagerError):
    """A lookup or an assignment has no answer. Base of the classes below."""


class NamespaceUnknown(LookupRefused):
    """No such namespace."""


class NamespaceTaken(LookupRefused):
    """A namespace to create exists already."""


class Unavailable(LookupRefused):
    """There is no owner for now: no broker can take the bundle, or no leader to ask.

    ``retry_after_s`` is when asking again makes sense.
    """

    def __init__(self, why: str, retry_after_s: float = 1.0) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class NotLeader(LookupRefused):
    """An assignment was asked of a sidecar that does not lead (any more)."""


class LookupService(Protocol):
    """What HTTP asks of lookups."""

    @property
    def picture_version(self) -> int:
        """Grows with every change that could change the answer to some lookup."""

    @property
    def leader(self) -> LeaderInfo | None:
        """The leader as known here, None while there is none."""

    def readiness(self) -> Readiness:
        """Return whether lookups can be answered from a current picture."""

    def owner_if_known(self, topic: TopicName) -> Owner | None:
        """Return the owner from the picture alone: no waiting, no request to anyone."""

    async def find_owner(self, topic: TopicName) -> Owner:
        """Return the owner; have the leader place the bundle if no broker owns it.

        Waits, up to the configured time, for a bundle that is under way.

        Raises:
            NamespaceUnknown: the topic's namespace does not exist.
            Unavailable: no broker owns the bundle, and none could be made to in time.
        """

    async def find_owner_or_redirect(
        self, topic: TopicName, *, authoritative: bool
    ) -> Owner | Redirection:
        """Return the owner, or the sidecar to ask instead, for clients that follow redirects.

        Raises like `find_owner`; with ``authoritative`` it never returns a redirection.
        """

    async def bundle_of(self, topic: TopicName) -> BundleId:
        """Return the bundle a topic falls in.

        Raises:
            NamespaceUnknown: the topic's namespace does not exist.
        """

    async def partitions(self, topic: TopicName) -> int:
        """Return how many partitions the topic has, 0 if it is not partitioned."""

    async def boundaries(self, namespace: Namespace) -> Boundaries:
        """Return the namespace's bundles.

        Raises:
            NamespaceUnknown: it does not exist.
        """

    async def assign(self, bundle: BundleId, served_within_s: float = 0.0) -> Assignment:
        """Decide, as the leader, the owner of ``bundle``; a bundle under way keeps its plan.

        Returns once the owner serves the bundle, or when ``served_within_s`` have passed. With 0
        it returns as soon as the owner is decided.

        Raises:
            NotLeader: this sidecar does not lead.
            NamespaceUnknown: the bundle is in no namespace's boundaries.
            Unavailable: no broker can take it.
        """


class LeaderLine(Protocol):
    """How a sidecar reaches the leader's sidecar."""

    async def assign(
        self, leader: LeaderInfo, bundle: BundleId, served_within_s: float = 0.0
    ) -> Assignment:
        """Have the leader decide on ``bundle`` and return which broker is to own it.

        With ``served_within_s`` the leader waits up to that long until that broker serves it.

        Raises as `LookupService.assign`; `Unavailable` also if the leader does not answer.
        """

    async def close(self) -> None:
        """Give back connections."""

"""What the application needs from the world, as protocols. Adapters implement them.

Nothing here imports an adapter, and no adapter's library shows through: the
application runs the same on ZooKeeper and on the in-memory coordination, beside a
real broker and beside a fake one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName
from loadmanager.core.load import BrokerUrls, BundleStats, HostUsage

# --- coordination -----------------------------------------------------------------


class CoordinationError(LoadManagerError):
    """An operation on the coordination service failed. Base of the classes below."""


class NodeMissing(CoordinationError):
    """The node, or the parent of a node to create, does not exist."""


class NodeExists(CoordinationError):
    """A node to create exists already."""


class VersionMismatch(CoordinationError):
    """A set, delete or check named a version the node no longer has."""


class NotEmpty(CoordinationError):
    """A node to delete has children."""


class Disconnected(CoordinationError):
    """The connection broke: the operation may or may not have been applied.

    The caller reads back and compares before it tries again.
    """


class SessionLost(CoordinationError):
    """The session is gone, and every ephemeral node of it with it."""


class CommitRejected(CoordinationError):
    """A commit was not applied, none of its operations was. ``cause`` failed at ``index``."""

    def __init__(self, index: int, cause: CoordinationError) -> None:
        super().__init__(f"operation {index}: {cause}")
        self.index = index
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """What the service knows of a node.

    ``czxid`` and ``mzxid`` are the ids of the transactions that created and last
    changed it: unique and growing over the whole service, so the czxid of a lock is
    its fencing token. ``version`` counts the changes since the node's creation, and
    starts at 0 again when the node is recreated.
    ``ephemeral_owner`` is the id of the owning session, 0 for a persistent node.
    """

    version: int
    czxid: int
    mzxid: int
    ephemeral_owner: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node's content as read at one moment."""

    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Create:
    """Create ``path``; its parent must exist. An ephemeral node dies with the session."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace the content of ``path``; ``version`` -1 accepts any."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete ``path``; ``version`` -1 accepts any."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Let the commit fail unless ``path`` has exactly ``version``."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


class Connection(StrEnum):
    """The state of the session as this process can know it.

    In SUSPENDED the session may live or be gone already; only the service knows.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class SessionState:
    """The session at one moment. ``session_id`` is 0 before the first connection.

    A changed ``session_id`` means that every ephemeral node of the former session is
    gone or about to go, even if no LOST was seen in between.
    """

    connection: Connection
    session_id: int
    timeout_s: float


class Watch(Protocol):
    """A standing wish to be told of changes."""

    def close(self) -> None:
        """Stop telling. Calling it twice is fine."""


class Coordination(Protocol):
    """ZooKeeper, or something that behaves like it.

    All methods are called on the event loop and all callbacks run on it. Methods
    raise `Disconnected` or `SessionLost` at once while the session is not CONNECTED:
    a request is never queued to be applied later, when it may be out of date.
    Paths are absolute below the configured chroot.
    """

    @property
    def session(self) -> SessionState:
        """The session as known now."""

    async def start(self) -> None:
        """Begin connecting and return at once; keeps trying for ever.

        Raises nothing while the service is unreachable: `session` says it.
        """

    async def close(self) -> None:
        """End the session so that its ephemeral nodes vanish now, not at expiry."""

    def on_session(self, callback: Callable[[SessionState], None]) -> Watch:
        """Call ``callback`` after each change of the session's state or id."""

    async def get(self, path: str) -> Node | None:
        """Return the node, or None if there is none."""

    async def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the children, sorted; none for a missing node."""

    async def sync(self, path: str) -> None:
        """Return when a read on this session sees all that was applied before the call."""

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Stat:
        """Create a node, and missing parents as persistent empty nodes.

        A reply lost on the way is resolved inside: the method reads back, and counts
        an ephemeral node of this very session with this very content as created.

        Raises:
            NodeExists: somebody else (or an earlier session) holds it.
        """

    async def set(self, path: str, data: bytes, *, version: int = -1) -> Stat:
        """Replace a node's content.

        Raises:
            NodeMissing: there is no such node.
            VersionMismatch: it has another version.
        """

    async def delete(self, path: str, *, version: int = -1) -> None:
        """Delete a node.

        Raises:
            NodeMissing: there is no such node.
            VersionMismatch: it has another version.
            NotEmpty: it has children.
        """

    async def commit(self, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        """Apply all operations or none, and return a stat for each `SetData`, else None.

        All nodes changed by one commit carry the same zxid, so the ``mzxid`` of a node
        set in it is the ``czxid`` of a lock created in it.

        Raises:
            CommitRejected: none was applied; it names the operation that failed.
            Disconnected: the reply was lost; the caller reads back and compares.
        """

    async def ensure(self, path: str) -> None:
        """Create a persistent empty node and its parents unless they exist."""

    def watch(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        """Call ``callback`` with the node now, after each change and after a reconnect.

        Changes that follow one another closely may be told as one: the last state is
        always told, not every state. None: the node does not exist.
        """

    def watch_children(self, path: str, callback: Callable[[tuple[str, ...]], None]) -> Watch:
        """Call ``callback`` with the sorted child names now and after each change.

        The path need not exist (yet): that counts as no children.
        """


# --- the broker beside this sidecar -----------------------------------------------


class BrokerError(LoadManagerError):
    """The broker did not do what it was asked to. Base of the classes below."""


class BrokerUnreachable(BrokerError):
    """No answer, or none in time: the broker may or may not have done it."""


class BrokerRefused(BrokerError):
    """The broker answered that it will not, or answered something that is no answer."""


class StaleAgent(BrokerRefused):
    """A newer agent commands this broker; this one has to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """What a broker answers to a lease renewal.

    ``incarnation`` is drawn anew at each start of the broker process: a changed one
    means that it restarted and serves nothing that it was told to before.
    ``clock_s`` is the broker's own monotonic clock. ``serving`` maps each bundle it
    serves to the fencing token it was loaded with.
    """

    incarnation: str
    clock_s: float
    serving: Mapping[BundleId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStats:
    """What a broker did over its last window, per bundle it serves.

    ``process_id`` is the broker's on the same host, for probes that measure one
    process tree; None when the broker does not tell.
    """

    window_s: float
    bundles: Mapping[BundleId, BundleStats]
    version: str = ""
    process_id: int | None = None


class BrokerControl(Protocol):
    """The broker beside this sidecar, as its agent commands it.

    Every command carries ``agent_epoch``, which grows with each session of the agent
    (it is the czxid of its registration): a broker obeys the highest it has seen.
    All methods raise `BrokerUnreachable`, `BrokerRefused` or `StaleAgent`.
    """

    async def stats(self) -> BrokerStats:
        """Return the traffic of each bundle over the last window."""

    async def renew_lease(self, *, agent_epoch: int, until_s: float | None) -> BrokerState:
        """Let the broker serve until its own clock shows ``until_s``, then stop by itself.

        None asks for the state without extending the lease. A renewal that was under
        way for long cannot extend the lease beyond what was meant, because the time is
        the broker's own.
        """

    async def load(self, bundle: BundleId, *, agent_epoch: int, fencing_token: int) -> None:
        """Begin to serve ``bundle``. Loading what is loaded already with this token is fine."""

    async def unload(self, bundle: BundleId, *, agent_epoch: int) -> None:
        """Stop serving ``bundle``; on return no request of it is being served any more.

        Unloading what is not loaded is fine.
        """

    async def close(self) -> None:
        """Give back connections."""


# --- host, time --------------------------------------------------------------------


class HostProbe(Protocol):
    """Measures what the broker's host, container or process tree uses."""

    def sample(self, *, broker_process_id: int | None = None) -> HostUsage:
        """Return the usage since the last call; rates are None at the first.

        A counter that cannot be read leaves its resource None, is logged once, and
        never raises.
        """


class Clock(Protocol):
    """Time as the application sees it; tests and simulations bring their own."""

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never jumps."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, for people and logs, never for deadlines."""

    async def sleep(self, delay_s: float) -> None:
        """Return after ``delay_s`` on the monotonic clock."""


# --- lookup ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who serves a bundle, and what a client needs to reach it.

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
class Redirection:
    """Ask the sidecar at ``sidecar_url`` instead.

    ``authoritative`` says that the leader has decided: the one who is asked then
    answers by itself and never redirects again.
    """

    sidecar_url: str
    authoritative: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderInfo:
    """The elected leader, as its election node tells."""

    broker: BrokerId
    service_url: str
    sidecar_url: str
    instance: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether this sidecar can answer for the cluster; if not, why not."""

    ready: bool
    reasons: tuple[str, ...] = ()


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
    """What the HTTP door asks of the application."""

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
        """Return the owner; have the leader place the bundle if nobody owns it.

        Waits, up to the configured time, for a bundle that is under way.

        Raises:
            NamespaceUnknown: the topic's namespace does not exist.
            Unavailable: nobody owns the bundle, and nobody could be made to in time.
        """

    async def find_owner_or_redirect(
        self, topic: TopicName, *, authoritative: bool
    ) -> Owner | Redirection:
        """Return the owner, or whom to ask instead, for clients that follow redirects.

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

    async def create_namespace(self, boundaries: Boundaries) -> None:
        """Create a namespace with these bundles.

        Raises:
            NamespaceTaken: it exists.
        """

    async def assign(self, bundle: BundleId) -> BrokerId:
        """Decide, as the leader, who is to own ``bundle``; a bundle under way keeps its plan.

        Raises:
            NotLeader: this sidecar does not lead.
            NamespaceUnknown: the bundle is in no namespace's boundaries.
            Unavailable: no broker can take it.
        """


class LeaderLine(Protocol):
    """How a sidecar reaches the leader's sidecar."""

    async def assign(self, leader: LeaderInfo, bundle: BundleId) -> BrokerId:
        """Have the leader decide on ``bundle`` and return who is to own it.

        Raises as `LookupService.assign`; `Unavailable` also if the leader does not answer.
        """

    async def close(self) -> None:
        """Give back connections."""

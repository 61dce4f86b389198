from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from loadmanager.core.errors import LoadManagerError


class CoordinationError(LoadManagerError):
    """An operation on the coordination service failed. Base of the classes below."""


class NodeMissing(CoordinationError):
    pass


class NodeExists(CoordinationError):
    pass


class VersionMismatch(CoordinationError):
    """A set, delete or check named a version the node no longer has."""


class NotEmpty(CoordinationError):
    pass


class Disconnected(CoordinationError):
    """The connection broke: the operation may or may not have been applied.

    The caller reads back and compares before it tries again.
    """


class SessionLost(CoordinationError):
    """The session is gone, and every ephemeral node of it with it."""


class TooLarge(CoordinationError):
    """A request exceeds what the service takes at once; nothing was sent."""

    def __init__(self, where: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"{where}: {size_bytes} bytes; expected at most {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class CommitRejected(CoordinationError):
    """A commit was not applied, none of its operations was. ``cause`` failed at ``index``."""

    def __init__(self, index: int, cause: CoordinationError) -> None:
        super().__init__(f"operation {index}: {cause}")
        self.index = index
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """The service's metadata of a node.

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
    """Let the commit fail unless ``path`` exists with ``version``; -1 accepts any."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


class Connection(StrEnum):
    """The state of the session as seen by this process.

    In SUSPENDED the session may be alive or expired; only the service can tell.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class SessionState:
    """The session at one moment.

    Before the first connection it is SUSPENDED with ``session_id`` 0, and
    ``timeout_s`` is what was asked for; afterwards it is what the service granted.
    After `Coordination.close` it is LOST for good.
    A changed ``session_id`` means that every ephemeral node of the former session is
    gone or about to go, even if no LOST was seen in between.
    """

    connection: Connection
    session_id: int
    timeout_s: float


class Watch(Protocol):
    def close(self) -> None:
        """End the subscription. Calling it twice is fine."""


class NodeWatch(Watch, Protocol):
    def read(self) -> None:
        """Have the node read and reported, unless it is being read."""


class Coordination(Protocol):
    """ZooKeeper, or something that behaves like it.

    All methods are called on the event loop and all callbacks run on it. Methods
    raise `Disconnected` or `SessionLost` at once while the session is not CONNECTED:
    a request is never queued to be applied later, when it may be out of date.
    Paths are absolute below the configured chroot. What writes raises `TooLarge` for
    more than ``max_request_bytes``, paths and headers included.
    """

    max_request_bytes: int

    @property
    def session(self) -> SessionState: ...

    async def start(self) -> None:
        """Begin connecting and return at once; keeps trying for ever.

        Raises nothing while the service is unreachable: `session` says it.
        """

    async def close(self) -> None:
        """End the session so that its ephemeral nodes vanish now, not at expiry."""

    def on_session(self, callback: Callable[[SessionState], None]) -> Watch:
        """Call ``callback`` after each change of the session's state or id."""

    async def get(self, path: str) -> Node | None: ...

    async def get_from_root(self, path: str) -> Node | None:
        """Return the node at a path of the whole service, whatever the chroot."""

    async def children(self, path: str) -> tuple[str, ...]: ...

    async def sync(self, path: str) -> None:
        """Return when a read on this session sees all that was applied before the call.

        A leader of ZooKeeper answers by itself: while it has lost the others and has not noticed,
        a read may still see an older state. Only a transaction proves that it leads.
        """

    async def heartbeat(self) -> None:
        """Return when a majority of the service has confirmed a transaction that changes nothing.

        A leader that lost the others and has not noticed confirms none, so no other one began
        before the call, and a read on this session sees all that was applied until then. The
        session cannot expire sooner than ``session.timeout_s`` after the last call of which
        the ensemble's leader knows: `loadmanager.core.lease` says which one that is.

        Raises:
            Disconnected: no answer; the session may have expired meanwhile.
            SessionLost: the session is gone.
        """

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, private: bool = False
    ) -> Stat:
        """Create a node, and missing parents as persistent empty nodes.

        A private node can be read and changed with this client's login alone, if it has
        one, whatever holds for other nodes.

        A reply lost on the way is resolved inside: the method waits for the connection,
        at most for the session timeout, reads back, and counts an ephemeral node of this
        very session with this very content as created. So does a call that finds such a
        node: asking twice for the same lock is granted twice. Nothing is sent twice.

        Raises:
            NodeExists: another client (or an earlier session) holds it.
            Disconnected: it was not created; of a persistent one that is not known.
        """

    async def set(self, path: str, data: bytes, *, version: int = -1) -> Stat: ...

    async def delete(self, path: str, *, version: int = -1) -> None:
        """Raises `NodeMissing`, `VersionMismatch` or `NotEmpty`."""

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

    def watch(
        self,
        path: str,
        callback: Callable[[Node | None], None],
        *,
        postpone: Callable[[], bool] | None = None,
    ) -> NodeWatch:
        """Call ``callback`` with the node now, after each change and in each new session.

        Changes that follow one another closely may be reported as one: the last
        state is always reported, not every state, also of those while the connection was broken.
        None: the node does not exist.

        ``postpone`` is called before the first read, after a change and in a new session. Where
        it returns True nothing is read or reported, further changes included, until
        `NodeWatch.read` or a new session in which it returns False.
        """

    def watch_children(self, path: str, callback: Callable[[tuple[str, ...]], None]) -> Watch:
        """Call ``callback`` with the sorted child names now and after each change.

        The path need not exist (yet): that counts as no children.
        """

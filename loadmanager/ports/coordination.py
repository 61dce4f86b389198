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


Trigger = Callable[[], None]
"""Called once, on the event loop, when the result of the read that it was passed to changed.

Triggers of one path compare equal, so that a link keeps only one of them, however often a
watch is closed and opened again.
"""


class ReadKind(StrEnum):
    """The read that a trigger was set by, which decides what calls it."""

    NODE = "node"
    """A node that exists: its next change or deletion."""

    MISSING = "missing"
    """A node that does not exist: its creation."""

    CHILDREN = "children"
    """The children of a node that exists: their next change, or the deletion of the node."""


@dataclass(frozen=True, slots=True)
class ArmedTrigger:
    """A trigger that has not been called since the read that set it."""

    kind: ReadKind
    path: str
    trigger: Trigger


class Link(Protocol):
    """The connection of one session to the service. All paths are complete, chroot included.

    Each request is one round trip, and requests are applied in the order of the calls. Without
    a connection a request fails at once with `Disconnected` or `SessionLost`; it is never sent
    later or twice. Besides the errors that its method names, each may raise
    `CoordinationError` with the answer of the service.
    """

    def open(self, changed: Callable[[SessionState], None]) -> None:
        """Begin connecting, and call ``changed`` on the event loop with each new state."""

    async def close(self) -> None:
        """End the session. No call of ``changed`` follows."""

    async def get(self, path: str, trigger: Trigger | None = None) -> Node:
        """Return the node. Raises `NodeMissing`, and then sets no trigger."""

    async def exists(self, path: str, trigger: Trigger | None = None) -> Stat | None:
        """Return the node's stat, None if missing; its creation calls the trigger, too."""

    async def children(self, path: str, trigger: Trigger | None = None) -> tuple[str, ...]:
        """Return the sorted names. Raises `NodeMissing`, and then sets no trigger."""

    async def rearm(self, triggers: Sequence[ArmedTrigger]) -> None:
        """Set again triggers that were lost with the connection, in a session that lives on.

        Those whose read has another result since the connection was lost are called instead,
        before this returns or soon after it.
        """

    async def sync(self, path: str) -> None: ...

    async def heartbeat(self) -> None:
        """Commit a transaction that changes nothing, ahead of waiting requests."""

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool, private: bool = False
    ) -> Stat:
        """Raises `NodeExists`, or `NodeMissing` for its parent."""

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        """Raises `NodeMissing`, `VersionMismatch`."""

    async def delete(self, path: str, version: int) -> None:
        """Raises `NodeMissing`, `VersionMismatch`, `NotEmpty`."""

    async def commit(self, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        """Apply all or none. Raises `CommitRejected`."""

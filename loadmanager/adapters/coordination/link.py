import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Final, Protocol, cast

from loadmanager.ports.coordination import (
    CommitRejected,
    CoordinationError,
    Disconnected,
    Node,
    NodeExists,
    NodeMissing,
    NotEmpty,
    Operation,
    SessionLost,
    SessionState,
    Stat,
    VersionMismatch,
)

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


Observe = Callable[[str, str, float], None]
"""Called for each request with its kind, its result and its duration in seconds."""

RESULTS: Final[dict[type[CoordinationError], str]] = {
    NodeMissing: "node_missing",
    NodeExists: "node_exists",
    VersionMismatch: "version_mismatch",
    NotEmpty: "not_empty",
    Disconnected: "disconnected",
    SessionLost: "session_lost",
    CommitRejected: "commit_rejected",
}
"""The results of requests besides ``ok`` and ``failed``, by error."""


_REQUESTS: Final = [
    "get",
    "exists",
    "children",
    "rearm",
    "sync",
    "heartbeat",
    "create",
    "set",
    "delete",
    "commit",
]


def counted(link: Link, observe: Observe, clock_s: Callable[[], float] = time.monotonic) -> Link:
    def counting(kind: str) -> Callable[..., Awaitable[Any]]:
        send = getattr(link, kind)

        async def request(*arguments: Any, **named: Any) -> Any:
            asked_at_s = clock_s()
            result = "failed"
            try:
                answer = await send(*arguments, **named)
                result = "ok"
            except CoordinationError as error:
                result = RESULTS.get(type(error), result)
                raise
            finally:
                observe(kind, result, clock_s() - asked_at_s)
            return answer

        return request

    requests = {kind: counting(kind) for kind in _REQUESTS}
    return cast("Link", SimpleNamespace(open=link.open, close=link.close, **requests))

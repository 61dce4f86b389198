"""What an adapter brings of its own: a link that carries requests to the service."""

from collections.abc import Callable, Sequence
from typing import Protocol

from loadmanager.ports.coordination import Node, Operation, SessionState, Stat

Trigger = Callable[[], None]
"""Called on the loop, once, when what was read with it has changed.

Triggers of one path compare equal, so that a link keeps one of them however often a
watch is closed and opened again.
"""


class Link(Protocol):
    """One session's way to the service. All paths are complete, chroot included.

    Each request is one round trip, applied in the order they were made in. A request
    fails with `Disconnected` or `SessionLost` at once while there is no connection,
    and is never sent later or twice. Besides what its method names, each may raise
    `CoordinationError` with what the service answered.
    """

    def open(self, changed: Callable[[SessionState], None]) -> None:
        """Begin connecting, and call ``changed`` on the loop with each new state."""

    async def close(self) -> None:
        """End the session and free what the link holds. No call of ``changed`` follows."""

    async def get(self, path: str, trigger: Trigger | None = None) -> Node:
        """Return the node. Raises `NodeMissing`, and then sets no trigger."""

    async def exists(self, path: str, trigger: Trigger | None = None) -> Stat | None:
        """Return the node's stat; the trigger is also called for a creation."""

    async def children(self, path: str, trigger: Trigger | None = None) -> tuple[str, ...]:
        """Return the sorted names. Raises `NodeMissing`, and then sets no trigger."""

    async def sync(self, path: str) -> None:
        """Bring the server this link talks to up to date."""

    async def heartbeat(self) -> None:
        """Commit a transaction that changes nothing, ahead of waiting requests."""

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool, private: bool = False
    ) -> Stat:
        """Create a node. Raises `NodeExists`, or `NodeMissing` for its parent."""

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        """Replace the content. Raises `NodeMissing`, `VersionMismatch`."""

    async def delete(self, path: str, version: int) -> None:
        """Delete the node. Raises `NodeMissing`, `VersionMismatch`, `NotEmpty`."""

    async def commit(self, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        """Apply all or none. Raises `CommitRejected`."""

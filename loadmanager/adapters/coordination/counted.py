"""A link that tells of each request: what it was, how it ended, how long it took."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from loadmanager.adapters.coordination.link import Link, Trigger
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

Observe = Callable[[str, str, float], None]
"""Told of each request: its kind, its result and its seconds."""

T = TypeVar("T")

RESULTS: Final[dict[type[CoordinationError], str]] = {
    NodeMissing: "node_missing",
    NodeExists: "node_exists",
    VersionMismatch: "version_mismatch",
    NotEmpty: "not_empty",
    Disconnected: "disconnected",
    SessionLost: "session_lost",
    CommitRejected: "commit_rejected",
}
"""How a request may end besides ``ok`` and ``failed``."""


class CountedLink:
    """Passes every request on to another link, and tells ``observe`` of it."""

    def __init__(
        self, link: Link, observe: Observe, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._link = link
        self._observe = observe
        self._clock_s = clock_s

    def open(self, changed: Callable[[SessionState], None]) -> None:
        """Begin connecting."""
        self._link.open(changed)

    async def close(self) -> None:
        """End the session."""
        await self._link.close()

    async def get(self, path: str, trigger: Trigger | None = None) -> Node:
        """Return the node."""
        return await self._told("get", self._link.get(path, trigger))

    async def exists(self, path: str, trigger: Trigger | None = None) -> Stat | None:
        """Return the node's stat."""
        return await self._told("exists", self._link.exists(path, trigger))

    async def children(self, path: str, trigger: Trigger | None = None) -> tuple[str, ...]:
        """Return the sorted names."""
        return await self._told("children", self._link.children(path, trigger))

    async def sync(self, path: str) -> None:
        """Bring the server up to date."""
        await self._told("sync", self._link.sync(path))

    async def heartbeat(self) -> None:
        """Make one round trip."""
        await self._told("heartbeat", self._link.heartbeat())

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool, private: bool = False
    ) -> Stat:
        """Create a node."""
        made = self._link.create(path, data, ephemeral=ephemeral, private=private)
        return await self._told("create", made)

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        """Replace the content."""
        return await self._told("set", self._link.set(path, data, version))

    async def delete(self, path: str, version: int) -> None:
        """Delete the node."""
        await self._told("delete", self._link.delete(path, version))

    async def commit(self, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        """Apply all or none."""
        return await self._told("commit", self._link.commit(operations))

    async def _told(self, kind: str, request: Awaitable[T]) -> T:
        asked_at_s = self._clock_s()
        result = "failed"
        try:
            answer = await request
            result = "ok"
        except CoordinationError as error:
            result = RESULTS.get(type(error), result)
            raise
        finally:
            self._observe(kind, result, self._clock_s() - asked_at_s)
        return answer

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import structlog

from loadmanager.common.context import Context
from loadmanager.common.watching import Subscriptions, readable
from loadmanager.core import znodes
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.errors import MalformedContent
from loadmanager.core.wire.records import decode_balancing
from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    CoordinationError,
    Create,
    Delete,
    Disconnected,
    Node,
    NodeExists,
    NodeMissing,
    NotEmpty,
    Operation,
    SetData,
    VersionMismatch,
    Watch,
)
from loadmanager.ports.lookup import Conflict, Unavailable, Unfit
from loadmanager.ports.session import Coordination

log = structlog.get_logger()

_TRIES: Final = 8
_READ_BACKS: Final = 20
_READ_BACK_S: Final = 0.25
# ZooKeeper accepts 1 MiB per request, including paths.
_MOST_BYTES: Final = 1_000_000

_CONFLICTS: Final = (NodeExists, NodeMissing, VersionMismatch, NotEmpty)

Edit = Callable[[bytes | None], bytes | None]
"""Maps a node's content (None for no node) to its new content (None for no node)."""


class Documents:
    """Nodes of one session; errors become `Unavailable`."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def read(self, path: str) -> bytes | None:
        node = await self.node(path)
        return None if node is None else node.data

    async def node(self, path: str) -> Node | None:
        with as_unavailable(path, "read"):
            return await self._coordination.get(path)

    async def names(self, path: str) -> tuple[str, ...]:
        with as_unavailable(path, "read"):
            return await self._coordination.children(path)

    async def change(self, path: str, edit: Edit) -> None:
        """Replace a node's content by the result of ``edit``, called again after each conflict.

        A lost write is read back. Raises `Conflict`: others changed it each time; `Unfit`: it is
        too large; `Unavailable`: it cannot be read or written now.
        """
        again = False

        async def operations() -> Sequence[Operation]:
            nonlocal again
            node = await self.node(path)
            before = None if node is None else node.data
            with as_unavailable(path, "changed"):
                after = edit(before)
            if after == before:
                return ()
            if again and node is None:  # A commit makes no parents.
                await self.ensure(path.rpartition("/")[0] or "/")
            again = True
            return (_operation(path, node, after),)

        await self.commit(path, operations)

    async def ensure(self, path: str) -> None:
        with as_unavailable(path, "written"):
            await self._coordination.ensure(path)

    async def commit(
        self, what: str, operations: Callable[[], Awaitable[Sequence[Operation]]]
    ) -> None:
        """Apply all operations or none; they are asked for again after each conflict.

        Raises as `change`.
        """
        for _ in range(_TRIES):
            every = await operations()
            size = sum(len(one.data) for one in every if isinstance(one, Create | SetData))
            if size > _MOST_BYTES:
                raise Unfit(f"{what} would have {size} bytes; expected at most {_MOST_BYTES}")
            with as_unavailable(what, "written"):
                try:
                    await self._coordination.commit(every)
                except CommitRejected as rejected:
                    if isinstance(rejected.cause, _CONFLICTS):
                        continue
                    raise rejected.cause from rejected
                except Disconnected:
                    if not await self._was_applied(every):
                        raise
                return
        raise Conflict(f"{what} was changed by others {_TRIES} times meanwhile")

    async def _was_applied(self, operations: Sequence[Operation]) -> bool:
        """Read back a write whose reply was lost, once the connection is back, if it is soon."""
        for _ in range(_READ_BACKS):
            await asyncio.sleep(_READ_BACK_S)
            try:
                await self._coordination.heartbeat()  # What was under way is applied, or never.
                nodes = [await self._coordination.get(one.path) for one in operations]
            except CoordinationError:
                continue
            return all(map(_shows, operations, nodes))
        return False


def _operation(path: str, node: Node | None, after: bytes | None) -> Create | SetData | Delete:
    if node is None:
        return Create(path, after or b"")
    version = node.stat.version
    return Delete(path, version) if after is None else SetData(path, after, version)


def _shows(one: Operation, node: Node | None) -> bool:
    """Return whether a node is as an operation left it; a check has left nothing to see."""
    left = one.data if isinstance(one, Create | SetData) else None
    return isinstance(one, Check) or (node.data if node else None) == left


@contextmanager
def as_unavailable(what: str, done: str) -> Iterator[None]:
    """Turn errors of the service, and malformed content, into `Unavailable`."""
    try:
        yield
    except CoordinationError as error:
        why = str(error) or type(error).__name__
        raise Unavailable(f"{what} cannot be {done}: {why}") from error
    except MalformedContent as error:
        raise Unavailable(f"{error}; nothing was changed") from error


_READ_POLL_S = 1.0


class BalancingModeWatch:
    """The balancing mode as observed by one leader during one term.

    Content that cannot be read leaves the mode unchanged, and pauses a leader that never
    read any other: a mode was intended, and moving bundles can wait.
    ``held`` returns why no bundle may move now in any mode, "" if bundles may move.
    """

    def __init__(self, context: Context, held: Callable[[], str] = lambda: "") -> None:
        self._held = held
        self._coordination = context.coordination
        self._metrics = context.metrics
        self._read: Balancing | None = None
        self._watch: Watch | None = None
        self._changes = Subscriptions()

    @property
    def balancing(self) -> Balancing:
        read = self.wanted
        if read.mode is BalancingMode.ACTIVE and (why := self._held()):
            return replace(read, mode=BalancingMode.OBSERVING, reason=why)
        return read

    @property
    def wanted(self) -> Balancing:
        return self._read or Balancing(mode=BalancingMode.PAUSED)

    def open(self) -> None:
        self._watch = self._coordination.watch(znodes.BALANCING, self._on_node)

    def close(self) -> None:
        if self._watch:
            self._watch.close()
        self._metrics.balancing_changed(None)

    async def read(self) -> None:
        """Wait until the mode has been read, which decisions require."""
        while self._read is None:
            await self._changes.wait(_READ_POLL_S)

    def _on_node(self, node: Node | None) -> None:
        before = self._read
        if node is None:
            self._read = Balancing()
        else:
            self._read = self.wanted
            with readable(znodes.BALANCING, self._metrics, "balancing"):
                self._read = decode_balancing(znodes.BALANCING, node.data)
        if before is None or before.mode is not self._read.mode:
            log.info("balancing.mode.changed", mode=self._read.mode.value)
        self._metrics.balancing_changed(self._read.mode.value)
        self._changes.notify()

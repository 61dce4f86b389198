"""Persistent watches on top of the one-time triggers of a link."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog

from loadmanager.ports.coordination import (
    ArmedTrigger,
    CoordinationError,
    Disconnected,
    Link,
    Node,
    NodeMissing,
    ReadKind,
    SessionLost,
    Trigger,
)

log = structlog.get_logger()

Value = TypeVar("Value")
Read = Callable[[Link, str, Trigger], Awaitable[tuple[ReadKind, Value]]]

REREAD_DELAY_S: Final = 1.0
"""Pause after a read that the service refused, such as for missing permissions."""


async def read_node(link: Link, path: str, trigger: Trigger) -> tuple[ReadKind, Node | None]:
    while True:
        try:
            return ReadKind.NODE, await link.get(path, trigger)
        except NodeMissing:
            if await link.exists(path, trigger) is None:
                return ReadKind.MISSING, None
            # It was created between the two reads: get it now.


async def read_children(
    link: Link, path: str, trigger: Trigger
) -> tuple[ReadKind, tuple[str, ...]]:
    while True:
        try:
            return ReadKind.CHILDREN, await link.children(path, trigger)
        except NodeMissing:
            if await link.exists(path, trigger) is None:
                return ReadKind.MISSING, ()


class _Unreported:
    """The value before the first report, because None is a value."""


class Subscription(Generic[Value]):
    def __init__(
        self,
        callback: Callable[[Value], None],
        first_read: int,
        watched: "WatchedPath[Value]",
        postpone: Callable[[], bool] | None,
    ) -> None:
        self._callback = callback
        self._first_read = first_read
        self._watched = watched
        self.postpone = postpone
        self._reported: Value | type[_Unreported] = _Unreported
        self._closed = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._watched.unsubscribe(self)

    def read(self) -> None:
        if not self._closed:
            self._watched.read()

    def report(self, value: Value, read: int, *, repeat: bool) -> None:
        """Report the value if it is new.

        A read that began before the watch was requested may be older than what its caller has
        read already, so it is not reported.
        """
        if self._closed or read < self._first_read or (self._reported == value and not repeat):
            return
        self._reported = value
        try:
            self._callback(value)
        except Exception as error:  # noqa: BLE001 - as for any callback, the loop reports it; the other watches must be called
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"watch callback {self._callback!r} failed", "exception": error}
            )


class WatchedPath(Generic[Value]):
    """All watches of one kind on one path. They share one read and one trigger."""

    def __init__(
        self,
        link: Link,
        path: str,
        read: Read[Value],
        trigger: Trigger,
        unused: "Callable[[WatchedPath[Value]], None]",
    ) -> None:
        self._link = link
        self._path = path
        self._read = read
        self._trigger = trigger
        self._unused = unused
        self._reads = 0
        self._stale = False
        self._repeat = False
        self._task: asyncio.Task[None] | None = None
        self._armed_by: ReadKind | None = None
        self._postponed = False
        self.subscriptions: list[Subscription[Value]] = []

    def subscribe(
        self,
        callback: Callable[[Value], None],
        postpone: Callable[[], bool] | None = None,
    ) -> Subscription[Value]:
        """Add a watch; its first report is that of the next read to begin."""
        subscription = Subscription(callback, self._reads + 1, self, postpone)
        self.subscriptions.append(subscription)
        self.changed()
        return subscription

    def unsubscribe(self, subscription: Subscription[Value]) -> None:
        self.subscriptions.remove(subscription)
        if not self.subscriptions:
            self._unused(self)

    @property
    def armed(self) -> ArmedTrigger | None:
        """The trigger that stands for the value as read last, None if there is none."""
        if self._armed_by is None:
            return None
        return ArmedTrigger(self._armed_by, self._path, self._trigger)

    @property
    def settled(self) -> bool:
        """Whether no read is needed: a trigger stands, or all watches postpone the read."""
        return self._armed_by is not None or self._postponed

    def disarm(self) -> None:
        """Note that no trigger stands, and that nothing is known any more."""
        self._armed_by, self._postponed = None, False

    def changed(self, *, repeat: bool = False) -> None:
        """Read after a trigger, unless all watches postpone it; see `refresh`.

        A read under way may be older than the change, so another one follows it.
        """
        self._armed_by = None
        wishes = [one.postpone for one in self.subscriptions]
        if self._task is not None or not all(wish is not None and wish() for wish in wishes):
            self.refresh(repeat=repeat)
        else:
            self._postponed = True

    def read(self) -> None:
        """Read and report a postponed change, unless a read is under way."""
        if self._task is None:
            self.refresh(repeat=True)

    def refresh(self, *, repeat: bool = False) -> None:
        """Read again, after a read under way; ``repeat`` reports it even if unchanged."""
        self._repeat = self._repeat or repeat
        self._postponed = False
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._read_until_fresh())
        else:
            self._stale = True

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _read_until_fresh(self) -> None:
        try:
            await self._read_once()
            while self._stale:
                await self._read_once()
        finally:
            self._task = None

    async def _read_once(self) -> None:
        self._stale, self._armed_by = False, None
        self._reads += 1
        read = self._reads
        repeat, self._repeat = self._repeat, False
        try:
            self._armed_by, value = await self._read(self._link, self._path, self._trigger)
        except (Disconnected, SessionLost):
            # The next read follows when the connection is back.
            self._repeat = self._repeat or repeat
        except CoordinationError as error:
            log.warning("coordination.watch.refused", path=self._path, error=str(error))
            self._repeat, self._stale = self._repeat or repeat, True
            await asyncio.sleep(REREAD_DELAY_S)
        else:
            for subscription in tuple(self.subscriptions):
                subscription.report(value, read, repeat=repeat)


@dataclass(frozen=True, slots=True)
class PathTrigger:
    """A trigger that makes the table read a path again. Equal for equal paths of one table."""

    table: "WatchTable"
    kind: str
    path: str

    def __call__(self) -> None:
        self.table.fired(self.kind, self.path)


class WatchTable:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._nodes: dict[str, WatchedPath[Node | None]] = {}
        self._children: dict[str, WatchedPath[tuple[str, ...]]] = {}

    def watch(
        self,
        path: str,
        callback: Callable[[Node | None], None],
        postpone: Callable[[], bool] | None = None,
    ) -> Subscription[Node | None]:
        watched = self._watched(self._nodes, "node", path, read_node)
        return watched.subscribe(callback, postpone)

    def watch_children(
        self, path: str, callback: Callable[[tuple[str, ...]], None]
    ) -> Subscription[tuple[str, ...]]:
        return self._watched(self._children, "children", path, read_children).subscribe(callback)

    def fired(self, kind: str, path: str) -> None:
        paths = self._nodes if kind == "node" else self._children
        watched = paths.get(path)
        if watched is not None:
            watched.changed()

    @property
    def armed(self) -> list[ArmedTrigger]:
        return [armed for watched in self._all() if (armed := watched.armed) is not None]

    async def rearm(self) -> None:
        """Set all triggers again that were lost with a connection of a session that lives on.

        Paths that did not change meanwhile are not read: reading everything after each reconnect
        would be N times N requests in a cluster of N sidecars. Raises `Disconnected`: the
        connection broke again; `SessionLost`: the session ended meanwhile.
        """
        try:
            await self._link.rearm(self.armed)
        except (Disconnected, SessionLost):
            raise
        except CoordinationError as error:
            log.warning("coordination.watches.refused", error=str(error))
            self.disarm()

    def disarm(self) -> None:
        """Note that all triggers are gone for good: those of a former session."""
        for watched in self._all():
            watched.disarm()

    def reread(self) -> None:
        for watched in self._all():
            if not watched.settled:
                watched.changed(repeat=True)

    def close(self) -> None:
        for watched in self._all():
            watched.stop()
        self._nodes.clear()
        self._children.clear()

    def _all(self) -> tuple[WatchedPath[Node | None] | WatchedPath[tuple[str, ...]], ...]:
        return (*self._nodes.values(), *self._children.values())

    def _watched(
        self, paths: dict[str, WatchedPath[Value]], kind: str, path: str, read: Read[Value]
    ) -> WatchedPath[Value]:
        def unused(watched: WatchedPath[Value]) -> None:
            if paths.get(path) is watched:
                watched.stop()
                del paths[path]

        trigger = PathTrigger(self, kind, path)
        return paths.setdefault(path, WatchedPath(self._link, path, read, trigger, unused))

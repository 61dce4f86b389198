import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import structlog

from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.ports.coordination import Node, NodeWatch, Watch
from loadmanager.ports.host import Clock
from loadmanager.ports.session import Coordination
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()

_LOOK_S = 1.0
Value = TypeVar("Value")


@contextmanager
def readable(path: str, metrics: Metrics | None = None, kind: str = "") -> Iterator[None]:
    """Log content that is malformed, count it by its kind, and continue after the block."""
    try:
        yield
    except (InvalidName, MalformedContent) as error:
        log.warning("znode.content.refused", path=path, error=str(error))
        if metrics is not None:
            metrics.malformed(kind)


class Subscriptions:
    """A source of changes, with callbacks and a wait; ``version`` increases with each."""

    def __init__(self) -> None:
        self.version = 0
        self._callbacks: list[Callable[[], None]] = []
        # A dict keeps the order, so that waiting tasks resume in it.
        self._waiting: dict[asyncio.Future[None], None] = {}

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        self._callbacks.remove(callback)

    def notify(self) -> None:
        self.version += 1
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)
        for callback in list(self._callbacks):
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - the other callbacks are called, too
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"{callback!r} failed", "exception": error}
                )

    async def wait(self, timeout_s: float) -> bool:
        """Return True at the next change, False when ``timeout_s`` passed without one."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            # Not `wait_for`: until Python 3.12 it forgets a cancellation that comes
            # together with the change.
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        else:
            return True
        finally:
            self._waiting.pop(future, None)

    async def until(self, done: Callable[[], bool], clock: Clock, within_s: float) -> bool:
        """Return whether ``done`` came true within ``within_s``, looking also once a second."""
        deadline_s = clock.monotonic_s() + within_s
        while not done():
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0:
                return False
            await self.wait(min(left_s, _LOOK_S))
        return True


@dataclass(eq=False)
class WatchedFolder(Generic[Value]):
    """The children of one node, each decoded; those that cannot be are left out.

    ``decode`` turns a child's name and node into a value and may raise `InvalidName` or
    `MalformedContent`: then the child is logged, reported to ``malformed`` and left out
    until it changes. ``changed`` is called with a name, its former and its new value;
    ``completed`` when the folder was found with no child to read, which nothing else reports.
    ``postpone`` is called with a child that came or changed, and with each in a new session, and
    is True to leave it unread for now.
    """

    coordination: Coordination
    path: str
    decode: Callable[[str, Node], Value]
    changed: Callable[[str, Value | None, Value | None], None]
    malformed: Callable[[], None]
    completed: Callable[[], None]
    postpone: Callable[[str], bool] | None = None

    def __post_init__(self) -> None:
        self.names: Collection[str] = ()
        self._postponed: dict[str, None] = {}
        self._watches: dict[str, NodeWatch] = {}
        self._unread: set[str] = set()
        self._listed = False
        self.values: dict[str, Value] = {}
        self._folder_watch: Watch | None = None

    @property
    def complete(self) -> bool:
        return self._listed and not self._unread

    @property
    def postponed(self) -> Collection[str]:
        """The children that came or changed and were not read since, the first of them first."""
        return self._postponed.keys()

    def read(self, name: str) -> None:
        """Read a child that was left unread, unless this is closed."""
        if name in self._postponed and name in self._watches:
            self._watches[name].read()

    def open(self) -> None:
        self._folder_watch = self.coordination.watch_children(self.path, self._children_changed)

    def close(self) -> None:
        """Stop watching; the values are kept."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        if self._folder_watch:
            self._folder_watch.close()

    def _children_changed(self, names: tuple[str, ...]) -> None:
        self.names = present = frozenset(names)
        was_listed, self._listed = self._listed, True
        for name in [name for name in self._watches if name not in present]:
            self._watches.pop(name).close()
            self._unread.discard(name)
            self._postponed.pop(name, None)
            self._replace(name, None)
        for name in names:
            if name not in self._watches:
                self._unread.add(name)
                path = f"{self.path}/{name}"
                self._watches[name] = self.coordination.watch(
                    path,
                    partial(self._child_changed, name),
                    postpone=partial(self._postpones, name) if self.postpone else None,
                )
        if not was_listed and not self._unread:
            self.completed()

    def _postpones(self, name: str) -> bool:
        postpones = self.postpone is not None and self.postpone(name)
        if postpones:
            self._postponed[name] = None
            self._unread.discard(name)
        return postpones

    def _child_changed(self, name: str, node: Node | None) -> None:
        if name not in self._watches:
            return
        self._unread.discard(name)
        self._postponed.pop(name, None)
        self._replace(name, None if node is None else self._decode(name, node))

    def _decode(self, name: str, node: Node) -> Value | None:
        try:
            return self.decode(name, node)
        except (InvalidName, MalformedContent) as error:
            log.warning("znode.content.refused", path=f"{self.path}/{name}", error=str(error))
            self.malformed()
            return None

    def _replace(self, name: str, value: Value | None) -> None:
        before = self.values.get(name)
        if value is None:
            self.values.pop(name, None)
        else:
            self.values[name] = value
        if before is not None or value is not None:
            self.changed(name, before, value)

"""The state of one cluster in ZooKeeper, which all candidates share."""

import json
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from loadmanager.attach.prior_settings import PriorSettings, State, StateUnusable, prior_of, text_of
from loadmanager.core import znodes
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BundleId, Namespace, parse_namespace
from loadmanager.core.move_limits import Begun, MoveBudget
from loadmanager.ports import Coordination, CoordinationError, NodeExists, NodeMissing


@dataclass(frozen=True, slots=True)
class SharedState:
    """The `State` below a chroot."""

    coordination: Coordination

    @property
    def where(self) -> str:
        """The node of the prior settings."""
        return znodes.ATTACH_PRIOR

    @property
    def where_moves(self) -> str:
        """The node of what was moved lately."""
        return znodes.ATTACH_MOVES

    async def read(self) -> PriorSettings | None:
        """Return what is kept, None for nothing.

        Raises:
            StateUnusable: it cannot be read, or is not what this wrote.
        """
        text = await self._text(znodes.ATTACH_PRIOR)
        return None if text is None else prior_of(text, self.where)

    async def write(self, prior: PriorSettings) -> None:
        """Keep settings; raises `StateUnusable`."""
        await self._write(znodes.ATTACH_PRIOR, text_of(prior))

    async def remove(self) -> None:
        """Forget them; raises `StateUnusable`."""
        await self._remove(znodes.ATTACH_PRIOR)

    async def pause(self, why: str) -> None:
        """Have nothing move until `resume`; raises `StateUnusable`."""
        await self._write(znodes.ATTACH_PAUSED, why)

    async def resume(self) -> None:
        """End a pause, if there is one; raises `StateUnusable`."""
        await self._remove(znodes.ATTACH_PAUSED)

    async def paused(self) -> str:
        """Return the reason that `pause` was given, or that it is unknown; "" if not paused."""
        try:
            text = await self._text(znodes.ATTACH_PAUSED)
        except StateUnusable as error:
            return str(error)
        return "" if text is None else text or "paused"

    async def moves(self) -> str | None:
        """Return what `keep_moves` was given last, None for nothing; raises `StateUnusable`."""
        return await self._text(znodes.ATTACH_MOVES)

    async def keep_moves(self, text: str) -> None:
        """Keep what was moved lately; raises `StateUnusable`."""
        await self._write(znodes.ATTACH_MOVES, text)

    async def _text(self, path: str) -> str | None:
        with _usable(path, "read"):
            node = await self.coordination.get(path)
        return None if node is None else node.data.decode("utf-8", errors="replace")

    async def _write(self, path: str, text: str) -> None:
        with _usable(path, "written"):
            try:
                await self.coordination.create(path, text.encode())
            except NodeExists:
                await self.coordination.set(path, text.encode())

    async def _remove(self, path: str) -> None:
        with _usable(path, "removed"):
            try:
                await self.coordination.delete(path)
            except NodeMissing:
                return


@contextmanager
def _usable(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except CoordinationError as error:
        why = str(error) or type(error).__name__
        raise StateUnusable(f"{path}: {why}; expected a node that can be {what}") from None


_FORMAT: Final = 1
_HOUR_MS: Final = 3_600_000
_MOST_COUNT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class StoredBudget:
    """A budget, and the state where it is kept; times there are of the wall clock."""

    budget: MoveBudget
    state: State
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic_s: Callable[[], float] = time.monotonic

    async def resume(self) -> None:
        """Count the moves that were stored.

        Raises:
            StateUnusable: they cannot be read, or are not what this wrote.
        """
        text = await self.state.moves()
        if text is not None:
            self.budget.resume(
                _parsed(text, self.wall_ms(), self.state.where_moves), self.monotonic_s()
            )

    async def store(self, planned: Collection[BundleId] = ()) -> None:
        """Store the moves of the last hour, and ``planned`` ones as if they began now.

        Raises:
            StateUnusable: they cannot be stored.
        """
        now_ms = self.wall_ms()
        begun = [
            [now_ms - round(one.age_s * 1000), one.namespace, one.count]
            for one in self.budget.begun(self.monotonic_s(), planned)
        ]
        await self.state.keep_moves(json.dumps({"format": _FORMAT, "begun": begun}))


def _parsed(text: str, now_ms: int, where: str) -> list[Begun]:
    try:
        return [_begun(*one, now_ms=now_ms) for one in _entries(json.loads(text))]
    except (KeyError, TypeError, ValueError, RecursionError, InvalidName):
        raise StateUnusable(
            f"{where}: expected the moves of the last hour as attach --balance stored them; "
            "remove it, and budgets begin anew"
        ) from None


def _entries(content: Any) -> Any:
    if content["format"] != _FORMAT:
        raise ValueError
    return content["begun"]


def _begun(at_ms: Any, namespace: Any, count: Any, *, now_ms: int) -> Begun:
    """Return one entry; by a clock that is ahead of this one, it began now."""
    if type(at_ms) is not int or type(count) is not int or not 0 < count <= _MOST_COUNT:
        raise ValueError
    name = parse_namespace(namespace) if namespace else Namespace("")
    return Begun(min(max(now_ms - at_ms, 0), _HOUR_MS) / 1000, name, count)

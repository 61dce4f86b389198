"""The budget of moves, stored beside the prior settings, so that the next controller continues it.

Before the moves of a round it is stored as if all of them had begun, and after them as it is. So
a controller that takes over after a crash may count moves that did not begin, but misses none.
"""

import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from loadmanager.attach.prior_settings import State, StateUnusable
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BundleId, Namespace, parse_namespace
from loadmanager.core.move_limits import Begun, MoveBudget

_FORMAT: Final = 1
_HOUR_MS: Final = 3_600_000
_MOST_COUNT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class StoredBudget:
    """A budget, and the state that stores it, with times of the wall clock."""

    budget: MoveBudget
    state: State
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic_s: Callable[[], float] = time.monotonic

    async def resume(self) -> None:
        """Count the stored moves.

        Raises:
            StateUnusable: they cannot be read, or were not written by `store`.
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
            "remove it, and budgets start over"
        ) from None


def _entries(content: Any) -> Any:
    if content["format"] != _FORMAT:
        raise ValueError
    return content["begun"]


def _begun(at_ms: Any, namespace: Any, count: Any, *, now_ms: int) -> Begun:
    """Return one entry; an entry from a clock that is ahead of this one began now."""
    if type(at_ms) is not int or type(count) is not int or not 0 < count <= _MOST_COUNT:
        raise ValueError
    name = parse_namespace(namespace) if namespace else Namespace("")
    return Begun(min(max(now_ms - at_ms, 0), _HOUR_MS) / 1000, name, count)

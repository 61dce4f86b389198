"""The budget of moves, stored beside the prior settings, so that the next controller continues it.

Before the moves of a round it is stored as if all of them had begun, and after them as it is. So
a controller that takes over after a crash may count moves that did not begin, but misses none.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, StrictInt

from loadmanager.attach.state import Part, State, StateUnusable
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BundleId, Namespace, parse_namespace
from loadmanager.core.move_limits import Begun, MoveBudget

_HOUR_MS: Final = 3_600_000


class _Stored(BaseModel):
    """The moves begun in the last hour: time, namespace or "", and number."""

    format: Literal[1]
    begun: list[tuple[StrictInt, str, Annotated[int, Field(strict=True, gt=0, le=1_000_000)]]]


@dataclass(frozen=True, slots=True)
class StoredBudget:
    budget: MoveBudget
    state: State
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic_s: Callable[[], float] = time.monotonic

    async def resume(self) -> None:
        """Count the stored moves; those of a clock that is ahead of this one began now."""
        text = await self.state.text(Part.MOVES)
        if text is None:
            return
        now_ms = self.wall_ms()
        try:
            begun = [
                Begun(
                    min(max(now_ms - at_ms, 0), _HOUR_MS) / 1000,
                    parse_namespace(name) if name else Namespace(""),
                    count,
                )
                for at_ms, name, count in _Stored.model_validate_json(text).begun
            ]
        except (ValueError, InvalidName):
            raise StateUnusable(
                f"{self.state.where(Part.MOVES)}: expected the moves of the last hour as attach "
                "--balance stored them; remove it, and budgets start over"
            ) from None
        self.budget.resume(begun, self.monotonic_s())

    async def store(self, planned: Collection[BundleId] = ()) -> None:
        """Store the moves of the last hour, and ``planned`` ones as if they began now."""
        now_ms = self.wall_ms()
        begun = [
            (now_ms - round(one.age_s * 1000), one.namespace, one.count)
            for one in self.budget.begun(self.monotonic_s(), planned)
        ]
        await self.state.keep(Part.MOVES, _Stored(format=1, begun=begun).model_dump_json())

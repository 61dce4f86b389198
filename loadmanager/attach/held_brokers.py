"""Brokers that take no part in moves for a while, each for a reason of its own.

A broker that joins, leaves or restarts for the first time within an hour has the whole cluster
settle: it may be the first of a rolling restart. If it does so again, only moves to and from it
are held. A target that owned a bundle without serving it is left out until a person clears it, or
for `NOT_SERVED_S`; that is stored, for the next controller.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import StrictInt, TypeAdapter

from loadmanager.attach.state import Part, State, StateUnusable
from loadmanager.core.ids import BrokerId

NOT_SERVED_S: Final = 3600.0
"""Time without moves to or from a target that owned a bundle without serving it."""

FLAPS_WITHIN_S: Final = 3600.0
"""Time within which a broker that joins, leaves or restarts again is held by name."""


@dataclass(slots=True)
class Changes:
    """When each broker joined, left or restarted; times are of one monotonic clock.

    A broker that leaves and joins again has restarted once.
    """

    settle_s: float
    _brokers: frozenset[BrokerId] | None = None
    _times_s: dict[BrokerId, list[float]] = field(default_factory=dict)

    def listed(self, brokers: Collection[BrokerId], now_s: float) -> None:
        former, self._brokers = self._brokers, frozenset(brokers)
        if former is None:
            return
        for broker in former - self._brokers:
            self._note(broker, now_s)
        for broker in self._brokers - former:
            if self._times_s.get(broker):
                self._times_s[broker][-1] = now_s
            else:
                self._note(broker, now_s)

    def restarted(self, broker: BrokerId, now_s: float) -> None:
        self._note(broker, now_s)

    def _note(self, broker: BrokerId, now_s: float) -> None:
        times_s = self._times_s.get(broker, [])
        self._times_s[broker] = [*(one for one in times_s if one > now_s - FLAPS_WITHIN_S), now_s]

    @property
    def last_s(self) -> float:
        """When a broker last changed for the first time within an hour."""
        first = (times_s[0] for times_s in self._times_s.values() if len(times_s) == 1)
        return max(first, default=float("-inf"))

    def lost(self, now_s: float) -> tuple[BrokerId, ...]:
        """Return the brokers that left within the last hour and are not back."""
        return tuple(
            broker
            for broker, times_s in sorted(self._times_s.items())
            if broker not in (self._brokers or ()) and times_s[-1] > now_s - FLAPS_WITHIN_S
        )

    def held(self, now_s: float) -> Mapping[BrokerId, str]:
        """Return why nothing moves to and from each broker that changes again and again.

        The time without moves doubles with each change.
        """
        held: dict[BrokerId, str] = {}
        for broker, times_s in self._times_s.items():
            hold_s = min(self.settle_s * 2.0 ** (len(times_s) - 1), FLAPS_WITHIN_S)
            left_s = times_s[-1] + hold_s - now_s
            if len(times_s) > 1 and left_s > 0:
                held[broker] = (
                    f"it joined, left or restarted {len(times_s)} times within an hour: nothing "
                    f"moves to or from it for {left_s:.0f} s"
                )
        return held


_STORED: Final = TypeAdapter(dict[Literal["targets"], dict[str, tuple[StrictInt, str]]])


@dataclass(slots=True)
class HeldTargets:
    """The targets that owned a bundle without serving it: until when, and why.

    All methods raise `StateUnusable`; what was read or added before is held nevertheless.
    """

    state: State
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    _known: dict[str, tuple[int, str]] = field(default_factory=dict)
    _added: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def held(self) -> Mapping[BrokerId, str]:
        now_ms = self.wall_ms()
        return {
            BrokerId(broker): f"{why}; attach --clear-target {broker} lets it take part again"
            for broker, (until_ms, why) in {**self._known, **self._added}.items()
            if until_ms > now_ms
        }

    def add(self, broker: BrokerId, why: str) -> None:
        self._added[broker] = self.wall_ms() + round(1000 * NOT_SERVED_S), why

    async def refresh(self) -> None:
        """Read what is stored, and store what was added since."""
        text = await self.state.text(Part.TARGETS)
        try:
            self._known = {} if text is None else _STORED.validate_json(text)["targets"]
        except (ValueError, KeyError):
            where = self.state.where(Part.TARGETS)
            raise StateUnusable(
                f"{where}: expected the targets that attach --balance stored; remove it, and all "
                "brokers take part"
            ) from None
        if self._added:
            self._known |= self._added
            await self._store()
            self._added.clear()

    async def clear(self, broker: str) -> bool:
        """Return whether the broker was held."""
        await self.refresh()
        known = self._known.pop(broker, None) is not None
        if known:
            await self._store()
        return known

    async def _store(self) -> None:
        now_ms = self.wall_ms()
        self._known = {name: one for name, one in self._known.items() if one[0] > now_ms}
        await self.state.keep(Part.TARGETS, json.dumps({"targets": self._known}))

"""Detects rolling restarts, as in an upgrade.

Each broker is emptied before its restart, and its bundles fill the one restarted before it. A
bundle moved for balance during that time is moved again within minutes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from types import MappingProxyType
from typing import Final

from loadmanager.core.ids import BrokerId

TOGETHER_S: Final = 600.0
"""Restarts further apart than this are unrelated."""

_LEAST: Final = 2
"""A single restart is not a rolling restart."""

_STEPS: Final = 1.5
"""The next restart is expected within this multiple of the longest interval between two."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Restarts:
    """The restarts of a possible rolling restart: ``back_s`` is when each broker was back.

    ``lives`` has the start time of each present broker; ``gone`` the start time of each recently
    departed broker, and when it was missed.
    """

    lives: Mapping[BrokerId, int] = field(default_factory=lambda: MappingProxyType({}))
    gone: Mapping[BrokerId, tuple[int, float]] = field(default_factory=lambda: MappingProxyType({}))
    back_s: Mapping[BrokerId, float] = field(default_factory=lambda: MappingProxyType({}))

    def after(
        self, now_s: float, names: Sequence[BrokerId], started_at_ms: Sequence[int]
    ) -> "Restarts":
        """Return the state after these brokers were observed.

        A second restart of the same broker resets the state: such a broker is failing, which
        does not imply restarts of the others.
        """
        lives = dict(zip(names, started_at_ms, strict=True))
        missed = {name: (life, now_s) for name, life in self.lives.items() if name not in lives}
        gone = {
            name: life for name, life in self.gone.items() if now_s - life[1] <= TOGETHER_S
        } | missed
        former = {**{name: life for name, (life, _) in gone.items()}, **self.lives}
        back = [name for name, life in lives.items() if former.get(name, life) != life]
        return Restarts(
            lives=lives,
            gone={name: life for name, life in gone.items() if name not in lives},
            back_s=self._with(now_s, back) if back else self.back_s,
        )

    def under_way(self, now_s: float) -> bool:
        """Return whether a rolling restart is under way and some brokers have yet to restart."""
        times = sorted(set(self.back_s.values()))
        if len(times) < _LEAST or self.lives.keys() <= self.back_s.keys():
            return False
        longest = max(later - sooner for sooner, later in pairwise(times))
        return now_s - times[-1] <= _STEPS * longest

    def _with(self, now_s: float, back: Sequence[BrokerId]) -> Mapping[BrokerId, float]:
        last_s = max(self.back_s.values(), default=-inf)
        follows = now_s - last_s <= TOGETHER_S and self.back_s.keys().isdisjoint(back)
        return {**(self.back_s if follows else {}), **dict.fromkeys(back, now_s)}

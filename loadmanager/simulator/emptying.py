"""Which bundles leave draining brokers next: a few at a time, as the live leader does it."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.simulator.world import World

_TRY_AGAIN_S: Final = 2.0
"""A bundle that nobody could take is left alone for so long."""


@dataclass(slots=True, kw_only=True)
class Emptying:
    """Picks what is to leave draining brokers.

    At most ``at_a_time`` bundles of a broker are under way at any moment. Where a step is
    longer than a hand-over takes, one look picks as many as get done within the step.
    """

    world: World
    at_a_time: int
    step_s: float
    _again_s: dict[BundleId, float] = field(default_factory=dict)

    def due(self, draining: Sequence[BrokerId], now_s: float) -> Mapping[BundleId, BrokerId]:
        """Return what is to leave these brokers now, each with the broker it leaves."""
        if not draining:
            self._again_s.clear()
            return {}
        hand_overs = self.world.hand_overs
        found: dict[BundleId, BrokerId] = {}
        leaving = Counter(hand_overs.sources)
        for broker in draining:
            row = self.world.brokers.index(broker)
            held = (self.world.bundles[one] for one in hand_overs.held_by(row).tolist())
            staying = [one for one in held if one not in hand_overs.under_way]
            free = [one for one in staying if self._again_s.get(one, now_s) <= now_s]
            most = max(self.at_a_time - leaving[row], 0) * self._turns()
            found.update(dict.fromkeys(free[:most], broker))
        return found

    def refused(self, bundles: Collection[BundleId], now_s: float) -> None:
        """Leave these alone for a moment: nobody can take them now."""
        self._again_s.update(dict.fromkeys(bundles, now_s + _TRY_AGAIN_S))

    def _turns(self) -> int:
        turn_s = self.world.hand_overs.turn_s
        return max(int(self.step_s / turn_s), 1) if turn_s > 0 else len(self.world.bundles)

"""The bundles that are to leave draining brokers, in a simulated world."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loadmanager.core.draining import Drains
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.simulator.world import World


@dataclass(slots=True, kw_only=True)
class Emptying:
    """Picks what is to leave draining brokers, as the live leader does.

    At most ``at_a_time`` bundles of a broker are under way at any moment. Where a step is
    longer than a hand-over takes, one look picks as many as get done within the step.
    """

    world: World
    at_a_time: int
    step_s: float
    _drains: Drains = field(default_factory=Drains)

    def due(self, draining: Sequence[BrokerId], now_s: float) -> Mapping[BundleId, BrokerId]:
        """Return what is to leave these brokers now, each with the broker it leaves."""
        leaving, turns = Counter(self.world.hand_overs.sources), self._turns()
        rows = {broker: self.world.brokers.index(broker) for broker in draining}
        most = {
            broker: max(self.at_a_time - leaving[row], 0) * turns for broker, row in rows.items()
        }
        return self._drains.due(self._staying(rows), most, now_s)

    def refused(self, bundles: Collection[BundleId], now_s: float) -> None:
        """Leave these alone for a moment: nobody can take them now."""
        self._drains.refused(bundles, now_s)

    def _staying(self, rows: Mapping[BrokerId, int]) -> Iterator[tuple[BundleId, BrokerId]]:
        hand_overs = self.world.hand_overs
        for broker, row in rows.items():
            held = (self.world.bundles[one] for one in hand_overs.held_by(row).tolist())
            yield from ((one, broker) for one in held if one not in hand_overs.under_way)

    def _turns(self) -> int:
        turn_s = self.world.hand_overs.turn_s
        return max(int(self.step_s / turn_s), 1) if turn_s > 0 else len(self.world.bundles)

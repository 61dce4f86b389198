"""Emptying draining brokers: which of their bundles go next, a few at a time.

A draining broker gives everything away and takes nothing. Only a few of its bundles are
under way at any moment, so that clients reconnect in small groups; each leaves when it
has a place to go to, and one that has none stays where it is served.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from loadmanager.common.cluster_state import OwnerView
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.ids import BrokerId, BundleId, belongs_to_a_broker
from loadmanager.leader.task_controller import TaskController

_TRY_AGAIN_S = 2.0


@dataclass(slots=True, eq=False)
class Drain:
    """The bundles that are to leave draining brokers, for one term."""

    context: Context
    owners: OwnerView
    tasks: TaskController
    tuning: RuntimeSettings
    _refused_until_s: dict[BundleId, float] = field(default_factory=dict, init=False)

    def due(self) -> Mapping[BundleId, BrokerId]:
        """Return what is to leave draining brokers now, each with the broker it leaves."""
        brokers = self.context.cluster_state.brokers
        draining = {broker for broker, known in brokers.items() if known.registration.draining}
        if not draining or not self.context.cluster_state.current:
            self._refused_until_s.clear()
            return {}
        most = self.tuning.now.task_bounds.most_per_broker
        left = {broker: most - self.tasks.tasks.under_way(broker) for broker in draining}
        now_s = self.context.clock.monotonic_s()
        found: dict[BundleId, BrokerId] = {}
        for bundle, broker in self._staying(draining):
            if left[broker] > 0 and self._refused_until_s.get(bundle, 0.0) <= now_s:
                found[bundle] = broker
                left[broker] -= 1
        return found

    def refused(self, bundles: Iterable[BundleId]) -> None:
        """Leave these alone for a moment: nothing can take them now."""
        again_s = self.context.clock.monotonic_s() + _TRY_AGAIN_S
        self._refused_until_s.update(dict.fromkeys(bundles, again_s))

    def _staying(self, draining: Collection[BrokerId]) -> Iterator[tuple[BundleId, BrokerId]]:
        """Yield what draining brokers should own as ordered, or own without an order."""
        assigned = self.tasks.assigned
        for bundle, planned in assigned.items():
            if planned in draining and not belongs_to_a_broker(bundle):
                yield bundle, planned
        for bundle, holding in self.owners.owners.items():
            ordered = bundle in assigned or belongs_to_a_broker(bundle)
            if holding.broker in draining and not ordered:
                yield bundle, holding.broker

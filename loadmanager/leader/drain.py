from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from loadmanager.common.cluster_state import OwnerView
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.draining import Drains
from loadmanager.core.ids import BrokerId, BundleId, belongs_to_a_broker
from loadmanager.leader.task_controller import TaskController


@dataclass(slots=True, eq=False)
class Drain:
    context: Context
    owners: OwnerView
    tasks: TaskController
    settings: RuntimeSettings
    _drains: Drains = field(default_factory=Drains, init=False)

    def due(self) -> Mapping[BundleId, BrokerId]:
        state, most = self.context.cluster_state, self.settings.now.task_bounds.most_per_broker
        left = {
            broker: most - self.tasks.tasks.under_way(broker)
            for broker, known in state.brokers.items()
            if known.registration.draining and state.current
        }
        return self._drains.due(self._staying(left), left, self.context.clock.monotonic_s())

    def refused(self, bundles: Iterable[BundleId]) -> None:
        self._drains.refused(bundles, self.context.clock.monotonic_s())

    def _staying(self, draining: Collection[BrokerId]) -> Iterator[tuple[BundleId, BrokerId]]:
        """Yield the bundles that draining brokers should own by order, or own without an order."""
        if not draining:
            return
        assigned = self.tasks.assigned
        for bundle, planned in assigned.items():
            if planned in draining and not belongs_to_a_broker(bundle):
                yield bundle, planned
        for bundle, holding in self.owners.owners.items():
            ordered = bundle in assigned or belongs_to_a_broker(bundle)
            if holding.broker in draining and not ordered:
                yield bundle, holding.broker

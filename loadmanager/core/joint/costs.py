from dataclasses import dataclass, field

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.learning import Learned
from loadmanager.core.projection import CostModel, TrafficShare
from loadmanager.core.scores import FloatArray


@dataclass(frozen=True, slots=True)
class JointCosts:
    """The learned costs for measured bundles; ``fallback`` for all others."""

    learned: Learned
    fallback: CostModel = field(default_factory=TrafficShare)

    def usage(self, view: ClusterView, bundle: BundleId, source: BrokerId | None) -> FloatArray:
        usual = self._usual(view, bundle)
        if usual is None:
            return self.fallback.usage(view, bundle, source)
        if source is None:
            return usual
        speed = self.learned.brokers.of(view.brokers).speed[view.row(source)]
        return np.asarray(np.minimum(usual * speed, view.brokers.usage[view.row(source)]))

    def elsewhere(
        self,
        view: ClusterView,
        bundle: BundleId,
        source: BrokerId | None,
        usage: FloatArray,
        rows: Indices,
    ) -> FloatArray:
        usual = self._usual(view, bundle)
        if usual is None:
            return self.fallback.elsewhere(view, bundle, source, usage, rows)
        return np.asarray(usual * self.learned.brokers.of(view.brokers).speed[rows])

    def _usual(self, view: ClusterView, bundle: BundleId) -> FloatArray | None:
        """Return the usage of a bundle on a broker of speed 1, None if it was never measured."""
        work = view.bundles.work(bundle)
        return None if work is None else np.asarray(self.learned.unit_costs @ work)

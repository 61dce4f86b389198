from dataclasses import dataclass

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BundleId
from loadmanager.core.memory import Memory
from loadmanager.core.placement.contract import Ranking


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPlacement:
    """Choose the target that AvgShedder planned for a bundle, else any candidate.

    Targets are planned by bundle name, for one round, in both modes.

    Pulsar's accident `plan-by-statistics`: until July 2026 the plan was keyed by the
    bundle's statistics. It was lost when they changed, bundles with equal statistics
    shared it, and all unmeasured bundles went to one broker.
    """

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        target = memory.planned.get(bundle)
        planned = None if target is None else view.brokers.index.get(target)
        if planned is not None and planned in candidates:
            return Ranking(np.array([planned], dtype=np.intp), memory)
        return Ranking(candidates, memory)

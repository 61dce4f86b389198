from dataclasses import dataclass
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BundleId
from loadmanager.core.joint.costs import JointCosts
from loadmanager.core.joint.search import POWER
from loadmanager.core.joint.served import fractions
from loadmanager.core.memory import Memory
from loadmanager.core.placement.contract import Ranking
from loadmanager.core.scores import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, FloatArray

_COUNTED: Final = [CPU, BANDWIDTH_IN, BANDWIDTH_OUT]
_QUIET: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPlacement:
    """Prefer the broker whose part of the joint strategy's potential rises least.

    Earlier placements that are not reported yet count with their predicted usage. A bundle that
    was never measured, or any bundle while usage is within its noise, goes to the broker with the
    fewest messages per core. The costs are those that the joint shedder learned.
    """

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        if not len(candidates):
            return Ranking(candidates, memory)
        rise = self._rise(view, candidates, bundle, memory)
        if rise is None:
            rise = _msgs_per_capacity(view, candidates)
        return Ranking(candidates[rise == rise.min()], memory)

    def _rise(
        self, view: ClusterView, rows: Indices, bundle: BundleId, memory: Memory
    ) -> FloatArray | None:
        limit = view.brokers.limit[rows][:, _COUNTED]
        if memory.joint is None or view.bundles.measured_row(bundle) is None:
            return None
        use = fractions(view.brokers.usage[rows][:, _COUNTED], limit)
        if use.max() < _QUIET or not (limit > 0).all():
            return None
        learned = memory.joint.learned
        usual = JointCosts(learned).usage(view, bundle, None)
        cost = JointCosts(learned).elsewhere(view, bundle, None, usual, rows)[:, _COUNTED]
        after = use + cost / limit
        return np.asarray(((after**POWER - use**POWER) * limit / limit.mean(axis=0)).sum(axis=1))


def _msgs_per_capacity(view: ClusterView, rows: Indices) -> FloatArray:
    brokers = view.brokers
    msgs = brokers.long_msgs_per_s[rows] + brokers.preallocated_msgs_per_s[rows]
    cores = brokers.limit[rows, CPU]
    return np.asarray(msgs / cores if (cores > 0).all() else msgs)

"""LeastResourceUsageWithWeight: any broker well below the mean usage.

There are two forms, as in Pulsar: that of the modular load manager keeps its own average usage,
that of the extensible one uses the average in the load data.
"""

from dataclasses import dataclass, field

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices, Mask
from loadmanager.core.ids import BundleId
from loadmanager.core.memory import Memory
from loadmanager.core.placement.contract import Ranking
from loadmanager.core.rates import MSGS_IN, MSGS_OUT
from loadmanager.core.scores import FloatArray, ResourceWeights
from loadmanager.core.settings import Settings, setting


def _difference() -> float:
    return setting(
        "How far below the mean usage a broker must be to be among the best.",
        "fraction",
        "loadBalancerAverageResourceUsageDifferenceThresholdPercentage",
        default=0.10,
        within=(0.0, 1.0),
        pulsar_divisor=100.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastResourceUsageWithWeight(Settings):
    """Prefer any candidate at least ``difference`` below the candidates' mean usage.

    Of brokers at 0.1, 0.3 and 0.8 the mean is 0.4, and the first two are best. If none
    is that low, all candidates are. Usage is an exponential average, updated each round; for a
    broker without bundles or without messages it is the current usage. Between two rounds the
    average includes the current usage already, so that bundles placed since the last round
    count.

    Pulsar's accident `step-per-placement`: there the average is updated at every placement, for
    the candidates of that placement only, so that its memory is not a time but a number of
    placements.
    """

    difference: float = _difference()
    history: float = setting(
        "Weight of the past in a broker's average usage at each round.",
        "fraction",
        "loadBalancerHistoryResourcePercentage",
        default=0.9,
        within=(0.0, 1.0),
    )
    weights: ResourceWeights = field(default_factory=ResourceWeights)
    like_java: bool = False

    def watch(self, view: ClusterView, memory: Memory) -> Memory:
        if self.like_java:
            return memory
        return memory.with_usage(view.brokers.names, self._next(view, memory))

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        del bundle
        if not len(candidates):
            return Ranking(candidates, memory)
        usage = self._next(view, memory)[candidates]
        if self.like_java:  # step-per-placement
            every = view.brokers.names
            names = every if len(candidates) == len(every) else [every[row] for row in candidates]
            memory = memory.with_usage(names, usage)
        best = candidates[well_below(usage, float(usage.mean()), self.difference)]
        return Ranking(best if len(best) else candidates, memory)

    def _next(self, view: ClusterView, memory: Memory) -> FloatArray:
        scores = view.scores(self.weights)
        usage = memory.running_usage(view.brokers.names, scores, self.history)
        return np.where(_idle(view), scores, usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastAverageUsage(Settings):
    """Prefer candidates by the average usage in the load data, as the extensible load manager.

    Candidates without load data are excluded from the mean and from the best; if there is no
    best candidate, any candidate may be chosen, including them.
    """

    difference: float = _difference()

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        del bundle
        usage = view.brokers.load_ema[candidates]
        known = ~np.isnan(usage)
        if not known.any():
            return Ranking(candidates, memory)
        mean = float(usage[known].mean())
        best = candidates[known & well_below(usage, mean, self.difference)]
        return Ranking(best if len(best) else candidates, memory)


def well_below(usage: FloatArray, mean: float, difference: float) -> Mask:
    return usage + difference <= mean


def _idle(view: ClusterView) -> Mask:
    traffic = view.brokers.traffic
    silent = (traffic[:, MSGS_IN] == 0) & (traffic[:, MSGS_OUT] == 0)
    return np.asarray(silent | (view.owned.counts == 0))

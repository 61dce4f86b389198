"""LeastResourceUsageWithWeight: any broker well below the mean usage.

Two forms, as in Pulsar: the modular load manager's keeps a running usage of its own,
the extensible one's reads the average the load data brings along.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from annotated_types import Interval

from loadmanager.core.averages import MSGS_IN, MSGS_OUT
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices, Mask
from loadmanager.core.ids import BundleId
from loadmanager.core.memory import Memory
from loadmanager.core.placement.contract import Ranking
from loadmanager.core.scores import FloatArray, ResourceWeights
from loadmanager.core.settings import Doc, check

Difference = Annotated[
    float,
    Interval(ge=0.0, le=1.0),
    Doc(
        "How far below the mean usage a broker must be to be among the best.",
        "fraction",
        "loadBalancerAverageResourceUsageDifferenceThresholdPercentage",
        pulsar_divisor=100.0,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastResourceUsageWithWeight:
    """Prefer any candidate at least ``difference`` below the candidates' mean usage.

    Of brokers at 0.1, 0.3 and 0.8 the mean is 0.4, and the first two are best. If none
    is that low, all candidates are. Usage is a running one, which takes a step at
    every call for the candidates of the call; a broker without bundles or without any
    message starts afresh.
    """

    difference: Difference = 0.10
    history: Annotated[
        float,
        Interval(ge=0.0, le=1.0),
        Doc(
            "How much of a broker's running usage the past keeps at each placement.",
            "fraction",
            "loadBalancerHistoryResourcePercentage",
        ),
    ] = 0.9
    weights: ResourceWeights = field(default_factory=ResourceWeights)

    def __post_init__(self) -> None:
        """Refuse settings outside their range."""
        check(self)

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        """Return the candidates well below the mean, or all; the running usage takes a step."""
        del bundle
        if not len(candidates):
            return Ranking(candidates, memory)
        every = view.brokers.names
        names = every if len(candidates) == len(every) else [every[row] for row in candidates]
        scores = view.scores(self.weights)[candidates]
        # A broker without a past gives None, which numpy reads as NaN.
        past = np.array(list(map(memory.usage.get, names)), dtype=np.float64)
        others = len(memory.usage) > np.count_nonzero(~np.isnan(past))
        past[_idle(view, candidates)] = np.nan
        mixed = past * self.history + (1.0 - self.history) * scores
        usage = np.where(np.isnan(past), scores, mixed)
        remembered = dict(zip(names, usage.tolist(), strict=True))
        if others:
            remembered = {**memory.usage, **remembered}
        best = candidates[well_below(usage, float(usage.mean()), self.difference)]
        return Ranking(best if len(best) else candidates, replace(memory, usage=remembered))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastAverageUsage:
    """The extensible load manager's form: reads the average that comes with the load data.

    Candidates without load data count neither in the mean nor as best; but if there is
    no best, any candidate may be taken, they included.
    """

    difference: Difference = 0.10

    def __post_init__(self) -> None:
        """Refuse settings outside their range."""
        check(self)

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        """Return the candidates well below the mean, or all."""
        del bundle
        usage = view.brokers.load_ema[candidates]
        known = ~np.isnan(usage)
        if not known.any():
            return Ranking(candidates, memory)
        mean = float(usage[known].mean())
        best = candidates[known & well_below(usage, mean, self.difference)]
        return Ranking(best if len(best) else candidates, memory)


def well_below(usage: FloatArray, mean: float, difference: float) -> Mask:
    """Return which usages are at least ``difference`` below ``mean``."""
    return usage + difference <= mean


def _idle(view: ClusterView, candidates: Indices) -> Mask:
    traffic = view.brokers.traffic[candidates]
    silent = (traffic[:, MSGS_IN] == 0) & (traffic[:, MSGS_OUT] == 0)
    return np.asarray(silent | (view.owned.counts[candidates] == 0))

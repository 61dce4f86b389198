"""LeastLongTermMessageRate: the broker with the fewest messages per second over time."""

from dataclasses import dataclass, field

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BundleId
from loadmanager.core.memory import Memory
from loadmanager.core.placement.contract import Ranking
from loadmanager.core.scores import FloatArray, ResourceWeights
from loadmanager.core.settings import Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLongTermMessageRate(Settings):
    """Prefer the least long-term message rate, bundles under way included.

    A broker above ``overloaded`` scores infinity and is taken only if all are. Bundles
    given to a broker that it has not reported yet count too, so a burst of placements
    spreads: with brokers at 100 and 110 and two bundles of 20, the first goes to the
    one at 100, which then stands at 120, and the second to the other.
    """

    overloaded: float = setting(
        "Above this usage a broker takes no bundle while another is below.",
        "fraction",
        "loadBalancerBrokerOverloadedThresholdPercentage",
        default=0.85,
        within=(0.0, 10.0),
        pulsar_divisor=100.0,
    )
    weights: ResourceWeights = field(default_factory=ResourceWeights)

    def scores(self, view: ClusterView, candidates: Indices) -> FloatArray:
        """Return messages per second of each candidate, infinity where it is overloaded."""
        brokers = view.brokers
        rates = brokers.long_msgs_per_s[candidates] + brokers.preallocated_msgs_per_s[candidates]
        return np.where(view.scores(self.weights)[candidates] > self.overloaded, np.inf, rates)

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        """Return the candidates with the least score."""
        del bundle
        if not len(candidates):
            return Ranking(candidates, memory)
        scores = self.scores(view, candidates)
        return Ranking(candidates[scores == scores.min()], memory)

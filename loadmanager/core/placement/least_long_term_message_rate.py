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
    """Prefer the lowest long-term message rate, including bundles under way.

    A broker above ``overloaded`` has an infinite score, and is chosen only if all have. Placed
    bundles that a broker has not reported yet count as well, so that a burst of placements is
    spread: with brokers at 100 and 110 and two bundles of 20, the first bundle goes to the
    broker at 100, which then has 120, and the second to the other broker.
    """

    overloaded: float = setting(
        "Above this usage a broker takes no bundle if another is below.",
        "fraction",
        "loadBalancerBrokerOverloadedThresholdPercentage",
        default=0.85,
        within=(0.0, 10.0),
        pulsar_divisor=100.0,
    )
    weights: ResourceWeights = field(default_factory=ResourceWeights)

    def scores(self, view: ClusterView, candidates: Indices) -> FloatArray:
        brokers = view.brokers
        rates = brokers.long_msgs_per_s[candidates] + brokers.preallocated_msgs_per_s[candidates]
        return np.where(view.scores(self.weights)[candidates] > self.overloaded, np.inf, rates)

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        del bundle
        if not len(candidates):
            return Ranking(candidates, memory)
        scores = self.scores(view, candidates)
        return Ranking(candidates[scores == scores.min()], memory)

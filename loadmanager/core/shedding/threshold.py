from dataclasses import dataclass, field
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.memory import Memory
from loadmanager.core.plan import Offer, Reason, Refusal
from loadmanager.core.scores import FloatArray, ResourceWeights
from loadmanager.core.settings import Settings, setting
from loadmanager.core.shedding.contract import Shed
from loadmanager.core.shedding.selection import offers_of

_EXTRA: Final = 0.05
"""Pulsar sheds five points more than the excess, so that noise does not bring it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdShedder(Settings):
    """Offer bundles of every broker at least ``threshold`` above the mean usage.

    Usage is an exponential average in which the past has the weight ``history``. A broker with
    usage u offers its largest bundles by throughput until they reach its throughput times
    (u - mean - threshold + 0.05). With three brokers at 0.9, 0.3 and 0.3 the mean is
    0.5; the first is 0.3 over the threshold of 0.1 and offers 35 percent of its
    throughput.

    If ``lower_boundary`` is set and nothing was offered, the most loaded broker also sheds if
    another one is more than ``threshold`` below the mean.

    Pulsar's accident `second-step`: the check of the lower boundary adds the current usage to
    the average a second time in the same round.
    """

    threshold: float = setting(
        "How far above the mean usage a broker sheds. Lower settles closer and moves more.",
        "fraction",
        "loadBalancerBrokerThresholdShedderPercentage",
        default=0.10,
        within=(0.0, 1.0),
        pulsar_divisor=100.0,
    )
    history: float = setting(
        "Weight of the past in a broker's average usage at each round. "
        "Higher reacts later and to less noise.",
        "fraction",
        "loadBalancerHistoryResourcePercentage",
        default=0.9,
        within=(0.0, 1.0),
    )
    min_bytes_per_s: float = setting(
        "A broker that would shed less than this sheds nothing.",
        "bytes/s",
        "loadBalancerBundleUnloadMinThroughputThreshold",
        default=10 * 1048576.0,
        within=(0.0, 1e15),
        pulsar_divisor=1.0 / 1048576.0,
    )
    lower_boundary: bool = setting(
        "Also shed from the most loaded broker if another one is far below the mean.",
        default=False,
        pulsar_key="lowerBoundarySheddingEnabled",
    )
    weights: ResourceWeights = field(default_factory=ResourceWeights)
    like_java: bool = False

    def shed(self, view: ClusterView, memory: Memory) -> Shed:
        names = view.brokers.names
        scores = view.scores(self.weights)
        usage = memory.running_usage(names, scores, self.history)
        mean = _mean(usage)
        if mean == 0.0:
            idle = Refusal("", Reason.CLUSTER_IDLE, f"{len(names)} brokers")
            return Shed((), (idle,), memory.with_usage(names, usage))
        offers, refusals = self._above(view, usage, mean)
        remembered = memory.with_usage(names, usage)
        if self.lower_boundary and not offers:
            if self.like_java:  # second-step
                usage = remembered.running_usage(names, scores, self.history)
                remembered = memory.with_usage(names, usage)
            offers, low_refusals = self._below(view, usage)
            refusals += low_refusals
        return Shed(tuple(offers), tuple(refusals), remembered)

    def _above(
        self, view: ClusterView, usage: FloatArray, mean: float
    ) -> tuple[list[Offer], list[Refusal]]:
        offers: list[Offer] = []
        refusals: list[Refusal] = []
        over = usage >= mean + self.threshold
        need = view.brokers.bytes_per_s * (usage - mean - self.threshold + _EXTRA)
        for row, name in enumerate(view.brokers.names):
            if not over[row]:
                detail = f"{usage[row]:.3f}, mean {mean:.3f}"
                refusals.append(Refusal(name, Reason.WITHIN_THRESHOLD, detail))
                continue
            picked = self._pick(view, row, float(need[row]))
            if isinstance(picked, Refusal):
                refusals.append(picked)
            else:
                offers += picked
        return offers, refusals

    def _below(self, view: ClusterView, usage: FloatArray) -> tuple[list[Offer], list[Refusal]]:
        mean = _mean(usage)
        sheds = (usage > mean - self.threshold) & (view.owned.counts > 1)
        if not sheds.any() or not (usage < mean - self.threshold).any():
            return [], [Refusal("", Reason.WITHIN_THRESHOLD, f"none far below mean {mean:.3f}")]
        row = int(np.argmax(np.where(sheds, usage, -np.inf)))
        need = float(view.brokers.bytes_per_s[row]) * self.threshold * 0.5
        picked = self._pick(view, row, need)
        return ([], [picked]) if isinstance(picked, Refusal) else (picked, [])

    def _pick(self, view: ClusterView, row: int, need: float) -> list[Offer] | Refusal:
        if need < self.min_bytes_per_s:
            name = view.brokers.names[row]
            return Refusal(name, Reason.BELOW_MINIMUM, f"{need:.0f} bytes/s to shed")
        return offers_of(view, row, need)


def _mean(usage: FloatArray) -> float:
    return float(usage.mean()) if len(usage) else 0.0

from collections.abc import Mapping
from math import nan
from types import MappingProxyType
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from loadmanager.core.optimality import Optimality
from loadmanager.core.shadow import Shadow

_MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gap": "Difference of largest usage and proven lower bound, divided by the bound",
        "gap_within_policies": "Difference of largest usage and proven lower bound within "
        "isolation policies and drains, divided by the bound",
        "largest": "Largest CPU or network usage of any broker, as a fraction of its limit",
        "bound": "Proven lower bound of the largest usage over all assignments of bundles",
        "bound_within_policies": "Proven lower bound of the largest usage over all assignments "
        "that isolation policies and drains allow",
        "excess": "How far brokers are above the level of even load, mean over the brokers, "
        "divided by that level",
    }
)
"""The figures of `Optimality`."""


class OptimalityMetrics:
    """Figures of the leader after a round; NaN before the first, or on a follower."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            name: Gauge(f"loadmanager_optimality_{name}", f"{text}; or NaN.", registry=registry)
            for name, text in _MEANINGS.items()
        }
        self.found(None)

    def found(self, optimality: Optimality | None) -> None:
        for name, gauge in self._gauges.items():
            gauge.set(nan if optimality is None else getattr(optimality, name))


class ShadowMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._gap = Gauge(
            "loadmanager_shadow_gap",
            "Distance of the fullest broker from the proven lower bound with a strategy beside the "
            "active one, divided by the bound.",
            ["strategy"],
            registry=registry,
        )
        self._regret = Gauge(
            "loadmanager_shadow_regret",
            "How far that is below the gap of the cluster, mean of the last 60 rounds; negative: "
            "the active strategy is closer to the best.",
            ["strategy"],
            registry=registry,
        )
        self._moves = Counter(
            "loadmanager_shadow_moves",
            "Bundles that a strategy beside the active one would have moved for load.",
            ["strategy"],
            registry=registry,
        )

    def after_round(self, strategy: str, shadow: Shadow) -> None:
        last = shadow.rounds[-1]
        self._gap.labels(strategy).set(last.gap)
        self._regret.labels(strategy).set(shadow.regret)
        self._moves.labels(strategy).inc(last.moves)

    def forget(self, strategy: str) -> None:
        self._gap.remove(strategy)
        self._regret.remove(strategy)


SEED_RESULTS: Final = ("used", "stale", "late", "unreadable", "foreign")


class LearningMetrics:
    """The results of seeds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seeded = Gauge(
            "loadmanager_seeded_bundles",
            "Bundles whose averages this leader took from a seed when it began.",
            registry=registry,
        )
        self._seeds = Counter(
            "loadmanager_seeds",
            "Seeds read by leaders, by result.",
            ["result"],
            registry=registry,
        )
        for result in SEED_RESULTS:
            self._seeds.labels(result)
        self.not_leading()

    def seeded(self, result: str, bundles: int = 0) -> None:
        self._seeds.labels(result).inc()
        self._seeded.set(bundles)

    def not_leading(self) -> None:
        self._seeded.set(0)

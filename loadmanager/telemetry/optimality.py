"""The metrics of how far the cluster is from the best possible."""

from collections.abc import Mapping
from math import nan
from types import MappingProxyType
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from loadmanager.core.optimality import Optimality

_MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gap": "How far the fullest broker is above the proven lower bound, over the bound",
        "gap_within_policies": "How far the fullest broker is above the proven lower bound within "
        "isolation policies and drains, over that bound",
        "largest": "The largest use of CPU or network of any broker, as a fraction of its limit",
        "bound": "What that is at least, wherever the bundles are: a proven lower bound",
        "bound_within_policies": "What it is at least, wherever isolation policies and drains let "
        "the bundles be: a proven lower bound",
        "excess": "How far brokers are above the level at which the load is even, mean over the "
        "brokers, over the level",
    }
)
"""The figures of `Optimality`."""


class OptimalityMetrics:
    """What the leader computed after a round; NaN while it has not, or this sidecar follows."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            name: Gauge(f"loadmanager_optimality_{name}", f"{text}; or NaN.", registry=registry)
            for name, text in _MEANINGS.items()
        }
        self.found(None)

    def found(self, optimality: Optimality | None) -> None:
        """Show what was computed, None for nothing."""
        for name, gauge in self._gauges.items():
            gauge.set(nan if optimality is None else getattr(optimality, name))

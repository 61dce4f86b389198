"""The metrics of what a leader takes over from the pipeline: learned costs, and seeds."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

MODELS: Final = ("traffic_share", "learned")
SEED_RESULTS: Final = ("used", "stale", "late", "unreadable", "foreign")


class LearningMetrics:
    """Which cost model decides, whether the published one can be read, and what seeds brought."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"loadmanager_{name}", text, labels, registry=registry)

        self._model = gauge("cost_model", "1 for the cost model that this leader uses.", "kind")
        self._made_at = gauge(
            "cost_model_made_timestamp_seconds",
            "When the learned costs that this leader uses were made; 0 for none.",
        )
        self._unusable = gauge(
            "cost_model_unusable", "1 while the published cost model cannot be read."
        )
        self._seeded = gauge(
            "seeded_bundles", "Bundles whose averages this leader took from a seed when it began."
        )
        self._seeds = Counter(
            "loadmanager_seeds",
            "Seeds that leaders read, by result.",
            ["result"],
            registry=registry,
        )
        for result in SEED_RESULTS:
            self._seeds.labels(result)
        self.not_leading()

    def cost_model_used(self, made_at_ms: int | None, *, unusable: bool) -> None:
        """Show the costs that this leader uses, None for shares of the traffic."""
        for one in MODELS:
            used = "traffic_share" if made_at_ms is None else "learned"
            self._model.labels(one).set(one == used)
        self._made_at.set((made_at_ms or 0) / 1000)
        self._unusable.set(unusable)

    def seeded(self, result: str, bundles: int = 0) -> None:
        """Count what became of a seed, and show how many bundles it was used for."""
        self._seeds.labels(result).inc()
        self._seeded.set(bundles)

    def not_leading(self) -> None:
        """Show nothing: this sidecar does not lead."""
        for one in MODELS:
            self._model.labels(one).set(0)
        self._made_at.set(0)
        self._unusable.set(0)
        self._seeded.set(0)

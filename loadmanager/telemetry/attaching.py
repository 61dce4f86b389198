from math import nan
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

STATES: Final = ("serving", "failed", "superseded", "timed_out", "landed_elsewhere")


class AttachMetrics:
    """State of a Pulsar cluster and moves in it, as observed by one process; NaN if unknown."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"loadmanager_attach_{name}", text, registry=registry)

        self.balancing = gauge("balancing", "1 while this process makes moves, else 0.")
        self.pulsar_shedding = gauge(
            "pulsar_shedding", "1 if Pulsar's own shedding is on at any broker, 0 if at none."
        )
        self.held = gauge("held", "1 while nothing may move: paused, settling, outside of times.")
        self.max_over_mean = gauge(
            "max_over_mean", "Largest message or byte rate of a broker, divided by the mean."
        )
        self.least_max_over_mean = gauge(
            "least_max_over_mean", "Proven lower bound of that over all assignments of bundles."
        )
        self.brokers = gauge("brokers", "Active brokers.")
        self.brokers_missing = gauge("brokers_missing", "Active brokers that have no sample.")
        self.tasks = Counter(
            "loadmanager_attach_tasks_total",
            "Moves and splits that ended, by outcome.",
            ("state",),
            registry=registry,
        )
        for state in STATES:
            self.tasks.labels(state)
        unknown = (self.pulsar_shedding, self.max_over_mean, self.least_max_over_mean)
        for one in (*unknown, self.brokers, self.brokers_missing):
            one.set(nan)

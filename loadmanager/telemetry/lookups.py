from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

_BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0)

_RESULTS: Final = ("answered", "redirected", "failed")

# Pulsar's names for the same three.
_PULSAR_NAMES: Final = {"answered": "answers", "redirected": "redirects", "failed": "failures"}


class LookupMetrics(Collector):
    """The results of lookups, and their durations.

    A sidecar answers tens of thousands of lookups per second, and one locked counter costs as
    much as the rest of an answer. These are plain numbers, converted to samples at each scrape;
    all calls and scrapes must be made on the thread of the event loop.
    """

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_RESULTS, 0)
        self._buckets = [0] * (len(_BOUNDS_S) + 1)
        self._sum_s = 0.0
        self._pending = 0

    def answered(self, seconds: float) -> None:
        self._count("answered", seconds)

    def redirected(self, seconds: float) -> None:
        self._count("redirected", seconds)

    def failed(self, seconds: float) -> None:
        self._count("failed", seconds)

    def pending(self, lookups: int) -> None:
        self._pending = lookups

    def _count(self, result: str, seconds: float) -> None:
        self._counts[result] += 1
        self._buckets[bisect_left(_BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        cumulated = list(accumulate(self._buckets))
        names = [*(str(bound) for bound in _BOUNDS_S), "+Inf"]
        yield HistogramMetricFamily(
            "loadmanager_lookup_duration_seconds",
            "Time from the arrival of a lookup to its answer, whatever its result.",
            buckets=list(zip(names, map(float, cumulated), strict=True)),
            sum_value=self._sum_s,
        )
        yield SummaryMetricFamily(
            "pulsar_broker_lookup",
            "Lookups by Pulsar's name, in milliseconds, without quantiles.",
            count_value=cumulated[-1],
            sum_value=self._sum_s * 1000,
        )
        for name in ("loadmanager_lookups_pending", "pulsar_broker_lookup_pending_requests"):
            yield GaugeMetricFamily(name, "Lookups that wait for an owner now.", self._pending)

    def _counters(self) -> Iterator[Metric]:
        by_result = CounterMetricFamily(
            "loadmanager_lookups", "Topic lookups, by result.", labels=["result"]
        )
        for result, count in self._counts.items():
            by_result.add_metric([result], count)
        yield by_result
        for result, count in self._counts.items():
            yield CounterMetricFamily(
                f"pulsar_broker_lookup_{_PULSAR_NAMES[result]}",
                f"Lookups {result}, by Pulsar's name.",
                count,
            )

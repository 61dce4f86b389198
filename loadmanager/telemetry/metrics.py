"""Every metric of a sidecar, in one place.

Names are Pulsar's if Pulsar has the metric, so that existing dashboards work, else
``loadmanager_*`` with the base unit at the end. Labels have closed sets of values; only
``broker`` grows with the cluster. Bundles and topics are never labels: there are hundreds of
thousands of them, and each value would be a time series.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from math import nan
from typing import Annotated, Any, Final, get_type_hints

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    disable_created_metrics,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from loadmanager import __version__
from loadmanager.core.ids import BrokerId
from loadmanager.core.load import LoadReport
from loadmanager.core.move_limits import HeldReason
from loadmanager.core.optimality import Optimality
from loadmanager.core.ownership import Phase
from loadmanager.core.shadow import Shadow

_BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0)

_RESULTS: Final = ("answered", "failed")

# Pulsar's names for the same two.
_PULSAR_NAMES: Final = {"answered": "answers", "failed": "failures"}


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


_MEANINGS: Final[Mapping[str, str]] = {
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


# Sets defined here; those of reasons, strategies and operations are in the core and the ports.
LABEL_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "change": ("acquired", "released", "lost"),
    "leadership": ("gained", "lost"),
    "place": (
        "election",
        "gauges",
        "health",
        "membership",
        "placing",
        "report",
        "request",
        "round",
        "term",
        "tick",
    ),
    "mode": ("active", "observing", "paused"),
    "phase": tuple(phase.value for phase in Phase if phase is not Phase.FREE),
    # Direct memory is only known of brokers that run on Java, so it is never missed.
    "resource": ("cpu", "memory", "bandwidth_in", "bandwidth_out"),
    "session": ("connected", "suspended", "lost"),
}

_ROUND_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_HAND_OVER_BOUNDS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_LAG_BOUNDS_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_OPERATION_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 5)

_PULSAR_USAGE: Final = {
    "cpu": "pulsar_lb_cpu_usage",
    "memory": "pulsar_lb_memory_usage",
    "direct_memory": "pulsar_lb_directMemory_usage",
    "bandwidth_in": "pulsar_lb_bandwidth_in_usage",
    "bandwidth_out": "pulsar_lb_bandwidth_out_usage",
}
_PULSAR_COUNTERS: Final = (
    ("unload_broker", "bundleUnloading", "Brokers unloaded from, once for each round."),
    ("unload_bundle", "bundleUnloading", "Bundles that this leader ordered to another broker."),
    ("bundles_split", "bundlesSplit", "Bundles split by this leader."),
)


class _Declared:
    """Metrics as annotations declare them: help, the buckets of a histogram, and labels.

    Every series of a known set of label values begins at zero, so that `rate` sees a first event.
    """

    def __init__(self, registry: CollectorRegistry, prefix: str = "loadmanager_") -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            text, *more = hint.__metadata__
            kind: Any = hint.__origin__
            buckets = {"buckets": more.pop(0)} if kind is Histogram else {}
            made = kind(f"{prefix}{name}", text, more, registry=registry, **buckets)
            for value in LABEL_VALUES.get(more[0], ()) if len(more) == 1 else ():
                made.labels(value)
            setattr(self, name, made)


class ShadowMetrics(_Declared):
    gap: Annotated[
        Gauge,
        "Distance of the fullest broker from the proven lower bound with a strategy beside the "
        "active one, divided by the bound.",
        "strategy",
    ]
    regret: Annotated[
        Gauge,
        "How far that is below the gap of the cluster, mean of the last 60 rounds; negative: "
        "the active strategy is closer to the best.",
        "strategy",
    ]
    moves: Annotated[
        Counter,
        "Bundles that a strategy beside the active one would have moved for load.",
        "strategy",
    ]

    def after_round(self, strategy: str, shadow: Shadow) -> None:
        last = shadow.rounds[-1]
        self.gap.labels(strategy).set(last.gap)
        self.regret.labels(strategy).set(shadow.regret)
        self.moves.labels(strategy).inc(last.moves)

    def forget(self, strategy: str) -> None:
        self.gap.remove(strategy)
        self.regret.remove(strategy)


SEED_RESULTS: Final = ("used", "stale", "late", "unreadable", "foreign")


class Metrics(_Declared):
    build_info: Annotated[Gauge, "Always 1; the version is the label.", "version"]
    unexpected_errors: Annotated[
        Counter, "Unexpected errors, by the place that handled them.", "place"
    ]
    leader: Annotated[Gauge, "1 while this sidecar leads the cluster, else 0."]
    leader_epoch: Annotated[Gauge, "Epoch of the current leader; 0 for none."]
    leader_changes: Annotated[Counter, "Times this sidecar gained or lost the lead.", "leadership"]
    brokers_left_out: Annotated[
        Gauge, "Brokers that this leader leaves out because their reports make decisions fail."
    ]
    seeded_bundles: Annotated[
        Gauge, "Bundles whose averages this leader took from a seed when it began."
    ]
    seeds: Annotated[Counter, "Seeds read by leaders, by result.", "result"]
    rounds: Annotated[
        Counter, "Rounds of the leader, by outcome; refused: bundle tasks under way.", "outcome"
    ]
    rounds_cut_short: Annotated[
        Counter, "Rounds that had used all steps of work before they were complete."
    ]
    round_duration_seconds: Annotated[
        Histogram, "Time from the view to the written orders.", _ROUND_BOUNDS_S
    ]
    moves: Annotated[
        Counter,
        "Bundles that rounds decided to move, by strategy and reason.",
        "strategy",
        "reason",
    ]
    refusals: Annotated[
        Counter,
        "Brokers and bundles that rounds left alone, by strategy and reason.",
        "strategy",
        "reason",
    ]
    moves_in_flight: Annotated[Gauge, "Bundles ordered to a broker that does not serve them yet."]
    oldest_task_age_seconds: Annotated[
        Gauge, "Time since the oldest live bundle task of this leader was proposed; 0 for none."
    ]
    tasks_ended: Annotated[
        Counter, "Bundle tasks that ended, by kind and final state.", "kind", "state"
    ]
    brokers_passed_over: Annotated[
        Gauge, "Registered brokers that take no locks and get no bundles now."
    ]
    bundles_awaiting_return: Annotated[
        Gauge, "Bundles without an owner that wait for the return of their brokers."
    ]
    balancing: Annotated[
        Gauge, "1 for the balancing mode of this leader: active, observing or paused.", "mode"
    ]
    balancing_held: Annotated[
        Gauge, "1 while this leader may not move bundles of the Pulsar brokers it balances, else 0."
    ]
    moves_awaiting_clients: Annotated[
        Gauge,
        "Moves that wait until the clients of an earlier move are back; only beside "
        "Pulsar brokers.",
    ]
    former_locks_left: Annotated[
        Gauge, "Locks of an earlier membership of this broker that could not be removed yet."
    ]
    stray_locks: Annotated[Gauge, "Ownership locks that no broker lists, at two rounds in a row."]
    disagreements: Annotated[
        Gauge,
        "Disagreements among orders, locks, reports and boundaries at the last round, by kind.",
        "kind",
    ]
    assignments: Annotated[
        Counter, "Requests to the leader to place a bundle without an owner, by result.", "result"
    ]
    ownership_bundles: Annotated[
        Gauge, "Bundles that this sidecar holds or is acquiring, by phase.", "phase"
    ]
    ownership_changes: Annotated[Counter, "Ownership locks acquired, released and lost.", "change"]
    hand_over_duration_seconds: Annotated[
        Histogram,
        "Time from an order until its target serves the bundle, as seen by the leader.",
        _HAND_OVER_BOUNDS_S,
    ]
    stale_orders: Annotated[Counter, "Orders ignored because those of a newer leader are in force."]
    orders_refused: Annotated[Gauge, "1 while the current orders are refused, else 0."]
    broker_leased: Annotated[
        Gauge,
        "1 while the broker takes its leases from this sidecar, or is a registered "
        "Pulsar broker, else 0.",
    ]
    broker_healthy: Annotated[
        Gauge, "1 while the broker is healthy, 0 after several failed health checks."
    ]
    broker_probes: Annotated[Counter, "Health checks of the broker, by result.", "result"]
    broker_probe_duration_seconds: Annotated[
        Histogram, "Duration of health checks of the broker.", _OPERATION_BOUNDS_S
    ]
    standing_by: Annotated[Gauge, "1 while a live sidecar elsewhere has this broker's id, else 0."]
    lease_renewals: Annotated[Counter, "Renewals of the broker's lease, by result.", "result"]
    report_publishes: Annotated[
        Counter, "Load reports written, by the reason why they were due.", "reason"
    ]
    report_failures: Annotated[
        Counter, "Load reports that were due but not written, by cause.", "cause"
    ]
    oversized_writes: Annotated[
        Counter, "Writes that failed because they exceed ZooKeeper's size limit.", "kind"
    ]
    report_bytes: Annotated[Gauge, "Size of the last loads node written."]
    report_age_seconds: Annotated[
        Gauge, "Time since this sidecar last saw the broker's report change.", "broker"
    ]
    unknown_resource: Annotated[
        Gauge, "1 while the usage or limit of the resource is unknown, else 0.", "resource"
    ]
    malformed_content: Annotated[Counter, "Malformed stored or received content, by kind.", "kind"]
    picture_entries: Annotated[Gauge, "Entries of this sidecar's cluster state, by type.", "what"]
    session_state: Annotated[
        Gauge, "1 for the current state of the ZooKeeper session, else 0.", "session"
    ]
    session_changes: Annotated[
        Counter, "Changes of the ZooKeeper session, by the new state.", "session"
    ]
    coordination_operations: Annotated[
        Counter, "Requests to ZooKeeper, by kind and result.", "kind", "result"
    ]
    coordination_operation_duration_seconds: Annotated[
        Histogram, "Time from a request to ZooKeeper to its reply.", _OPERATION_BOUNDS_S, "kind"
    ]
    event_loop_lag_seconds: Annotated[
        Histogram, "Delay of the event loop, measured twice a second.", _LAG_BOUNDS_S
    ]
    event_loop_stalls: Annotated[
        Counter, "Stalls of the event loop long enough for /healthz to answer 503."
    ]
    http_refusals: Annotated[
        Counter, "Connections and requests refused because of a limit, by the limit.", "reason"
    ]

    def __init__(self, registry: CollectorRegistry, cluster: str = "standalone") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # the library's, without types
        self._cluster = cluster
        self.lookup = LookupMetrics()
        self.optimality = OptimalityMetrics(registry)
        self.shadows = ShadowMetrics(registry, "loadmanager_shadow_")
        registry.register(self.lookup)
        super().__init__(registry)
        self.build_info.labels(__version__).set(1)
        self.broker_healthy.set(1)
        for result in SEED_RESULTS:
            self.seeds.labels(result)
        for result in ("passed", "failed"):
            self.broker_probes.labels(result)
        for result in ("renewed", "failed"):
            self.lease_renewals.labels(result)
        for reason in ("connections", "address", "requests", "slow", "unread", "framing"):
            self.http_refusals.labels(reason)
        labels = ("cluster", "broker", "metric")
        self._usage = {
            resource: Gauge(
                name,
                f"Usage of {resource.replace('_', ' ')} in percent of the broker's limit.",
                labels,
                registry=registry,
            )
            for resource, name in _PULSAR_USAGE.items()
        }
        self._unloaded_brokers, self._unloaded_bundles, self._split_bundles = (
            Counter(f"pulsar_lb_{name}", text, ("cluster", "metric"), registry=registry).labels(
                cluster, metric
            )
            for name, metric, text in _PULSAR_COUNTERS
        )

    def show_usage(self, report: LoadReport) -> None:
        """Set a broker's usage in percent of its limits; unknown usage has no series."""
        for resource, gauge in self._usage.items():
            used = getattr(report, resource)
            fraction = None if used is None else used.fraction
            labels = (self._cluster, report.broker, "loadBalancing")
            if fraction is None:
                gauge.remove(*labels)
            else:
                gauge.labels(*labels).set(100 * fraction)
            if resource in LABEL_VALUES["resource"]:
                self.unknown_resource.labels(resource).set(fraction is None)

    def brokers_departed(self, brokers: Iterable[BrokerId]) -> None:
        """Remove the series of brokers that left, so that no alert refers to them."""
        for broker in brokers:
            self.report_age_seconds.remove(broker)
            for gauge in self._usage.values():
                gauge.remove(self._cluster, broker, "loadBalancing")

    def bundles_unloaded(self, bundles: int, brokers: int) -> None:
        self._unloaded_bundles.inc(bundles)
        self._unloaded_brokers.inc(brokers)

    def seeded(self, result: str, bundles: int = 0) -> None:
        self.seeds.labels(result).inc()
        self.seeded_bundles.set(bundles)

    def bundles_split(self, bundles: int) -> None:
        self._split_bundles.inc(bundles)

    def phase_changed(self, before: Phase, after: Phase) -> None:
        """Count one bundle from one phase to another; free bundles are not counted."""
        if before is not Phase.FREE:
            self.ownership_bundles.labels(before.value).dec()
        if after is not Phase.FREE:
            self.ownership_bundles.labels(after.value).inc()

    def ownership_changed(self, change: str, bundles: int = 1) -> None:
        self.ownership_changes.labels(change).inc(bundles)

    def broker_probed(self, result: str, seconds: float) -> None:
        self.broker_probes.labels(result).inc()
        self.broker_probe_duration_seconds.observe(seconds)

    def session_changed(self, state: str) -> None:
        for each in LABEL_VALUES["session"]:
            self.session_state.labels(each).set(each == state)
        self.session_changes.labels(state).inc()

    def coordination_asked(self, kind: str, result: str, seconds: float) -> None:
        self.coordination_operations.labels(kind, result).inc()
        self.coordination_operation_duration_seconds.labels(kind).observe(seconds)

    def balancing_changed(self, mode: str | None) -> None:
        for one in LABEL_VALUES["mode"]:
            self.balancing.labels(one).set(one == mode)

    def disagreements_found(self, counts: Mapping[str, int], kinds: Iterable[str]) -> None:
        for kind in kinds:
            self.disagreements.labels(kind).set(counts.get(kind, 0))

    def http_refused(self, reason: str) -> None:
        self.http_refusals.labels(reason).inc()

    def malformed(self, kind: str) -> None:
        self.malformed_content.labels(kind).inc()

    def picture_changed(self, *, brokers: int, bundles: int, namespaces: int) -> None:
        self.picture_entries.labels("brokers").set(brokers)
        self.picture_entries.labels("bundles").set(bundles)
        self.picture_entries.labels("namespaces").set(namespaces)


STATES: Final = (
    *("serving", "failed", "superseded", "timed_out", "landed_elsewhere"),
    *("stuck", "owned_not_served"),
)


class AttachMetrics(_Declared):
    """State of a Pulsar cluster and moves in it, as observed by one process; NaN if unknown."""

    balancing: Annotated[Gauge, "1 while this process makes moves, else 0."]
    pulsar_shedding: Annotated[
        Gauge, "1 if Pulsar's own shedding is on at any broker, 0 if at none."
    ]
    held: Annotated[Gauge, "1 while nothing moves, or not all that should, by reason.", "reason"]
    move_pause_seconds: Annotated[
        Histogram,
        "Time from the unload of a bundle until its topics were active at the target.",
        (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    ]
    max_over_mean: Annotated[
        Gauge, "Largest message or byte rate of a broker, divided by the mean."
    ]
    least_max_over_mean: Annotated[
        Gauge, "Proven lower bound of that over all assignments of bundles."
    ]
    brokers: Annotated[Gauge, "Active brokers."]
    brokers_missing: Annotated[Gauge, "Active brokers that have no sample."]
    bundles_listed_twice: Annotated[Gauge, "Bundles that more than one broker lists as its own."]
    tasks_total: Annotated[Counter, "Moves and splits that ended, by outcome.", "state"]

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "loadmanager_attach_")
        for reason in HeldReason:
            self.held.labels(reason.value).set(0)
        for state in STATES:
            self.tasks_total.labels(state)
        unknown = (self.pulsar_shedding, self.max_over_mean, self.least_max_over_mean)
        for one in (*unknown, self.brokers, self.brokers_missing):
            one.set(nan)


WHYS: Final = ("queue_full", "unwritable", "unfit")
STREAMS: Final = ("reports", "rounds")


class HistoryMetrics(_Declared):
    lines_total: Annotated[Counter, "Lines of history written, by stream.", "stream"]
    bytes_total: Annotated[Counter, "Compressed bytes written, by stream.", "stream"]
    files_total: Annotated[Counter, "Files that were finished, by stream.", "stream"]
    dropped_total: Annotated[Counter, "History records dropped, by reason.", "why"]
    errors_total: Annotated[Counter, "Flushes of history that failed."]
    uploads_total: Annotated[Counter, "Files brought to a remote address."]
    deletions_total: Annotated[Counter, "Files deleted by retention."]
    waiting: Annotated[Gauge, "Records that wait for the writer."]
    backlog_bytes: Annotated[Gauge, "Lines that are not on disk yet."]
    flushed_timestamp_seconds: Annotated[Gauge, "When all lines were last on disk."]

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "loadmanager_history_")
        self._shown: dict[str, tuple[int, int, int]] = {}
        for why in WHYS:
            self.dropped_total.labels(why)
        for stream in STREAMS:
            self.written(stream, lines=0, size_bytes=0, files=0)

    def written(self, stream: str, *, lines: int, size_bytes: int, files: int) -> None:
        before = self._shown.get(stream, (0, 0, 0))
        self._shown[stream] = now = (lines, size_bytes, files)
        counters = (self.lines_total, self.bytes_total, self.files_total)
        for counter, count, then in zip(counters, now, before, strict=True):
            counter.labels(stream).inc(count - then)

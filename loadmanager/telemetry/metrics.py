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
from types import MappingProxyType
from typing import Final

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


class Metrics:
    def __init__(self, registry: CollectorRegistry, cluster: str = "standalone") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # the library's, without types
        self._registry = registry
        self._cluster = cluster
        self.lookup = LookupMetrics()
        self.learning = LearningMetrics(registry)
        self.optimality = OptimalityMetrics(registry)
        self.shadows = ShadowMetrics(registry)
        registry.register(self.lookup)
        self._gauge("build_info", "Always 1; the version is the label.", "version").labels(
            __version__
        ).set(1)
        self.unexpected_errors = self._counter(
            "unexpected_errors",
            "Unexpected errors, by the place that handled them.",
            "place",
        )
        self._declare_pulsar()
        self._declare_leading()
        self._declare_owning()
        self._declare_reporting()
        self._declare_coordination()
        self._declare_event_loop()

    def _declare_pulsar(self) -> None:
        labels = ("cluster", "broker", "metric")
        self._usage = {
            resource: Gauge(name, _usage_help(resource), labels, registry=self._registry)
            for resource, name in _PULSAR_USAGE.items()
        }
        self._unloaded_brokers = self._pulsar_counter(
            "unload_broker", "bundleUnloading", "Brokers unloaded from, once for each round."
        )
        self._unloaded_bundles = self._pulsar_counter(
            "unload_bundle",
            "bundleUnloading",
            "Bundles that this leader ordered to another broker.",
        )
        self._split_bundles = self._pulsar_counter(
            "bundles_split", "bundlesSplit", "Bundles split by this leader."
        )

    def _declare_leading(self) -> None:
        self.is_leader = self._gauge("leader", "1 while this sidecar leads the cluster, else 0.")
        self.leader_epoch = self._gauge("leader_epoch", "Epoch of the current leader; 0 for none.")
        self.leader_changes = self._counter(
            "leader_changes", "Times this sidecar gained or lost the lead.", "leadership"
        )
        self.brokers_left_out = self._gauge(
            "brokers_left_out",
            "Brokers that this leader leaves out because their reports make decisions fail.",
        )
        self.rounds = self._counter(
            "rounds",
            "Rounds of the leader, by outcome; refused: bundle tasks under way.",
            "outcome",
        )
        self.rounds_cut_short = self._counter(
            "rounds_cut_short", "Rounds that had used all steps of work before they were complete."
        )
        self.round_duration_seconds = self._histogram(
            "round_duration_seconds", "Time from the view to the written orders.", _ROUND_BOUNDS_S
        )
        self.moves = self._counter(
            "moves",
            "Bundles that rounds decided to move, by strategy and reason.",
            "strategy",
            "reason",
        )
        self.refusals = self._counter(
            "refusals",
            "Brokers and bundles that rounds left alone, by strategy and reason.",
            "strategy",
            "reason",
        )
        self.moves_in_flight = self._gauge(
            "moves_in_flight", "Bundles ordered to a broker that does not serve them yet."
        )
        self.oldest_task_age_seconds = self._gauge(
            "oldest_task_age_seconds",
            "Time since the oldest live bundle task of this leader was proposed; 0 for none.",
        )
        self._tasks_ended = self._counter(
            "tasks_ended", "Bundle tasks that ended, by kind and final state.", "kind", "state"
        )
        self.brokers_passed_over = self._gauge(
            "brokers_passed_over", "Registered brokers that take no locks and get no bundles now."
        )
        self.bundles_awaiting_return = self._gauge(
            "bundles_awaiting_return",
            "Bundles without an owner that wait for the return of their brokers.",
        )
        self._balancing = self._gauge(
            "balancing",
            "1 for the balancing mode of this leader: active, observing or paused.",
            "mode",
        )
        self.balancing_held = self._gauge(
            "balancing_held",
            "1 while this leader may not move bundles of the Pulsar brokers it balances, else 0.",
        )
        self.moves_awaiting_clients = self._gauge(
            "moves_awaiting_clients",
            "Moves that wait until the clients of an earlier move are back; only beside Pulsar "
            "brokers.",
        )
        self.former_locks_left = self._gauge(
            "former_locks_left",
            "Locks of an earlier membership of this broker that could not be removed yet.",
        )
        self.stray_locks = self._gauge(
            "stray_locks", "Ownership locks that no broker lists, at two rounds in a row."
        )
        self._disagreements = self._gauge(
            "disagreements",
            "Disagreements among orders, locks, reports and boundaries at the last round, by kind.",
            "kind",
        )
        self.assignments = self._counter(
            "assignments",
            "Requests to the leader to place a bundle without an owner, by result.",
            "result",
        )

    def _declare_owning(self) -> None:
        self._phases = self._gauge(
            "ownership_bundles",
            "Bundles that this sidecar holds or is acquiring, by phase.",
            "phase",
        )
        self._ownership_changes = self._counter(
            "ownership_changes", "Ownership locks acquired, released and lost.", "change"
        )
        self.hand_over_duration_seconds = self._histogram(
            "hand_over_duration_seconds",
            "Time from an order until its target serves the bundle, as seen by the leader.",
            _HAND_OVER_BOUNDS_S,
        )
        self.stale_orders = self._counter(
            "stale_orders", "Orders ignored because those of a newer leader are in force."
        )
        self.orders_refused = self._gauge(
            "orders_refused", "1 while the current orders are refused, else 0."
        )
        self.broker_leased = self._gauge(
            "broker_leased",
            "1 while the broker takes its leases from this sidecar, or is a registered Pulsar "
            "broker, else 0.",
        )
        self.broker_healthy = self._gauge(
            "broker_healthy", "1 while the broker is healthy, 0 after several failed health checks."
        )
        self.broker_healthy.set(1)
        self._broker_probes = self._counter(
            "broker_probes", "Health checks of the broker, by result.", "result"
        )
        for result in ("passed", "failed"):
            self._broker_probes.labels(result)
        self._broker_probe_duration_seconds = self._histogram(
            "broker_probe_duration_seconds",
            "Duration of health checks of the broker.",
            _OPERATION_BOUNDS_S,
        )
        self.standing_by = self._gauge(
            "standing_by", "1 while a live sidecar elsewhere has this broker's id, else 0."
        )
        self.lease_renewals = self._counter(
            "lease_renewals", "Renewals of the broker's lease, by result.", "result"
        )
        for result in ("renewed", "failed"):
            self.lease_renewals.labels(result)

    def _declare_reporting(self) -> None:
        self.report_publishes = self._counter(
            "report_publishes", "Load reports written, by the reason why they were due.", "reason"
        )
        self.report_failures = self._counter(
            "report_failures", "Load reports that were due but not written, by cause.", "cause"
        )
        self.oversized_writes = self._counter(
            "oversized_writes",
            "Writes that failed because they exceed ZooKeeper's size limit.",
            "kind",
        )
        self.report_bytes = self._gauge("report_bytes", "Size of the last loads node written.")
        self._report_age = self._gauge(
            "report_age_seconds",
            "Time since this sidecar last saw the broker's report change.",
            "broker",
        )
        self._unknown = self._gauge(
            "unknown_resource",
            "1 while the usage or limit of the resource is unknown, else 0.",
            "resource",
        )
        self._malformed = self._counter(
            "malformed_content", "Malformed stored or received content, by kind.", "kind"
        )
        self._picture = self._gauge(
            "picture_entries", "Entries of this sidecar's cluster state, by type.", "what"
        )

    def _declare_coordination(self) -> None:
        self._session = self._gauge(
            "session_state", "1 for the current state of the ZooKeeper session, else 0.", "session"
        )
        self._session_changes = self._counter(
            "session_changes", "Changes of the ZooKeeper session, by the new state.", "session"
        )
        self._operations = self._counter(
            "coordination_operations",
            "Requests to ZooKeeper, by kind and result.",
            "kind",
            "result",
        )
        self._operation_duration_seconds = self._histogram(
            "coordination_operation_duration_seconds",
            "Time from a request to ZooKeeper to its reply.",
            _OPERATION_BOUNDS_S,
            "kind",
        )

    def _declare_event_loop(self) -> None:
        self.event_loop_lag_seconds = self._histogram(
            "event_loop_lag_seconds",
            "Delay of the event loop, measured twice a second.",
            _LAG_BOUNDS_S,
        )
        self.event_loop_stalls = self._counter(
            "event_loop_stalls", "Stalls of the event loop long enough for /healthz to answer 503."
        )
        self._http_refusals = self._counter(
            "http_refusals",
            "Connections and requests refused because of a limit, by the limit.",
            "reason",
        )
        for reason in ("connections", "address", "requests", "slow", "unread", "framing"):
            self._http_refusals.labels(reason)

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
                self._unknown.labels(resource).set(fraction is None)

    def report_aged(self, broker: BrokerId, age_s: float) -> None:
        self._report_age.labels(broker).set(age_s)

    def brokers_departed(self, brokers: Iterable[BrokerId]) -> None:
        """Remove the series of brokers that left, so that no alert refers to them."""
        for broker in brokers:
            self._report_age.remove(broker)
            for gauge in self._usage.values():
                gauge.remove(self._cluster, broker, "loadBalancing")

    def bundles_unloaded(self, bundles: int, brokers: int) -> None:
        self._unloaded_bundles.inc(bundles)
        self._unloaded_brokers.inc(brokers)

    def task_ended(self, kind: str, state: str) -> None:
        self._tasks_ended.labels(kind, state).inc()

    def bundles_split(self, bundles: int) -> None:
        self._split_bundles.inc(bundles)

    def phase_changed(self, before: Phase, after: Phase) -> None:
        """Count one bundle from one phase to another; free bundles are not counted."""
        if before is not Phase.FREE:
            self._phases.labels(before.value).dec()
        if after is not Phase.FREE:
            self._phases.labels(after.value).inc()

    def ownership_changed(self, change: str, bundles: int = 1) -> None:
        self._ownership_changes.labels(change).inc(bundles)

    def broker_probed(self, result: str, seconds: float) -> None:
        self._broker_probes.labels(result).inc()
        self._broker_probe_duration_seconds.observe(seconds)

    def session_changed(self, state: str) -> None:
        for each in LABEL_VALUES["session"]:
            self._session.labels(each).set(each == state)
        self._session_changes.labels(state).inc()

    def coordination_asked(self, kind: str, result: str, seconds: float) -> None:
        self._operations.labels(kind, result).inc()
        self._operation_duration_seconds.labels(kind).observe(seconds)

    def balancing_changed(self, mode: str | None) -> None:
        for one in LABEL_VALUES["mode"]:
            self._balancing.labels(one).set(one == mode)

    def disagreements_found(self, counts: Mapping[str, int], kinds: Iterable[str]) -> None:
        for kind in kinds:
            self._disagreements.labels(kind).set(counts.get(kind, 0))

    def http_refused(self, reason: str) -> None:
        self._http_refusals.labels(reason).inc()

    def malformed(self, kind: str) -> None:
        self._malformed.labels(kind).inc()

    def picture_changed(self, *, brokers: int, bundles: int, namespaces: int) -> None:
        self._picture.labels("brokers").set(brokers)
        self._picture.labels("bundles").set(bundles)
        self._picture.labels("namespaces").set(namespaces)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        made = Counter(f"loadmanager_{name}", text, labels, registry=self._registry)
        _show_all(made, labels)
        return made

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        made = Gauge(f"loadmanager_{name}", text, labels, registry=self._registry)
        _show_all(made, labels)
        return made

    def _histogram(
        self, name: str, text: str, bounds: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            f"loadmanager_{name}", text, labels, registry=self._registry, buckets=bounds
        )

    def _pulsar_counter(self, name: str, metric: str, text: str) -> Counter:
        labels = ("cluster", "metric")
        made = Counter(f"pulsar_lb_{name}", text, labels, registry=self._registry)
        return made.labels(self._cluster, metric)


def _show_all(metric: Counter | Gauge, labels: tuple[str, ...]) -> None:
    """Start every series of a known set at zero, so that `rate` sees a first event."""
    if len(labels) == 1:
        for value in LABEL_VALUES.get(labels[0], ()):
            metric.labels(value)


def _usage_help(resource: str) -> str:
    return f"Usage of {resource.replace('_', ' ')} in percent of the broker's limit."


STATES: Final = (
    *("serving", "failed", "superseded", "timed_out", "landed_elsewhere"),
    *("stuck", "owned_not_served"),
)


class AttachMetrics:
    """State of a Pulsar cluster and moves in it, as observed by one process; NaN if unknown."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"loadmanager_attach_{name}", text, registry=registry)

        self.balancing = gauge("balancing", "1 while this process makes moves, else 0.")
        self.pulsar_shedding = gauge(
            "pulsar_shedding", "1 if Pulsar's own shedding is on at any broker, 0 if at none."
        )
        self.held = Gauge(
            "loadmanager_attach_held",
            "1 while nothing moves, or not all that should, by reason.",
            ("reason",),
            registry=registry,
        )
        for reason in HeldReason:
            self.held.labels(reason.value).set(0)
        self.move_pause = Histogram(
            "loadmanager_attach_move_pause_seconds",
            "Time from the unload of a bundle until its topics were active at the target.",
            registry=registry,
            buckets=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
        )
        self.max_over_mean = gauge(
            "max_over_mean", "Largest message or byte rate of a broker, divided by the mean."
        )
        self.least_max_over_mean = gauge(
            "least_max_over_mean", "Proven lower bound of that over all assignments of bundles."
        )
        self.brokers = gauge("brokers", "Active brokers.")
        self.brokers_missing = gauge("brokers_missing", "Active brokers that have no sample.")
        self.listed_twice = gauge(
            "bundles_listed_twice", "Bundles that more than one broker lists as its own."
        )
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


WHYS: Final = ("queue_full", "unwritable", "unfit")
STREAMS: Final = ("reports", "rounds")


class HistoryMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"loadmanager_history_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"loadmanager_history_{name}", text, registry=registry)

        self._lines = counter("lines_total", "Lines of history written, by stream.", "stream")
        self._bytes = counter("bytes_total", "Compressed bytes written, by stream.", "stream")
        self._files = counter("files_total", "Files that were finished, by stream.", "stream")
        self.dropped = counter("dropped_total", "History records dropped, by reason.", "why")
        self.errors = counter("errors_total", "Flushes of history that failed.")
        self.uploads = counter("uploads_total", "Files brought to a remote address.")
        self.deletions = counter("deletions_total", "Files deleted by retention.")
        self.waiting = gauge("waiting", "Records that wait for the writer.")
        self.backlog_bytes = gauge("backlog_bytes", "Lines that are not on disk yet.")
        self.flushed_at_s = gauge("flushed_timestamp_seconds", "When all lines were last on disk.")
        self._shown: dict[str, tuple[int, int, int]] = {}
        for why in WHYS:
            self.dropped.labels(why)
        for stream in STREAMS:
            self.written(stream, lines=0, size_bytes=0, files=0)

    def written(self, stream: str, *, lines: int, size_bytes: int, files: int) -> None:
        before = self._shown.get(stream, (0, 0, 0))
        self._shown[stream] = (lines, size_bytes, files)
        for counter, now, then in zip(
            (self._lines, self._bytes, self._files), (lines, size_bytes, files), before, strict=True
        ):
            counter.labels(stream).inc(now - then)

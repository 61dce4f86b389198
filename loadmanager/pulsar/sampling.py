import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final

import numpy as np

from loadmanager.core.bundle_traffic import NO_TRAFFIC, BundleTraffic, between, bundle_traffic
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.standing import QUIET, TOLERANCE
from loadmanager.core.load import BrokerUrls, LoadReport, ResourceUsage
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.policies import Policies
from loadmanager.core.rates import Rates, total
from loadmanager.core.scores import ResourceWeights
from loadmanager.pulsar.answers import (
    BUFFERS,
    Exposition,
    Moment,
    PulsarCluster,
    ask_each,
    read_exposition,
    read_load_report,
    read_owned,
)
from loadmanager.pulsar.client import NotPulsar, PulsarAdmin, PulsarAdminError, Unanswered

_PERCENT: Final = 100.0
# The core's name of each resource, and its names in metrics and in load reports.
_RESOURCES: Final = (
    ("cpu", "cpu", "cpu"),
    ("memory", "memory", "memory"),
    ("direct_memory", "directMemory", "directMemory"),
    ("bandwidth_in", "bandwidth_in", "bandwidthIn"),
    ("bandwidth_out", "bandwidth_out", "bandwidthOut"),
)
_MOST: Final = 1e12
_MOST_OFF: Final = 0.1
_INTERVALS_BACK: Final = 2.0
# Least ratio of two brokers' implied limits at which neither measures more than its process.
_ALIKE: Final = 0.75
# Intervals after a broker's start within which its measurements may include the start.
_START_INTERVALS: Final = 2.5
# Less than any Java process uses of a host; 4.0.7 reports 1e-7 until its first interval is over.
_LEAST_PERCENT: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures:
    """Resource usage of one broker's host, from the first of three sources that reports it.

    These are the load report of the modular load manager, the metrics of the extensible one in
    percent, and the CPU time of the process, which has no limit unless ``--cores`` is set. The
    first two are measured once per interval, so they may be of a period that began ``age_s`` ago.
    ``pending`` is whether the broker's next measurements will show what is ``unknown``, and
    ``distrusted`` why the CPU time of the process takes the place of what was reported.
    """

    usages: Mapping[str, ResourceUsage] = field(default_factory=dict)
    age_s: float = 0.0
    unknown: str = ""
    pending: bool = False
    cpu_limit: float = 0.0
    distrusted: str = ""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Reads host usage; ``cores`` is the CPU limit of brokers, for those that do not report it.

    Pulsar 2.10 to 3.0 divide the use of the whole host by the limit of the container. Where the
    reported CPU usage is further than a tenth of the limit from every value of the last ``windows``
    or more, which cover the period that it may be of, the process's CPU time is used.
    """

    cores: float | None = None
    windows: int = 3
    _counted: dict[BrokerId, deque[tuple[float, float]]] = field(default_factory=dict)
    _implied: dict[BrokerId, "_Implied"] = field(default_factory=dict)

    async def measured(
        self, admin: PulsarAdmin, url: str, cluster: PulsarCluster, seen: Exposition
    ) -> HostFigures:
        age_s = _INTERVALS_BACK * cluster.host_interval_s
        refused = f"the {cluster.manager} load manager has no load report"
        if cluster.manager != "extensible":
            try:
                reported = _usages(await read_load_report(admin, url))
            except PulsarAdminError as error:
                refused = str(error)
            else:
                if "cpu" in reported:
                    found = _steady(reported, seen, age_s)
                    return replace(found, cpu_limit=reported["cpu"].limit)
                refused = "its load report has no usage and limit of CPU"
        named = ((ours, seen.usages.get(name)) for ours, name, _ in _RESOURCES)
        usages = {ours: ResourceUsage(one, _PERCENT) for ours, one in named if one is not None}
        if "cpu" in usages:
            return _steady(usages, seen, age_s)
        return HostFigures(unknown=f"{refused}, and its metrics have no pulsar_lb_cpu_usage")

    def completed(
        self, broker: BrokerId, measured: HostFigures, cpu_cores: float | None, window_s: float
    ) -> HostFigures:
        """Return ``measured``, with usage by the process's CPU time if unknown or wrong."""
        if self.cores is not None:
            measured = replace(measured, cpu_limit=_PERCENT * self.cores)
        if not measured.unknown:
            if not measured.cpu_limit and cpu_cores is not None:
                limit = self._implied_limit(broker, measured, cpu_cores, window_s)
                measured = replace(measured, cpu_limit=limit)
            return self._checked(broker, measured, cpu_cores)
        if measured.pending and self.cores is None:
            return measured
        if cpu_cores is None or self.cores is None:
            why = "; process_cpu_seconds_total has no limit without --cores"
            why = " or process_cpu_seconds_total" if cpu_cores is None else why
            return replace(measured, unknown=f"{measured.unknown}{why}")
        cpu = ResourceUsage(_PERCENT * cpu_cores, measured.cpu_limit)
        return replace(measured, usages={"cpu": cpu}, age_s=window_s, unknown="", pending=False)

    def _implied_limit(
        self, broker: BrokerId, measured: HostFigures, cpu_cores: float, window_s: float
    ) -> float:
        """Return the limit of which the process's CPU time is what is reported; 0 if unknown.

        Where it is far below that of another broker, other processes may be measured too, or the
        broker is smaller. One that is not known yet is supposed to be that of the others.
        """
        one = self._implied.setdefault(broker, _Implied())
        fraction, interval_s = measured.usages["cpu"].fraction or 0.0, measured.age_s / 2.0
        one.count(window_s, _PERCENT * cpu_cores, fraction, interval_s)
        since_s = one.at_s - measured.age_s  # Of brokers that left nothing counts.
        most = max(it.limit for it in self._implied.values() if it.at_s >= since_s)
        return one.limit if one.limit >= _ALIKE * most else 0.0 if one.limit else most

    def _checked(
        self, broker: BrokerId, measured: HostFigures, cpu_cores: float | None
    ) -> HostFigures:
        limit = measured.cpu_limit
        if cpu_cores is None or not limit:
            self._counted.pop(broker, None)
            return measured
        counted, now_s = self._counted.setdefault(broker, deque()), time.monotonic()
        counted.append((now_s, _PERCENT * cpu_cores))
        while len(counted) > self.windows and counted[0][0] < now_s - measured.age_s:
            counted.popleft()
        used = [one for _, one in counted]
        said = limit * (measured.usages["cpu"].fraction or 0.0)
        above, below = said - max(used), min(used) - said
        if len(used) < self.windows or max(above, below) <= _MOST_OFF * limit:
            return measured
        why = f"its load manager reports {said / limit:.0%} of {limit / _PERCENT:g} cores"
        why = f"{why}, and its process takes {used[-1] / limit:.0%}"
        usages = {**measured.usages, "cpu": ResourceUsage(used[-1], limit)}
        return replace(measured, usages=usages, distrusted=why)


@dataclass(slots=True)
class _Implied:
    """One broker's CPU time in the last windows, and the limits that it and reports imply."""

    windows: deque[tuple[float, float]] = field(default_factory=deque)
    limits: deque[float] = field(default_factory=lambda: deque(maxlen=3))
    fraction: float = 0.0
    limit: float = 0.0
    at_s: float = 0.0

    def count(self, window_s: float, used: float, fraction: float, interval_s: float) -> None:
        self.at_s = time.monotonic()
        self.windows.append((window_s, used))
        covered_s = sum(one_s for one_s, _ in self.windows)
        while covered_s - self.windows[0][0] >= interval_s:
            covered_s -= self.windows.popleft()[0]
        if fraction < QUIET:
            self.fraction = fraction
        elif not self.fraction:
            self.limit, self.fraction = used / fraction, fraction
        elif fraction != self.fraction:  # It measured the interval that ends now.
            if covered_s >= 0.9 * interval_s:
                mean = sum(one_s * one for one_s, one in self.windows) / covered_s
                self.limits.append(mean / fraction)
                self.limit = median(self.limits)
            self.fraction = fraction


def _steady(usages: Mapping[str, ResourceUsage], seen: Exposition, age_s: float) -> HostFigures:
    """Return what a load manager reported, or pending if it may include the broker's start."""
    if usages["cpu"].usage < _LEAST_PERCENT:
        return HostFigures(unknown="its load manager has not measured its CPU yet", pending=True)
    start_s = _START_INTERVALS / _INTERVALS_BACK * age_s
    # Where its clock or ours is an hour off, it may seem to have begun in the future.
    if seen.started_s is not None and abs(time.time_ns() / 1e9 - seen.started_s) < start_s:
        why = f"it began less than {start_s:g} s ago, which takes more than its traffic does"
        return HostFigures(unknown=why, pending=True)
    return HostFigures(usages=usages, age_s=age_s)


def _usages(report: Mapping[str, Any]) -> dict[str, ResourceUsage]:
    found = {}
    for ours, _, name in _RESOURCES:
        one = report.get(name)
        value = one if isinstance(one, dict) else {}
        usage, limit = _number(value.get("usage")), _number(value.get("limit"))
        if usage is not None and limit:
            found[ours] = ResourceUsage(usage, limit)
    return found


def _number(value: Any) -> float | None:
    """Return a number from 0 to 1e12, which no host reaches; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST else None


_PARALLEL: Final = 16
_LEAST_S: Final = 1e-3
# After this time counters that stand still are no repeated page: nothing is counted.
LONGEST_REPEATED_S: Final = 90.0
_UNKNOWN: Final = BundleTraffic(partial=True)
_IDLE: Final = NO_TRAFFIC.stats()  # One of many: there may be very many.
REPEATED: Final = f"it repeats its page of metrics ({BUFFERS}): its rates follow with the next one"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSample:
    """One broker over one window.

    ``bundles`` are those served at the end. ``usages`` are in percent, as last measured;
    ``cpu_cores`` is of the process. ``homeless`` is traffic of topics in none of its bundles, and
    of its totals what no topic has. ``repeated_s`` is how long its page has been repeated.
    """

    window_s: float
    bundles: Mapping[BundleId, BundleTraffic]
    topics: Mapping[str, Rates] = field(default_factory=dict)
    usages: Mapping[str, float] = field(default_factory=dict)
    cpu_cores: float | None = None
    homeless: BundleTraffic = NO_TRAFFIC
    began_s: float = 0.0
    restarted: bool = False
    repeated_s: float = 0.0
    host: HostFigures | None = None

    @property
    def total(self) -> Rates:
        return total(self.bundles.values())

    @property
    def window_cpu(self) -> ResourceUsage | None:
        """What the broker's process took of its CPU in this window; None if either is unknown."""
        if self.host is None or self.cpu_cores is None or not self.host.cpu_limit:
            return None
        return ResourceUsage(_PERCENT * self.cpu_cores, self.host.cpu_limit)

    @property
    def passing(self) -> Rates:
        return total([one.passing for one in self.bundles.values()])

    @property
    def topics_in_bundles(self) -> int:
        return sum(one.topics for one in self.bundles.values())

    @property
    def shows_since_s(self) -> float:
        """Start of the period that traffic and host usage cover, on the clock of ``began_s``."""
        if self.host is None:
            return self.began_s
        return min(self.began_s, self.began_s + self.window_s - self.host.age_s)


Samples = Mapping[BrokerId, BrokerSample]


@dataclass(slots=True, kw_only=True)
class _Reading:
    """What was read of a broker: last at ``read``, and with these counters since ``changed``.

    ``ahead_s`` is our clock less the broker's, by the newest page. When the ``first`` page was made
    is not known if it is repeated, and without a clock. ``served`` bundles had topics, and ``came``
    are those of them that had none before.
    """

    seen: Exposition
    read: Moment
    changed: Moment
    ahead_s: float
    first: bool
    owned: Collection[BundleId]
    served: set[BundleId]
    came: Collection[BundleId] = ()
    sample: BrokerSample | None = None


@dataclass(slots=True)
class Sampler:
    """Reads all brokers repeatedly; a window lies between two readings of a broker.

    While a broker repeats a page its last sample counts, and the next window ends with its next
    page. A bundle that came to a broker is partial for two windows, in which clients catch up.
    """

    admin: PulsarAdmin
    address: Callable[[BrokerId], str]
    hosts: Hosts | None = None
    _former: dict[BrokerId, _Reading] = field(default_factory=dict)

    async def sample(self, cluster: PulsarCluster) -> tuple[Samples, Mapping[BrokerId, str]]:
        parallel, checking = asyncio.Semaphore(_PARALLEL), asyncio.Lock()
        urls, checked_s = [*map(self.address, cluster.brokers)], -math.inf

        async def bounded(broker: BrokerId) -> BrokerSample | str:
            nonlocal checked_s
            async with parallel:
                began_s = time.monotonic()
                try:
                    return await self._sample(cluster, broker)
                except NotPulsar:
                    self._former.pop(broker, None)
                    raise
                except Unanswered:
                    async with checking:
                        if await self.admin.waited(max(began_s, checked_s), urls):
                            checked_s = time.monotonic()
                    raise

        answers, missing = await ask_each(cluster.brokers, bounded)
        for gone in self._former.keys() - set(cluster.brokers):
            del self._former[gone]
        missing |= {name: one for name, one in answers.items() if isinstance(one, str)}
        return {name: one for name, one in answers.items() if not isinstance(one, str)}, missing

    async def _sample(self, cluster: PulsarCluster, broker: BrokerId) -> BrokerSample | str:
        url, former = self.address(broker), self._former.get(broker)
        seen = await read_exposition(self.admin.lines(f"{url}/metrics/"))
        # A broker whose last bundle left counts none of its topics either.
        before = former.owned if former and seen.topics else ()
        owned = await read_owned(self.admin, url, cluster.name, broker, before)
        if former and former.seen.topics and not seen.topics and former.served.intersection(owned):
            count = len(former.seen.topics)
            raise NotPulsar(f"{url}/metrics/: counts no topic; expected about {count:,}, as before")
        buffers = cluster.settings.get(broker, {}).get(BUFFERS) == "true"
        now = seen.moment
        reading = _Reading(
            seen=seen,
            read=now,
            changed=now,
            ahead_s=math.inf if now.clock_s is None else now.at_s - now.clock_s,
            first=former is None,
            owned=owned,
            served=set(owned),
        )
        if former is None:
            self._former[broker] = reading
            return "its second reading is not there yet"
        restarted = _restarted(former.seen, seen)
        counts = any(one.msgs_in or one.out for one in seen.topics.values())
        still = not restarted and seen.topics == former.seen.topics and counts
        if still and _repeats(former, seen, buffers=buffers):
            former.read, former.owned = now, owned
            if former.sample is None:
                return REPEATED
            bundles = {one: former.sample.bundles.get(one, _UNKNOWN) for one in owned}
            age_s = now.at_s - former.changed.at_s
            return replace(former.sample, bundles=bundles, restarted=False, repeated_s=age_s)
        self._former[broker] = reading
        undated = former.first and now.clock_s is None
        if undated and not still and (buffers or former.read != former.changed):
            return REPEATED
        if not restarted:
            reading.ahead_s = min(reading.ahead_s, former.ahead_s)
        began = former.read
        if still and not buffers and now.clock_s is None:
            reading.changed = former.changed
        elif began.at_s - former.changed.at_s <= LONGEST_REPEATED_S:
            began = former.changed
        sample = _sampled(former, reading, began, restarted=restarted)
        if self.hosts is not None:
            host = await self.hosts.measured(self.admin, url, cluster, seen)
            host = self.hosts.completed(broker, host, sample.cpu_cores, sample.window_s)
            sample = replace(sample, host=host)
        reading.sample = sample
        return sample


def _repeats(former: _Reading, seen: Exposition, *, buffers: bool) -> bool:
    """Return whether a page with the same counters is the same page, or old in part."""
    if seen.clock_s is not None and former.seen.clock_s is not None:
        return seen.clock_s == former.seen.clock_s
    if seen.at_s - former.changed.at_s > LONGEST_REPEATED_S:
        return False
    if buffers or seen.cpu_seconds == former.seen.cpu_seconds is not None:
        return seen.cpu_seconds == former.seen.cpu_seconds
    return former.sample is not None and former.sample.total.msgs_per_s > 0


def _sampled(
    former: _Reading, reading: _Reading, began: Moment, *, restarted: bool
) -> BrokerSample:
    before, seen = former.seen, reading.seen
    window_s = max(seen.moment.since(began), _LEAST_S)
    took_s = max(seen.moment.since(before.moment), _LEAST_S)
    if restarted:
        before = Exposition(totals=(0.0, 0.0))
        window_s = min(window_s, seen.clock_s or window_s)
    grew = None
    if before.totals is not None and seen.totals is not None:
        grew = seen.totals[0] - before.totals[0], seen.totals[1] - before.totals[1]
    window = between(before.topics, seen.topics, window_s, grew)
    counted, homeless = bundle_traffic(reading.owned, window)
    served = () if restarted else former.served
    reading.served = {one for one, traffic in counted.items() if traffic.topics}
    reading.came = {one for one in reading.served if counted[one].partial and one not in served}
    bundles = dict(counted)
    for one in reading.served.intersection((*reading.came, *former.came)):
        bundles[one] = replace(bundles[one], partial=True)
    cpu_cores = None
    if before.cpu_seconds is not None and seen.cpu_seconds is not None:
        cpu_cores = max(seen.cpu_seconds - before.cpu_seconds, 0.0) / took_s
    return BrokerSample(
        window_s=window_s,
        bundles=bundles,
        topics=window.rates,
        usages=seen.usages,
        cpu_cores=cpu_cores,
        homeless=replace(
            homeless, bytes_out_per_s=homeless.bytes_out_per_s + window.uncounted_bytes_per_s
        ),
        began_s=min(seen.at_s, reading.ahead_s + (seen.clock_s or 0.0)) - window_s,
        restarted=restarted,
    )


def _restarted(before: Exposition, now: Exposition) -> bool:
    if before.started_s is not None and now.started_s is not None:
        return now.started_s != before.started_s
    return (before.cpu_seconds or 0.0) > (now.cpu_seconds or math.inf)


@dataclass
class SampledLoads:
    """Loads over one controller's term, with one sample of each bundle per window.

    With ``of_windows`` the usage of CPU is that of the broker's process in the window, where it is
    known. A broker above the mean by traffic that passes takes no bundle meanwhile. The start time
    of a broker is that of its first sample, or of the first after a restart. ``left`` are brokers
    with a report before the last window and none in it.
    """

    address: Callable[[BrokerId], str]
    weights: ResourceWeights = field(default_factory=ResourceWeights)
    of_windows: bool = False
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic_s: Callable[[], float] = time.monotonic
    taken: Mapping[BrokerId, LoadReport] = field(default_factory=dict)
    left: frozenset[BrokerId] = frozenset()
    at_ms: int = 0
    now_s: float = 0.0
    ticks: int = 0
    _former: dict[BrokerId, LoadReport] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tracker = LoadTracker(weights=self.weights)

    def take(self, cluster: PulsarCluster, samples: Mapping[BrokerId, BrokerSample]) -> None:
        """Count a window; a broker without a sample counts as having left."""
        self.at_ms, self.now_s = self.wall_ms(), self.monotonic_s()
        self.left = self.tracker.brokers - samples.keys()
        for gone in self.left:
            self.tracker.forget(gone, self.now_s)
        for inactive in self._former.keys() - set(cluster.brokers):
            del self._former[inactive]
        full = _full_for_now(samples)
        self.taken = {
            broker: self._report(
                cluster, broker, sample, takes=broker not in full and broker not in cluster.cordoned
            )
            for broker, sample in samples.items()
        }
        self._former.update(self.taken)
        for report in self.taken.values():
            self.tracker.report(report, self.now_s)
        self.tracker.sample()
        self.ticks += 1

    def _report(
        self, cluster: PulsarCluster, broker: BrokerId, sample: BrokerSample, *, takes: bool
    ) -> LoadReport:
        former = None if sample.restarted else self._former.get(broker)
        before = frozenset() if former is None else former.bundles.keys()
        return LoadReport(
            broker=broker,
            urls=BrokerUrls(http_url=self.address(broker)),
            started_at_ms=self.at_ms if former is None else former.started_at_ms,
            version=cluster.version,
            reported_at_ms=self.at_ms,
            # No broker may be given a bundle that it cannot serve; it gives as any other.
            persistent_topics=takes,
            **self._usages(sample),
            bundles={
                bundle: _IDLE if one is NO_TRAFFIC else one.stats().rounded()
                for bundle, one in sample.bundles.items()
            },
            gains=frozenset(sample.bundles.keys() - before),
            losses=frozenset(before - sample.bundles.keys()),
            draining=broker in cluster.draining,
        )

    def _usages(self, sample: BrokerSample) -> dict[str, Any]:
        usages = {} if sample.host is None else dict(sample.host.usages)
        if self.of_windows and sample.window_cpu is not None:
            usages["cpu"] = sample.window_cpu
        if usages or sample.cpu_cores is None:
            return usages
        return {"cpu": ResourceUsage(_PERCENT * sample.cpu_cores, 0.0)}

    def view(self, policies: Policies, due: Mapping[BundleId, BrokerId]) -> ClusterView:
        return self.tracker.view(self.now_s, in_flight=due, policies=policies)


def _full_for_now(samples: Mapping[BrokerId, BrokerSample]) -> set[BrokerId]:
    full: set[BrokerId] = set()
    if not samples:
        return full
    for size in ("msgs_per_s", "bytes_per_s"):
        lasting = np.array([getattr(one.total, size) for one in samples.values()], dtype=float)
        whole = lasting + [getattr(one.passing, size) for one in samples.values()]
        above = (whole > TOLERANCE * whole.mean()) & ~(lasting > TOLERANCE * lasting.mean())
        full.update(broker for broker, one in zip(samples, above, strict=True) if one)
    return full

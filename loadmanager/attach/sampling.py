import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from loadmanager.adapters.pulsar_admin import NotPulsar, PulsarAdmin, PulsarAdminError
from loadmanager.adapters.pulsar_admin.exposition import Exposition, read_exposition
from loadmanager.adapters.pulsar_admin.ownership import read_owned
from loadmanager.attach.discovery import PulsarCluster, ask_each
from loadmanager.core.bundle_traffic import BundleTraffic, between, bundle_traffic
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import ResourceUsage
from loadmanager.core.rates import Rates, total

_PERCENT: Final = 100.0
_RESOURCES: Final = (
    ("cpu", "cpu", "cpu"),
    ("memory", "memory", "memory"),
    ("direct_memory", "directMemory", "directMemory"),
    ("bandwidth_in", "bandwidth_in", "bandwidthIn"),
    ("bandwidth_out", "bandwidth_out", "bandwidthOut"),
)
"""The core's name of each resource, and its names in metrics and in load reports."""

_MOST: Final = 1e12
_INTERVALS_BACK: Final = 2.0
_START_INTERVALS: Final = 2.5
"""Intervals after a broker's start within which its measurements may include the start."""

_LEAST_PERCENT: Final = 1e-4
"""Less than any Java process uses of a host over an interval.

A broker of 4.0.7 reports about 1e-7 percent until its first interval is over.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures:
    """Resource usage of one broker's host, from the first of three sources that reports it.

    The load report of the modular load manager has usage and limit of each resource; the metrics
    of the extensible one have percentages. Both are measured once per interval (by default a
    minute), so they may cover a period that began two intervals ago. If a broker reports neither,
    the CPU time of its process is used, which has no limit unless ``--cores`` is set.

    ``age_s`` is the age, when read, that the start of the measured period may have. ``unknown`` is
    why CPU usage is unknown, and ``pending`` whether the broker's next measurements will show it.
    """

    usages: Mapping[str, ResourceUsage] = field(default_factory=dict)
    age_s: float = 0.0
    unknown: str = ""
    pending: bool = False


@dataclass(frozen=True, slots=True)
class Hosts:
    """Reads host usage; ``cores`` is the CPU limit of brokers that report only their CPU time."""

    cores: float | None = None

    async def measured(
        self, admin: PulsarAdmin, url: str, cluster: PulsarCluster, seen: Exposition
    ) -> HostFigures:
        age_s = _INTERVALS_BACK * cluster.host_interval_s
        refused = f"the {cluster.manager} load manager has no load report"
        if cluster.manager != "extensible":
            try:
                reported = await read_host_usage(admin, url)
            except PulsarAdminError as error:
                refused = str(error)
            else:
                if "cpu" in reported:
                    return _steady(reported, seen, age_s)
                refused = "its load report has no usage and limit of CPU"
        usages = {
            ours: ResourceUsage(seen.usages[name], _PERCENT)
            for ours, name, _ in _RESOURCES
            if name in seen.usages
        }
        if "cpu" in usages:
            return _steady(usages, seen, age_s)
        return HostFigures(unknown=f"{refused}, and its metrics have no pulsar_lb_cpu_usage")

    def completed(
        self, measured: HostFigures, cpu_cores: float | None, window_s: float
    ) -> HostFigures:
        """Return ``measured``, or usage by the process's CPU time within a window if unknown."""
        if not measured.unknown or (measured.pending and self.cores is None):
            return measured
        if cpu_cores is None:
            return HostFigures(unknown=f"{measured.unknown} or process_cpu_seconds_total")
        if self.cores is None:
            why = f"{measured.unknown}; process_cpu_seconds_total has no limit without --cores"
            return HostFigures(unknown=why)
        cpu = ResourceUsage(_PERCENT * cpu_cores, _PERCENT * self.cores)
        return HostFigures(usages={"cpu": cpu}, age_s=window_s)


def _steady(usages: Mapping[str, ResourceUsage], seen: Exposition, age_s: float) -> HostFigures:
    """Return what a load manager reported, or pending if it may include the broker's start."""
    if usages["cpu"].usage < _LEAST_PERCENT:
        return HostFigures(unknown="its load manager has not measured its CPU yet", pending=True)
    start_s = _START_INTERVALS / _INTERVALS_BACK * age_s
    if seen.started_s is not None and time.time_ns() / 1e9 - seen.started_s < start_s:
        why = f"it began less than {start_s:g} s ago, which takes more than its traffic does"
        return HostFigures(unknown=why, pending=True)
    return HostFigures(usages=usages, age_s=age_s)


async def read_host_usage(admin: PulsarAdmin, url: str) -> Mapping[str, ResourceUsage]:
    """Raises `PulsarAdminError`: the broker has no such report, or refuses to return it."""
    where = f"{url}/admin/v2/broker-stats/load-report"
    answer = await admin.json(where)
    if not isinstance(answer, dict):
        raise NotPulsar(f"{where}: expected the load report of a Pulsar broker")
    found = {ours: _usage(answer.get(name)) for ours, _, name in _RESOURCES}
    return {name: usage for name, usage in found.items() if usage is not None}


def _usage(value: Any) -> ResourceUsage | None:
    """Return one resource, None if its limit is unknown, which Pulsar reports as 0 or -1."""
    if not isinstance(value, dict):
        return None
    usage, limit = _number(value.get("usage")), _number(value.get("limit"))
    return ResourceUsage(usage, limit) if usage is not None and limit else None


def _number(value: Any) -> float | None:
    """Return a number from 0 to 1e12, which no host reaches; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if 0 <= value <= _MOST else None


_PARALLEL = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSample:
    """One broker over one window, of the length ``window_s``.

    ``bundles`` are those that it served at the end. ``usages`` are in percent, as its load manager
    last measured them; ``cpu_cores`` is of its process, None if unknown, as after a restart.
    ``homeless_topics`` counts topics with counters that are in none of its bundles. ``began_s`` is
    on the monotonic clock of this process. ``host`` is None if the strategy needs none.
    """

    window_s: float
    bundles: Mapping[BundleId, BundleTraffic]
    topics: Mapping[str, Rates] = field(default_factory=dict)
    usages: Mapping[str, float] = field(default_factory=dict)
    cpu_cores: float | None = None
    homeless_topics: int = 0
    began_s: float = 0.0
    restarted: bool = False
    host: HostFigures | None = None

    @property
    def total(self) -> Rates:
        return total(self.bundles.values())

    @property
    def topics_in_bundles(self) -> int:
        return sum(one.topics for one in self.bundles.values())

    @property
    def shows_since_s(self) -> float:
        """Start of the period that traffic and host usage cover, on the clock of ``began_s``."""
        if self.host is None:
            return self.began_s
        return min(self.began_s, self.began_s + self.window_s - self.host.age_s)


@dataclass(slots=True)
class Sampler:
    """Reads all brokers repeatedly; a window lies between two readings of a broker.

    ``hosts`` also reads the usage of their hosts; with None it is not read.
    """

    admin: PulsarAdmin
    address: Callable[[BrokerId], str]
    hosts: Hosts | None = None
    _former: dict[BrokerId, tuple[float, Exposition]] = field(default_factory=dict)

    async def sample(
        self, cluster: PulsarCluster
    ) -> tuple[Mapping[BrokerId, BrokerSample], Mapping[BrokerId, str]]:
        parallel = asyncio.Semaphore(_PARALLEL)

        async def bounded(broker: BrokerId) -> BrokerSample | None:
            async with parallel:
                return await self._sample(cluster, broker)

        answers, missing = await ask_each(cluster.brokers, bounded)
        for gone in self._former.keys() - answers.keys():
            del self._former[gone]
        samples = {broker: one for broker, one in answers.items() if one is not None}
        first = [broker for broker in answers if broker not in samples]
        return samples, {**missing, **dict.fromkeys(first, "its second reading is not there yet")}

    async def _sample(self, cluster: PulsarCluster, broker: BrokerId) -> BrokerSample | None:
        url = self.address(broker)
        seen = await read_exposition(self.admin.lines(f"{url}/metrics/"))
        at_s = monotonic()
        owned = await read_owned(self.admin, url, cluster.name, broker)
        host = None
        if self.hosts is not None:
            host = await self.hosts.measured(self.admin, url, cluster, seen)
        former, self._former[broker] = self._former.get(broker), (at_s, seen)
        if former is None:
            return None
        began_s, before = former
        window_s = max(at_s - began_s, 1e-3)
        window = between(before.topics, seen.topics, window_s)
        bundles, homeless = bundle_traffic(owned, window)
        then, now = before.cpu_seconds, seen.cpu_seconds
        counted = None if then is None or now is None else now - then
        # A restarted process has counted less than the one before.
        restarted = counted is not None and counted < 0
        cpu_cores = None if counted is None or restarted else counted / window_s
        if self.hosts is not None and host is not None:
            host = self.hosts.completed(host, cpu_cores, window_s)
        return BrokerSample(
            window_s=window_s,
            bundles=bundles,
            topics=window.rates,
            usages=seen.usages,
            cpu_cores=cpu_cores,
            homeless_topics=homeless,
            began_s=began_s,
            restarted=restarted,
            host=host,
        )

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from loadmanager.adapters.pulsar_admin import NotPulsar, PulsarAdmin, PulsarAdminError
from loadmanager.adapters.pulsar_admin.exposition import Exposition
from loadmanager.attach.discovery import PulsarCluster
from loadmanager.core.ids import BrokerId
from loadmanager.core.load import ResourceUsage

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
_MOST_OFF: Final = 0.1
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
    ``cpu_limit`` is that of the broker in percent of a core, 0 if unknown. ``distrusted`` is why
    the CPU time of the process takes the place of what was reported, "" if it does not.
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

    Reported CPU usage is compared with the CPU time of the broker's process: Pulsar 2.10 to 3.0
    divide the use of the whole host by the limit of the container. Where it was further than a
    tenth of the limit from every value of the last ``windows`` or more, which cover the period
    that the report may be of, CPU time is used.
    """

    cores: float | None = None
    windows: int = 3
    _counted: dict[BrokerId, deque[tuple[float, float]]] = field(default_factory=dict)

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
                    found = _steady(reported, seen, age_s)
                    return replace(found, cpu_limit=reported["cpu"].limit)
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
        self, broker: BrokerId, measured: HostFigures, cpu_cores: float | None, window_s: float
    ) -> HostFigures:
        """Return ``measured``, with usage by the process's CPU time if unknown or wrong."""
        if not measured.unknown:
            return self._checked(broker, measured, cpu_cores)
        if measured.pending and self.cores is None:
            return measured
        if cpu_cores is None:
            return HostFigures(unknown=f"{measured.unknown} or process_cpu_seconds_total")
        if self.cores is None:
            why = f"{measured.unknown}; process_cpu_seconds_total has no limit without --cores"
            return HostFigures(unknown=why)
        cpu = ResourceUsage(_PERCENT * cpu_cores, _PERCENT * self.cores)
        return HostFigures(usages={"cpu": cpu}, age_s=window_s)

    def _checked(
        self, broker: BrokerId, measured: HostFigures, cpu_cores: float | None
    ) -> HostFigures:
        limit = measured.cpu_limit if self.cores is None else _PERCENT * self.cores
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
        why = (
            f"its load manager reports {said / limit:.0%} of {limit / _PERCENT:g} cores, and its "
            f"process takes {used[-1] / limit:.0%}"
        )
        usages = {**measured.usages, "cpu": ResourceUsage(used[-1], limit)}
        return replace(measured, usages=usages, distrusted=why)


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
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST else None

"""The host probe: measures each resource separately, so that a fault affects only one."""

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import structlog

from loadmanager.adapters.host.processes import (
    Cgroup,
    Level,
    Neighbours,
    ProcessTree,
    Sharing,
    TreeUsage,
    Unreadable,
    WholeHost,
    find_cgroup,
    read_int,
    read_text,
    tightest,
)
from loadmanager.config.sections import HostSettings
from loadmanager.core.load import HostUsage, ResourceUsage

_ETHERNET: Final = 1
_IN_USE: Final = {"up", "unknown", "dormant"}
_ONE_AT_A_TIME: Final = {"active-backup", "broadcast"}
"""Modes of bonds with the capacity of one member: it sends alone, or all send the same."""


@dataclass(frozen=True, slots=True)
class Traffic:
    nics: tuple[str, ...]
    received_bytes: int
    sent_bytes: int


class Nics:
    def __init__(self, sys_root: Path) -> None:
        self._devices = sys_root
        self._folder = sys_root / "class" / "net"

    def physical(self) -> tuple[str, ...]:
        """Return the hardware interfaces that are in use.

        The links of ``class/net`` are resolved before the path is searched for ``virtual``, because
        an unresolved veth looks like hardware. Of a bond, its members are returned, or the one in
        use if only one is at a time. An interface below another one of hardware is left out, such
        as a virtual function of Azure: the upper one counts its traffic and has its speed. Raises
        `Unreadable`: there is no sysfs.
        """
        try:
            names = sorted(entry.name for entry in self._folder.iterdir())
        except OSError as error:
            raise Unreadable(self._folder, error.strerror or type(error).__name__) from error
        used = [name for name in names if self._is_hardware(name) and self._in_use(name)]
        return tuple(name for name in used if self._counts(name, used))

    def _counts(self, nic: str, used: Sequence[str]) -> bool:
        for upper in self._uppers(nic):
            if upper in used:
                return False
            bond = self._folder / upper / "bonding"
            if _first_word(bond / "mode") in _ONE_AT_A_TIME:
                members = [one for one in used if upper in self._uppers(one)]
                return nic == (_first_word(bond / "active_slave") or members[0])
        return True

    def _uppers(self, nic: str) -> set[str]:
        """Return the interfaces that stand on one, such as its bond."""
        above = {one.name.removeprefix("upper_") for one in (self._folder / nic).glob("upper_*")}
        master = self._folder / nic / "master"
        return above | ({master.resolve().name} if master.is_symlink() else set())

    def traffic(self, nics: Sequence[str]) -> Traffic:
        """Raises `Unreadable`: one of them has no counters."""
        counters = [self._folder / nic / "statistics" for nic in nics]
        return Traffic(
            tuple(nics),
            sum(read_int(counter / "rx_bytes") for counter in counters),
            sum(read_int(counter / "tx_bytes") for counter in counters),
        )

    def speed_mbit_per_s(self, nic: str) -> int:
        """Raises `Unreadable`: without one speed the host would look fuller than it is."""
        path = self._folder / nic / "speed"
        # A bond, bridge or VLAN has the speed of the interfaces below.
        stands_on_others = any((self._folder / nic).glob("lower_*"))
        if not self._is_hardware(nic) and not stands_on_others:
            # A veth reports 10 Gbit/s, whatever it is connected to.
            raise Unreadable(path, "a virtual interface has no speed of its own")
        speed = read_int(path)
        if speed <= 0:
            raise Unreadable(path, f"{speed} is no speed")
        return speed

    def _is_hardware(self, nic: str) -> bool:
        try:
            device, root = (self._folder / nic).resolve(), self._devices.resolve()
        except (OSError, RuntimeError) as error:
            raise Unreadable(self._folder / nic, str(error)) from error
        below = device.relative_to(root) if device.is_relative_to(root) else device
        return "virtual" not in below.parts

    def _in_use(self, nic: str) -> bool:
        try:
            kind = read_int(self._folder / nic / "type")
            state = read_text(self._folder / nic / "operstate")
        except Unreadable:
            # Not an interface, such as the file bonding_masters, or one that was just removed.
            return False
        return kind == _ETHERNET and state in _IN_USE


def _first_word(path: Path) -> str:
    try:
        return next(iter(read_text(path).split()), "")
    except Unreadable:
        return ""


class Rate:
    def __init__(self) -> None:
        self._source: Hashable = None
        self._at_s = 0.0
        self._count: float | None = None

    def per_s(self, count: float, at_s: float, source: Hashable) -> float | None:
        """Return the mean rate since the last reading of the same source.

        None at the first reading, if the clock did not advance, and if the counter decreased,
        which means that it was reset. In each case the reading starts the next window.
        """
        before, since_s = self._count, at_s - self._at_s
        comparable = source == self._source
        self._source, self._at_s, self._count = source, at_s, count
        if before is None or not comparable or since_s <= 0 or count < before:
            return None
        return (count - before) / since_s


log = structlog.get_logger()

T = TypeVar("T")

_MIB: Final = 1024 * 1024
_PERCENT_PER_CORE: Final = 100.0
_KBIT_PER_BYTE: Final = 8 / 1000
_KBIT_PER_MBIT: Final = 1000.0

# Counters and clock are not read at the same time, so a full resource may slightly exceed its
# limit. An excess of this factor means that usage and limit do not belong together, such as a CPU
# set with the host's counters, or the wrong speed of an interface.
_IMPOSSIBLE_FRACTION: Final = 1.5


class PsutilHostProbe:
    """Measures CPU, memory and network of the scope that ``[host]`` names.

    ``sample`` must be called from one thread. A fault is logged once for each resource, and
    again only when its reason changes.
    """

    def __init__(
        self, settings: HostSettings, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock_s = clock_s
        proc_root = Path(settings.proc_root)
        self._host = WholeHost(proc_root)
        self._tree = ProcessTree(proc_root)
        self._neighbours = Neighbours(proc_root)
        self._sharing: Sharing | None = None
        self._nics = Nics(Path(settings.sys_root))
        self._sampled_at_s: float | None = None
        self._cpu_rate, self._in_rate, self._out_rate = Rate(), Rate(), Rate()
        self._logged: dict[str, str] = {}

    def sample(
        self,
        *,
        broker_process_id: int | None = None,
        broker_port: int = 0,
        neighbour_ports: Collection[int] = (),
    ) -> HostUsage:
        """Return the usage since the last call; rates are None at the first.

        ``neighbour_ports`` are those of other brokers that are registered with the same host name:
        they may run on this host, too. What cannot be read leaves its resource None.
        The cgroup is that of ``broker_process_id``, or of this process without it. With scope
        ``process`` usage is unknown without it. With scope ``auto``, and other brokers in the
        same cgroup, usage is that of the broker's process tree, and its limit an equal part of
        the shared capacity.
        """
        now_s = self._clock_s()
        window_s = 0.0 if self._sampled_at_s is None else max(0.0, now_s - self._sampled_at_s)
        self._sampled_at_s = now_s
        self._sharing = None
        if self._settings.scope == "auto" and neighbour_ports:
            self._sharing = self._neighbours.find(
                broker_process_id, broker_port, neighbour_ports, now_s
            )
        if self._sharing is not None:
            cpu, memory = self._process(self._sharing.process_id, now_s)
        elif self._settings.scope == "process":
            cpu, memory = self._process(broker_process_id, now_s)
        else:
            cpu = self._known("cpu", lambda: self._cpu(broker_process_id, now_s))
            memory = self._known("memory", lambda: self._memory(broker_process_id))
        received, sent = self._network(now_s)
        found = {"cpu": cpu, "memory": memory, "bandwidth_in": received, "bandwidth_out": sent}
        for resource, usage in found.items():
            self._flag(resource, usage)
        return HostUsage(window_s=window_s, **found)

    # --- CPU and memory of a cgroup or the host ---------------------------------------

    def _cpu(self, process_id: int | None, now_s: float) -> ResourceUsage | None:
        host_cores = self._host.cores()
        cgroup = self._cgroup(process_id)
        levels = cgroup.cpu_levels() if cgroup is not None else ()
        level = self._scope(levels, host_cores)
        if cgroup is None or level is None:
            rate = self._cpu_rate.per_s(self._host.cpu_used_s(), now_s, "host")
            cores = float(host_cores)
        else:
            rate = self._cpu_rate.per_s(cgroup.cpu_used_s(level), now_s, level.path)
            cores = min(level.limit or host_cores, host_cores)
        return self._cpu_usage(rate, self._settings.cores or cores)

    def _cpu_usage(self, used_per_s: float | None, cores: float) -> ResourceUsage | None:
        if used_per_s is None:
            return None
        return ResourceUsage(_PERCENT_PER_CORE * used_per_s, _PERCENT_PER_CORE * cores)

    def _memory(self, process_id: int | None) -> ResourceUsage:
        used, total = self._host.memory_bytes()
        limit = float(total)
        cgroup = self._cgroup(process_id)
        levels = cgroup.memory_levels() if cgroup is not None else ()
        level = self._scope(levels, total)
        if cgroup is not None and level is not None:
            used = cgroup.memory_used_bytes(level)
            limit = min(level.limit or total, total)
        return ResourceUsage(used / _MIB, self._settings.memory_limit_mib or limit / _MIB)

    def _cgroup(self, process_id: int | None) -> Cgroup | None:
        """Raises `Unreadable`: the scope is ``cgroup`` and there is none."""
        if self._settings.scope == "host":
            return None
        root = Path(self._settings.cgroup_root)
        found = find_cgroup(root, Path(self._settings.proc_root), process_id)
        if found is None and self._settings.scope == "cgroup":
            raise Unreadable(root, "no cgroup is mounted, but [host] scope is cgroup")
        return found

    def _scope(self, levels: Sequence[Level], host_has: float) -> Level | None:
        """Raises `Unreadable`: the scope is ``cgroup``, and no group counts the resource."""
        level = tightest(levels, host_has)
        if level is not None or self._settings.scope != "cgroup":
            return level
        if not levels:
            raise Unreadable(self._settings.cgroup_root, "no such controller is mounted")
        return levels[0]

    # --- a process tree ---------------------------------------------------------------

    def _process(
        self, process_id: int | None, now_s: float
    ) -> tuple[ResourceUsage | None, ResourceUsage | None]:
        tree = self._known("process", lambda: self._tree_usage(process_id))
        if tree is None:
            return None, None
        rate = self._cpu_rate.per_s(tree.cpu_s, now_s, tree.root)
        cpu = self._known("cpu", lambda: self._cpu_usage(rate, self._tree_cores(process_id)))
        return cpu, self._known("memory", lambda: self._tree_memory(tree, process_id))

    def _tree_cores(self, process_id: int | None) -> float:
        if self._settings.cores or self._sharing is None:
            return self._settings.cores or 0.0
        cgroup = self._cgroup(process_id)
        return _shared(cgroup.cpu_levels() if cgroup else (), self._host.cores(), self._sharing)

    def _tree_usage(self, process_id: int | None) -> TreeUsage:
        if process_id is None:
            raise Unreadable("broker", "its process id is not known")
        return self._tree.usage(process_id)

    def _tree_memory(self, tree: TreeUsage, process_id: int | None) -> ResourceUsage:
        total: float = self._host.memory_bytes()[1]
        if self._sharing is not None:
            cgroup = self._cgroup(process_id)
            total = _shared(cgroup.memory_levels() if cgroup else (), total, self._sharing)
        limit = self._settings.memory_limit_mib or total / _MIB
        return ResourceUsage(tree.resident_bytes / _MIB, limit)

    # --- network ----------------------------------------------------------------------

    def _network(self, now_s: float) -> tuple[ResourceUsage | None, ResourceUsage | None]:
        nics = self._known("network interfaces", self._counted_nics)
        traffic = self._known("network traffic", lambda: self._nics.traffic(nics)) if nics else None
        if traffic is None:
            return None, None
        speed = self._settings.nic_speed_mbit_per_s or self._known(
            "network speed", lambda: sum(map(self._nics.speed_mbit_per_s, traffic.nics))
        )
        limit = (speed or 0.0) * _KBIT_PER_MBIT
        rate_in = self._in_rate.per_s(traffic.received_bytes, now_s, traffic.nics)
        rate_out = self._out_rate.per_s(traffic.sent_bytes, now_s, traffic.nics)
        return _bandwidth(rate_in, limit), _bandwidth(rate_out, limit)

    def _counted_nics(self) -> tuple[str, ...]:
        if self._settings.nics or self._settings.scope == "process" or self._sharing:
            return self._settings.nics
        if not (found := self._nics.physical()):
            raise Unreadable("network", "no physical interface is in use; name some as [host] nics")
        return found

    # --- reporting of faults -----------------------------------------------------------

    def _known(self, resource: str, measure: Callable[[], T]) -> T | None:
        try:
            found = measure()
        except Unreadable as error:
            if self._logged.get(resource) != str(error):
                self._logged[resource] = str(error)
                log.warning("host.resource.unknown", resource=resource, reason=str(error))
            return None
        if self._logged.pop(resource, None) is not None:
            log.info("host.resource.known", resource=resource)
        return found

    def _flag(self, resource: str, usage: ResourceUsage | None) -> None:
        """Log an impossible usage once; it is reported, because hiding it would hide the fault."""
        key = f"{resource} above limit"
        if not usage or (usage.fraction or 0.0) <= _IMPOSSIBLE_FRACTION or key in self._logged:
            return
        self._logged[key] = ""
        log.warning(
            "host.usage.impossible", resource=resource, usage=usage.usage, limit=usage.limit
        )


def _shared(levels: Sequence[Level], host_has: float, sharing: Sharing) -> float:
    level = tightest(levels, host_has)
    return ((level and level.limit) or host_has) / sharing.brokers


def _bandwidth(bytes_per_s: float | None, limit_kbit_per_s: float) -> ResourceUsage | None:
    if bytes_per_s is None:
        return None
    return ResourceUsage(bytes_per_s * _KBIT_PER_BYTE, limit_kbit_per_s)

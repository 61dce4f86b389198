"""Processes and control groups of this host: what they use, where they listen, files to open."""

import resource
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import structlog

from loadmanager.core.errors import LoadManagerError


class Unreadable(LoadManagerError):
    """A counter or limit cannot be read. The usage of its resource is unknown for now."""

    def __init__(self, where: Path | str, why: str) -> None:
        super().__init__(f"{where}: {why}")


def read_text(path: Path) -> str:
    """Raises `Unreadable`: also for EINVAL, as for the speed of a virtual network interface."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise Unreadable(path, error.strerror or type(error).__name__) from error


def is_there(path: Path) -> bool:
    """Return whether a file or folder exists; False also without permission to look."""
    try:
        return path.exists()
    except OSError:
        return False


def read_if_present(path: Path) -> str | None:
    """Raises `Unreadable`: it exists, but cannot be read."""
    return read_text(path) if is_there(path) else None


def read_int(path: Path) -> int:
    return as_int(read_text(path), path)


def as_int(text: str, path: Path) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise Unreadable(path, f"{text[:40]!r} is no whole number") from error


def read_entry(path: Path, name: str) -> int:
    """Raises `Unreadable`: the file cannot be read or has no such line."""
    for line in read_text(path).splitlines():
        key, _, number = line.partition(" ")
        if key == name:
            return as_int(number, path)
    raise Unreadable(path, f"has no line {name}")


def count_cpus(text: str, path: Path) -> int | None:
    """Count a list such as ``0-3,8``, None if empty. Raises `Unreadable`: it is no such list."""
    total = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        total += as_int(last or first, path) - as_int(first, path) + 1
    return total or None


_ProcessKey = tuple[int, float]

_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class _CpuTime:
    own_s: float
    with_reaped_s: float


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """``cpu_s`` grows from one call to the next while ``root`` stays the same."""

    root: _ProcessKey
    cpu_s: float
    resident_bytes: int


class ProcessTree:
    """Sums up the usage of a tree whose processes start and end.

    The time of a child that ended and was reaped is in its parent's counter of children, so the
    sum of both counters over the tree includes it. The time of a child that was not reaped, or
    left the tree, is lost, and the sum falls; then only the time of the remaining and new
    processes themselves is added, which is certain. So the total never decreases.
    """

    def __init__(self, proc_root: Path) -> None:
        self._proc_root = proc_root
        self._root: _ProcessKey | None = None
        self._before: Mapping[_ProcessKey, _CpuTime] = {}
        self._cpu_s = 0.0

    def usage(self, process_id: int) -> TreeUsage:
        """Raises `Unreadable`: there is no such process."""
        with procfs(self._proc_root):
            try:
                key, times, resident = _consistent(process_id)
            except (psutil.Error, OSError) as error:
                gone = isinstance(error, psutil.NoSuchProcess)
                why = "no such process" if gone else str(error)
                raise Unreadable(f"process {process_id}", why) from error
        if key == self._root:
            self._cpu_s += _used_since(self._before, times)
        else:
            self._root, self._cpu_s = key, 0.0
        self._before = times
        return TreeUsage(key, self._cpu_s, resident)


def _consistent(process_id: int) -> tuple[_ProcessKey, dict[_ProcessKey, _CpuTime], int]:
    """Measure the tree, and repeat it if a process ended in the meantime.

    Parents are read before their children. The time of a child that ended between the two would
    be in neither reading, and would look like new time at the next call.
    """
    root = psutil.Process(process_id)
    key = (root.pid, root.create_time())
    for _ in range(_TRIES):
        times, resident, complete = _measured([root, *root.children(recursive=True)])
        if complete:
            break
    if key not in times:
        raise psutil.NoSuchProcess(process_id)
    return key, times, resident


def _measured(
    processes: list[psutil.Process],
) -> tuple[dict[_ProcessKey, _CpuTime], int, bool]:
    times: dict[_ProcessKey, _CpuTime] = {}
    resident = 0
    for process in processes:
        try:
            with process.oneshot():
                cpu = process.cpu_times()
                rss = process.memory_info().rss
        except psutil.Error:
            continue
        own_s = cpu.user + cpu.system
        reaped_s = cpu.children_user + cpu.children_system
        times[process.pid, process.create_time()] = _CpuTime(own_s, own_s + reaped_s)
        resident += rss
    return times, resident, len(times) == len(processes)


def _used_since(
    before: Mapping[_ProcessKey, _CpuTime], now: Mapping[_ProcessKey, _CpuTime]
) -> float:
    none = _CpuTime(0.0, 0.0)
    certain_s = sum(time.own_s - before.get(key, none).own_s for key, time in now.items())
    with_reaped_s = sum(t.with_reaped_s for t in now.values()) - sum(
        t.with_reaped_s for t in before.values()
    )
    return max(certain_s, with_reaped_s, 0.0)


@contextmanager
def procfs(proc_root: Path) -> Iterator[None]:
    """Make psutil read procfs at ``proc_root``, which is one setting for the whole process.

    The block must not await, so that no other task sees the changed setting.
    """
    before = psutil.PROCFS_PATH
    psutil.PROCFS_PATH = str(proc_root)
    try:
        yield
    finally:
        psutil.PROCFS_PATH = before


# Errors that psutil does not catch when a file is missing or of an unknown form.
_UNPARSABLE: Final = (OSError, ValueError, LookupError, TypeError)


class WholeHost:
    """CPU and memory of a host, by all its processes, from procfs. Raises `Unreadable`."""

    def __init__(self, proc_root: Path) -> None:
        self._proc_root = proc_root

    def cores(self) -> int:
        with self._reading("stat"):
            count = len(psutil.cpu_times(percpu=True))
        if count == 0:
            raise Unreadable(self._proc_root / "stat", "names no CPU")
        return count

    def cpu_used_s(self) -> float:
        """Return the time in which CPUs were not idle since the host started.

        Waiting for a disk counts as idle, because the CPU could have worked; time stolen by a
        hypervisor does not. Guests' time is already part of user time.
        """
        with self._reading("stat"):
            times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
        return float(busy)

    def memory_bytes(self) -> tuple[int, int]:
        """Return the memory that is not available for new work, and the total memory."""
        with self._reading("meminfo"):
            memory = psutil.virtual_memory()
        return memory.total - memory.available, memory.total

    @contextmanager
    def _reading(self, file: str) -> Iterator[None]:
        with procfs(self._proc_root):
            try:
                yield
            except _UNPARSABLE as error:
                raise Unreadable(self._proc_root / file, str(error)) from error


@dataclass(frozen=True, slots=True)
class Listener:
    process_id: int
    name: str


def listener_on(port: int) -> Listener | None:
    """Return the process that listens on a TCP port, None if there is none or it is not visible.

    Only root can see the sockets of other users' processes.
    """
    try:
        for one in psutil.net_connections(kind="tcp"):
            if (
                one.status == psutil.CONN_LISTEN
                and one.laddr
                and one.laddr.port == port
                and one.pid
            ):
                return Listener(one.pid, psutil.Process(one.pid).name())
    except (psutil.Error, OSError):
        return None
    return None


SEARCH_EVERY_S: Final = 60.0
"""Interval of searches, which read the sockets of all processes and may take long."""


@dataclass(frozen=True, slots=True)
class Sharing:
    process_id: int
    brokers: int


class Neighbours:
    def __init__(self, proc_root: Path) -> None:
        self._proc_root = proc_root
        self._asked: object = None
        self._found: Sharing | None = None
        self._search_again_at_s = 0.0

    def find(
        self, process_id: int | None, port: int, others: Collection[int], now_s: float
    ) -> Sharing | None:
        """Return the brokers that share a cgroup; None if there is only one, or it is unknown.

        ``process_id`` is the broker's, if it reports it; ``others`` are the ports of the other
        brokers with the same host name.
        """
        asked = (process_id, port, frozenset(others))
        if asked != self._asked or now_s >= self._search_again_at_s:
            self._asked, self._search_again_at_s = asked, now_s + SEARCH_EVERY_S
            self._found = self._search(process_id, port, others)
        return self._found

    def _search(self, process_id: int | None, port: int, others: Collection[int]) -> Sharing | None:
        own = process_id or self._listening(port)
        place = None if own is None else self._place(own)
        if own is None or place is None:
            return None
        near = {other for other in map(self._listening, others) if other is not None} - {own}
        sharing = sum(self._place(other) == place for other in near)
        return Sharing(own, 1 + sharing) if sharing else None

    def _listening(self, port: int) -> int | None:
        found = listener_on(port)
        return None if found is None else found.process_id

    def _place(self, process_id: int) -> str | None:
        try:
            return read_text(self._proc_root / str(process_id) / "cgroup")
        except Unreadable:
            return None


log = structlog.get_logger()

# Files, and connections to ZooKeeper, the broker and other sidecars, besides those of clients.
OTHER_FILES = 256


def allow_connections(
    max_connections: int,
    *,
    limits: Callable[[], tuple[int, int]] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
    set_limits: Callable[[tuple[int, int]], None] = lambda limits: resource.setrlimit(
        resource.RLIMIT_NOFILE, limits
    ),
) -> None:
    """Raise the limit of open files until it allows this many connections.

    If it cannot be raised that far, it is raised as far as possible, and the log names the
    ``[http] max_connections`` that fits.
    """
    needed = max_connections + OTHER_FILES
    soft, hard = limits()
    if _reaches(soft, needed):
        return
    target = needed if _reaches(hard, needed) else hard
    if target > soft:
        try:
            set_limits((target, hard))
        except (OSError, ValueError) as error:
            log.warning("http.open_files.not_raised", error=str(error), limit=soft)
            target = soft
    if target < needed:
        log.warning(
            "http.open_files.too_few",
            key="[http] max_connections",
            max_connections=max_connections,
            limit=target,
            fits=max(1, target - OTHER_FILES),
        )


def _reaches(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed


# Groups are nested, and the limit of every ancestor applies. Usage is read at the group with the
# tightest limit: a container without a limit, in a pod with one, is as full as the pod. See
# docs/decisions/0006-cpu-from-the-scope-of-its-limit.md.
_US_PER_S = 1_000_000
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Level:
    """One group on the path from the broker's group to the root, with its limit if it has one."""

    path: Path
    limit: float | None


class _UnifiedCgroup:
    """Version 2: one hierarchy for all. Levels are innermost first; limits in cores and bytes."""

    def __init__(self, root: Path, relative: str) -> None:
        self._groups = _groups(root, relative)

    def cpu_levels(self) -> Sequence[Level]:
        return [Level(group, _cores_v2(group)) for group in self._groups]

    def cpu_used_s(self, level: Level) -> float:
        return read_entry(level.path / "cpu.stat", "usage_usec") / _US_PER_S

    def memory_levels(self) -> Sequence[Level]:
        return [Level(group, _number_or_max(group / "memory.max")) for group in self._groups]

    def memory_used_bytes(self, level: Level) -> int:
        """Return the memory in use that the kernel could not reclaim at once."""
        used = read_int(level.path / "memory.current")
        return max(0, used - read_entry(level.path / "memory.stat", "inactive_file"))


class _LegacyCgroup:
    def __init__(self, root: Path, own: Path) -> None:
        self._root = root
        self._own = own

    def cpu_levels(self) -> Sequence[Level]:
        # Limits by quota and by CPU set, in two hierarchies; usage is counted in a third one,
        # in which `cpu_used_s` finds the group of the same name.
        quotas = [Level(group, _cores_by_quota_v1(group)) for group in self._hierarchy("cpu")]
        sets = [Level(group, _cores_by_set_v1(group)) for group in self._hierarchy("cpuset")]
        return [*quotas, *sets]

    def cpu_used_s(self, level: Level) -> float:
        controller = level.path.relative_to(self._root).parts[0]
        named = self._root / "cpuacct" / level.path.relative_to(self._root / controller)
        own = self._hierarchy("cpuacct")
        group = own[0] if own and not is_there(named) else named
        return read_int(group / "cpuacct.usage") / _NS_PER_S

    def memory_levels(self) -> Sequence[Level]:
        return [
            Level(group, _number_or_max(group / "memory.limit_in_bytes"))
            for group in self._hierarchy("memory")
        ]

    def memory_used_bytes(self, level: Level) -> int:
        used = read_int(level.path / "memory.usage_in_bytes")
        return max(0, used - read_entry(level.path / "memory.stat", "total_inactive_file"))

    def _hierarchy(self, controller: str) -> Sequence[Path]:
        mounted = self._root / controller
        return _groups(mounted, _path_of(controller, self._own)) if is_there(mounted) else ()


Cgroup = _UnifiedCgroup | _LegacyCgroup
"""The groups of one process."""


def find_cgroup(cgroup_root: Path, proc_root: Path, process_id: int | None) -> Cgroup | None:
    """Return the groups of a process (None: this one), None without. Raises `Unreadable`."""
    own = proc_root / ("self" if process_id is None else str(process_id)) / "cgroup"
    if is_there(cgroup_root / "cgroup.controllers"):
        return _UnifiedCgroup(cgroup_root, _path_of("", own))
    if is_there(cgroup_root / "cpuacct") or is_there(cgroup_root / "memory"):
        return _LegacyCgroup(cgroup_root, own)
    return None


def tightest(levels: Iterable[Level], ceiling: float) -> Level | None:
    """Return the level with the lowest limit below ``ceiling``, the outermost of equal ones.

    A limit above the host's capacity has no effect; None if no level has a lower one.
    """
    binding = [level for level in levels if level.limit is not None and level.limit < ceiling]
    return min(reversed(binding), key=lambda level: level.limit or 0.0, default=None)


def _path_of(controller: str, own: Path) -> str:
    """Return the path of the group from a line ``4:cpu,cpuacct:/a/b``; version 2 has ``0::/a``."""
    for line in read_text(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path and controller in controllers.split(","):
            return path
    raise Unreadable(own, f"has no line for {controller or 'version 2'}")


def _groups(mounted: Path, relative: str) -> tuple[Path, ...]:
    """Return the group and its ancestors, as far as they are mounted.

    In a container the group itself is often mounted as the root, while the path is still that of
    the host: then only the mounted root is returned. Raises `Unreadable`: the group belongs to
    another container, whose groups are not mounted here.
    """
    parts = Path(relative).parts[1:]
    if ".." in parts:
        raise Unreadable(
            mounted,
            f"{relative} is another container's group and not mounted here; scope process works",
        )
    group = mounted.joinpath(*parts)
    if not is_there(group):
        return (mounted,)
    above = [p for p in group.parents if p == mounted or mounted in p.parents]
    return (group, *above) if group != mounted else (mounted,)


def _number_or_max(path: Path) -> float | None:
    text = read_if_present(path)
    return None if text in {None, "max"} else float(as_int(str(text), path))


def _cores_v2(group: Path) -> float | None:
    quota = read_if_present(group / "cpu.max")
    by_quota = None
    if quota is not None and not quota.startswith("max"):
        amount, _, period = quota.partition(" ")
        by_quota = _cores(as_int(amount, group / "cpu.max"), period, group / "cpu.max")
    limits = (by_quota, _cores_by_set(group / "cpuset.cpus.effective"))
    return min((limit for limit in limits if limit is not None), default=None)


def _cores_by_quota_v1(group: Path) -> float | None:
    quota = read_if_present(group / "cpu.cfs_quota_us")
    if quota is None or (amount := as_int(quota, group / "cpu.cfs_quota_us")) <= 0:
        return None
    period = group / "cpu.cfs_period_us"
    return _cores(amount, read_text(period), period)


def _cores_by_set_v1(group: Path) -> float | None:
    effective = _cores_by_set(group / "cpuset.effective_cpus")
    return _cores_by_set(group / "cpuset.cpus") if effective is None else effective


def _cores_by_set(path: Path) -> float | None:
    text = read_if_present(path)
    return None if text is None else count_cpus(text, path)


def _cores(amount: int, period: str, path: Path) -> float:
    if (period_us := as_int(period, path)) <= 0:
        raise Unreadable(path, f"a period of {period_us} microseconds")
    return amount / period_us

"""Processes of this host: what they use, where they listen, and the files they may open."""

import resource
from collections.abc import Callable, Collection, Iterator, Mapping
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

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from loadmanager.adapters.host.reading import Unreadable

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

"""CPU and memory of the whole host."""

from pathlib import Path
from typing import Final

import psutil

from loadmanager.adapters.host.process_tree import procfs
from loadmanager.adapters.host.reading import Unreadable

# Errors that psutil does not catch when a file is missing or of an unknown form.
_UNPARSABLE: Final = (OSError, ValueError, LookupError, TypeError)


class WholeHost:
    """What all processes of a host use together, as procfs reports it."""

    def __init__(self, proc_root: Path) -> None:
        self._proc_root = proc_root

    def cores(self) -> int:
        """Return how many CPUs are online.

        Raises:
            Unreadable: procfs does not report it.
        """
        with procfs(self._proc_root):
            try:
                count = len(psutil.cpu_times(percpu=True))
            except _UNPARSABLE as error:
                raise Unreadable(self._proc_root / "stat", str(error)) from error
        if count == 0:
            raise Unreadable(self._proc_root / "stat", "names no CPU")
        return count

    def cpu_used_s(self) -> float:
        """Return the time in which CPUs were not idle since the host started.

        Waiting for a disk is idle: the CPU could have worked. Time that a hypervisor
        took away is not: it could not. Guests' time is part of user time already.

        Raises:
            Unreadable: procfs does not report it.
        """
        with procfs(self._proc_root):
            try:
                times = psutil.cpu_times()
            except _UNPARSABLE as error:
                raise Unreadable(self._proc_root / "stat", str(error)) from error
        busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
        return float(busy)

    def memory_bytes(self) -> tuple[int, int]:
        """Return the memory that is not available for new work, and all there is.

        Raises:
            Unreadable: procfs does not report it.
        """
        with procfs(self._proc_root):
            try:
                memory = psutil.virtual_memory()
            except _UNPARSABLE as error:
                raise Unreadable(self._proc_root / "meminfo", str(error)) from error
        return memory.total - memory.available, memory.total

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from loadmanager.adapters.host.process_tree import procfs
from loadmanager.adapters.host.reading import Unreadable

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

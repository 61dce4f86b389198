from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from loadmanager.adapters.host import PsutilHostProbe
from loadmanager.config.sections import HostSettings

_KIB_PER_GIB = 1024 * 1024


def host_files(cores: int, busy_ticks: int, total_gib: int, available_gib: int) -> dict[str, str]:
    """Return a procfs of a host whose CPUs were busy for ``busy_ticks`` hundredths of a second."""
    line = f"{busy_ticks - 60} 10 20 900000 5000 10 10 10 30 0"
    cpus = "".join(f"cpu{n} {line}\n" for n in range(cores))
    total, available = total_gib * _KIB_PER_GIB, available_gib * _KIB_PER_GIB
    return {
        "proc/stat": f"cpu  {line}\n{cpus}btime 1700000000\n",
        "proc/meminfo": (
            f"MemTotal: {total} kB\nMemFree: {available // 2} kB\nMemAvailable: {available} kB\n"
            "Buffers: 0 kB\nCached: 0 kB\nShmem: 0 kB\nActive: 0 kB\nInactive: 0 kB\nSlab: 0 kB\n"
            "SReclaimable: 0 kB\n"
        ),
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Mapping[str, str]], None]:
    def write_all(files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write_all


@pytest.fixture
def host(write: Callable[[Mapping[str, str]], None]) -> Callable[..., None]:
    """Write the procfs of a host: 8 cores and 16 GiB, of which 12 are available."""

    def write_host(
        cores: int = 8, busy_ticks: int = 1000, total_gib: int = 16, available_gib: int = 12
    ) -> None:
        write(host_files(cores, busy_ticks, total_gib, available_gib))

    return write_host


@pytest.fixture
def nic(tmp_path: Path, write: Callable[[Mapping[str, str]], None]) -> Callable[..., None]:
    def make(
        name: str,
        *,
        received: int | None = 0,
        sent: int = 0,
        speed: str | None = "1000",
        virtual: bool = False,
        operstate: str = "up",
        kind: int = 1,
    ) -> None:
        device = f"devices/{'virtual' if virtual else 'pci0000:00/0000:00:03.0'}/net/{name}"
        files = {"type": str(kind), "operstate": operstate}
        if received is not None:
            files |= {"statistics/rx_bytes": str(received), "statistics/tx_bytes": str(sent)}
        if speed is not None:
            files["speed"] = speed
        write({f"sys/{device}/{file}": f"{text}\n" for file, text in files.items()})
        link = tmp_path / "sys/class/net" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(Path("../..") / device)

    return make


@pytest.fixture
def clock_s() -> list[float]:
    return [100.0]


@pytest.fixture
def probe(tmp_path: Path, clock_s: list[float]) -> Callable[..., PsutilHostProbe]:
    def make(**settings: Any) -> PsutilHostProbe:
        roots = {
            "cgroup_root": str(tmp_path / "cgroup"),
            "sys_root": str(tmp_path / "sys"),
            "proc_root": str(tmp_path / "proc"),
        }
        return PsutilHostProbe(HostSettings(**(roots | settings)), lambda: clock_s[0])

    return make

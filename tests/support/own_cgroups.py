"""A cgroup with a share of the CPU for each broker, so that it sees its own usage and limit."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
_PERIOD_US: Final = 100_000
_MOST_SHARES: Final = 262_144
_MOST_WEIGHT: Final = 10_000


@contextmanager
def own_cgroups(cores: Mapping[str, float]) -> Iterator[dict[str, list[str]]]:
    """Make cgroups of version 1 or 2 and yield, for each name, how a command begins to run in it.

    What is in them goes before other work of the machine, as far as their limit allows. Without
    the right to make one, commands begin as they are.
    """
    made: dict[str, list[Path]] = {}
    try:
        for name, share in cores.items():
            with suppress(OSError):
                made[name] = _make(f"loadmanager-{os.getpid()}-{name}", share)
        yield {name: _entering(made.get(name, [])) for name in cores}
    finally:
        for folder in (one for folders in made.values() for one in folders):
            with suppress(OSError):
                folder.rmdir()


def _make(name: str, cores: float) -> list[Path]:
    quota_us = round(cores * _PERIOD_US)
    if (ROOT / "cgroup.controllers").exists():
        folder = ROOT / name
        folder.mkdir()
        (folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        (folder / "cpu.weight").write_text(str(_MOST_WEIGHT))
        return [folder]
    cpu, accounting = ROOT / "cpu" / name, ROOT / "cpuacct" / name
    cpu.mkdir()
    accounting.mkdir(exist_ok=True)
    (cpu / "cpu.cfs_quota_us").write_text(str(quota_us))
    (cpu / "cpu.shares").write_text(str(_MOST_SHARES))
    return [cpu, accounting]


def _entering(folders: list[Path]) -> list[str]:
    if not folders:
        return []
    enter = "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in folders)
    return ["sh", "-c", f'{enter}; exec "$@"', "sh"]

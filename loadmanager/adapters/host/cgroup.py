"""Usage and limit of CPU and memory from control groups, version 1 and 2.

Groups are nested, and the limit of every ancestor applies. Usage is read at the group with the
tightest limit: a container without a limit, in a pod with one, is as full as the pod. See
docs/decisions/0006-cpu-from-the-scope-of-its-limit.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadmanager.adapters.host.processes import (
    Unreadable,
    as_int,
    count_cpus,
    is_there,
    read_entry,
    read_if_present,
    read_int,
    read_text,
)

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

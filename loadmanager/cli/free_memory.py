from pathlib import Path

from loadmanager.adapters.host.cgroup import find_cgroup
from loadmanager.adapters.host.process_tree import WholeHost
from loadmanager.adapters.host.reading import Unreadable


def free_memory_bytes(
    cgroup_root: Path = Path("/sys/fs/cgroup"), proc_root: Path = Path("/proc")
) -> float | None:
    """Return the least that the host and every group of this process have left, None if unknown."""
    try:
        used, total = WholeHost(proc_root).memory_bytes()
        free = [float(total - used)]
        cgroup = find_cgroup(cgroup_root, proc_root, None)
        if cgroup is not None:
            limited = ((one, one.limit) for one in cgroup.memory_levels() if one.limit is not None)
            free += [
                limit - cgroup.memory_used_bytes(one) for one, limit in limited if limit < total
            ]
    except Unreadable:
        return None
    return max(0.0, min(free))

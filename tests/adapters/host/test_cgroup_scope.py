"""CPU and memory, each with the usage of the scope whose limit it is."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from loadmanager.adapters.host import PsutilHostProbe
from loadmanager.core.load import HostUsage, ResourceUsage

Write = Callable[[Mapping[str, str]], None]
Host = Callable[..., None]
Probe = Callable[..., PsutilHostProbe]


def about(value: float) -> Any:
    """Return what equals ``value`` up to rounding, for a place in a whole value."""
    return pytest.approx(value)


MIB = 1024 * 1024
UNLIMITED_V1 = "9223372036854771712\n"


def group_v2(
    path: str,
    *,
    usage_us: int = 0,
    cpu_max: str | None = "max 100000",
    cpus: str | None = "0-7",
    memory_mib: int = 0,
    inactive_mib: int = 0,
    memory_max: str | None = "max",
) -> dict[str, str]:
    files = {
        "cpu.stat": f"usage_usec {usage_us}\nuser_usec 0\nsystem_usec 0\n",
        "memory.current": f"{memory_mib * MIB}\n",
        "memory.stat": f"anon 0\nfile 0\ninactive_file {inactive_mib * MIB}\n",
        "cgroup.controllers": "cpuset cpu memory\n",
    }
    optional = {"cpu.max": cpu_max, "cpuset.cpus.effective": cpus, "memory.max": memory_max}
    files |= {name: f"{text}\n" for name, text in optional.items() if text is not None}
    return {f"cgroup{path}/{name}": text for name, text in files.items()}


def member_v2(path: str, process: str = "self") -> dict[str, str]:
    return {f"proc/{process}/cgroup": f"0::{path}\n"}


def group_v1(path: str, *, usage_ns: int = 0, quota_us: int = -1) -> dict[str, str]:
    return {
        f"cgroup/cpu{path}/cpu.cfs_quota_us": f"{quota_us}\n",
        f"cgroup/cpu{path}/cpu.cfs_period_us": "100000\n",
        f"cgroup/cpuacct{path}/cpuacct.usage": f"{usage_ns}\n",
        f"cgroup/cpuset{path}/cpuset.cpus": "0-7\n",
        f"cgroup/memory{path}/memory.limit_in_bytes": UNLIMITED_V1,
        f"cgroup/memory{path}/memory.usage_in_bytes": "0\n",
        f"cgroup/memory{path}/memory.stat": "cache 0\ntotal_inactive_file 0\n",
    }


def member_v1(path: str) -> dict[str, str]:
    controllers = ("cpu,cpuacct", "cpuset", "memory", "name=systemd")
    return {"proc/self/cgroup": "".join(f"{n}:{c}:{path}\n" for n, c in enumerate(controllers, 2))}


def test_the_first_sample_has_memory_but_no_rates(host: Host, probe: Probe) -> None:
    host()
    usage = probe().sample()
    assert usage.window_s == 0
    assert usage.cpu is None
    assert usage.memory == ResourceUsage(4096.0, 16384.0)


def test_without_any_cgroup_the_host_counts(host: Host, probe: Probe, clock_s: list[float]) -> None:
    host(cores=8, busy_ticks=1000)
    seen = probe()
    seen.sample()
    clock_s[0] += 10
    host(cores=8, busy_ticks=5000)
    usage = seen.sample()
    assert usage.window_s == 10
    # 40 busy seconds in 10: four of eight cores.
    assert usage.cpu == ResourceUsage(about(400.0), 800.0)


def test_a_quota_takes_usage_and_limit_from_its_group(
    write: Write, host: Host, probe: Probe, clock_s: list[float]
) -> None:
    host()
    write(group_v2("") | group_v2("/a", cpu_max="200000 100000") | member_v2("/a"))
    seen = probe()
    seen.sample()
    clock_s[0] += 2
    write(group_v2("/a", cpu_max="200000 100000", usage_us=3_000_000))
    host(busy_ticks=999_000)
    assert seen.sample().cpu == ResourceUsage(about(150.0), 200.0)


def test_of_nested_limits_the_tightest_counts_with_the_usage_of_its_group(
    write: Write, host: Host, probe: Probe, clock_s: list[float]
) -> None:
    # The container has 6 cores, but its pod 2: the neighbour's share counts too.
    host()
    tree = (
        group_v2("")
        | group_v2("/pod", cpu_max="200000 100000", memory_max=str(512 * MIB), memory_mib=500)
        | group_v2("/pod/a", cpu_max="600000 100000", memory_mib=100)
        | member_v2("/pod/a")
    )
    write(tree)
    seen = probe()
    seen.sample()
    clock_s[0] += 1
    write(group_v2("/pod/a", cpu_max="600000 100000", usage_us=500_000, memory_mib=100))
    pod = {"cpu_max": "200000 100000", "memory_max": str(512 * MIB)}
    write(group_v2("/pod", usage_us=1_900_000, memory_mib=500, inactive_mib=20, **pod))
    usage = seen.sample()
    assert usage.cpu == ResourceUsage(about(190.0), 200.0)
    assert usage.memory == ResourceUsage(480.0, 512.0)


def test_a_set_of_cpus_is_a_limit(
    write: Write, host: Host, probe: Probe, clock_s: list[float]
) -> None:
    host()
    write(group_v2("") | group_v2("/a", cpus="0-1,6") | member_v2("/a"))
    seen = probe()
    seen.sample()
    clock_s[0] += 1
    write(group_v2("/a", cpus="0-1,6", usage_us=1_500_000))
    assert seen.sample().cpu == ResourceUsage(about(150.0), 300.0)


def test_a_limit_above_what_the_host_has_is_none(
    write: Write, host: Host, probe: Probe, clock_s: list[float]
) -> None:
    host(cores=2, busy_ticks=1000)
    write(group_v2("/a", cpu_max="900000 100000", cpus="0-1", memory_max=str(64 * 1024 * MIB)))
    write(group_v2("", cpu_max=None, memory_max=None, cpus="0-1") | member_v2("/a"))
    seen = probe()
    seen.sample()
    clock_s[0] += 1
    host(cores=2, busy_ticks=1100)
    usage = seen.sample()
    assert usage.cpu == ResourceUsage(about(100.0), 200.0)
    assert usage.memory == ResourceUsage(4096.0, 16384.0)


def test_scope_cgroup_measures_the_group_even_without_a_limit(
    write: Write, host: Host, probe: Probe, clock_s: list[float]
) -> None:
    host()
    write(group_v2("") | group_v2("/a", memory_mib=300, inactive_mib=100) | member_v2("/a"))
    seen = probe(scope="cgroup")
    seen.sample()
    clock_s[0] += 1
    write(group_v2("/a", usage_us=250_000, memory_mib=300, inactive_mib=100))
    usage = seen.sample()
    assert usage.cpu == ResourceUsage(about(25.0), 800.0)
    assert usage.memory == ResourceUsage(200.0, 16384.0)


def test_scope_host_looks_at_no_cgroup(write: Write, host: Host, probe: Probe) -> None:
    host()
    write(group_v2("/a", memory_max=str(MIB)) | group_v2("") | member_v2("/a"))
    assert probe(scope="host").sample().memory == ResourceUsage(4096.0, 16384.0)


def test_configured_limits_win(
    write: Write, host: Host, probe: Probe, clock_s: list[float]
) -> None:
    host()
    write(group_v2("", cpu_max="400000 100000") | member_v2("/"))
    seen = probe(cores=1.5, memory_limit_mib=1000.0)
    seen.sample()
    clock_s[0] += 1
    write(group_v2("", cpu_max="400000 100000", usage_us=1_000_000))
    usage = seen.sample()
    assert usage.cpu == ResourceUsage(about(100.0), 150.0)
    assert usage.memory == ResourceUsage(4096.0, 1000.0)


def test_the_group_is_that_of_the_broker(write: Write, host: Host, probe: Probe) -> None:
    host()
    broker = group_v2("/broker", memory_max=str(1024 * MIB), memory_mib=800)
    write(group_v2("") | broker | group_v2("/agent") | member_v2("/agent"))
    write(member_v2("/broker", process="77"))
    assert probe().sample(broker_process_id=77).memory == ResourceUsage(800.0, 1024.0)


def test_a_group_mounted_as_the_root_is_found_under_its_host_path(
    write: Write, host: Host, probe: Probe
) -> None:
    host()
    write(group_v2("", memory_max=str(512 * MIB), memory_mib=128) | member_v2("/docker/4f2a"))
    assert probe().sample().memory == ResourceUsage(128.0, 512.0)


def test_a_group_outside_the_mount_is_unknown_and_not_taken_for_the_host(
    write: Write, host: Host, probe: Probe
) -> None:
    host()
    write(group_v2("") | member_v2("/../other", process="77"))
    with capture_logs() as logs:
        usage = probe().sample(broker_process_id=77)
    assert (usage.cpu, usage.memory) == (None, None)
    assert "/../other is another container's group" in logs[0]["reason"]


@pytest.mark.parametrize("joined", [False, True])
def test_version_1_takes_quota_and_usage_from_their_hierarchies(
    write: Write, host: Host, probe: Probe, clock_s: list[float], tmp_path: Path, *, joined: bool
) -> None:
    host()
    write(group_v1("") | group_v1("/a", quota_us=150_000) | member_v1("/a"))
    if joined:
        # As distributions mount it: one hierarchy, and links by each controller's name.
        (tmp_path / "cgroup/cpuacct/a/cpuacct.usage").rename(
            tmp_path / "cgroup/cpu/a/cpuacct.usage"
        )
        (tmp_path / "cgroup/cpuacct").rename(tmp_path / "former")
        (tmp_path / "cgroup/cpu").rename(tmp_path / "cgroup/cpu,cpuacct")
        (tmp_path / "cgroup/cpu").symlink_to("cpu,cpuacct")
        (tmp_path / "cgroup/cpuacct").symlink_to("cpu,cpuacct")
    seen = probe()
    seen.sample()
    clock_s[0] += 2
    write({"cgroup/cpuacct/a/cpuacct.usage": "1500000000\n"})
    assert seen.sample().cpu == ResourceUsage(about(75.0), about(150.0))


def test_version_1_nested_limits_and_sets(
    write: Write, host: Host, probe: Probe, clock_s: list[float]
) -> None:
    host()
    write(
        group_v1("") | group_v1("/pod", quota_us=400_000) | group_v1("/pod/a") | member_v1("/pod/a")
    )
    write({"cgroup/cpuset/pod/cpuset.cpus": "2-3\n", "cgroup/cpuset/pod/a/cpuset.cpus": "2-3\n"})
    seen = probe()
    seen.sample()
    clock_s[0] += 1
    write({"cgroup/cpuacct/pod/cpuacct.usage": "1000000000\n"})
    assert seen.sample().cpu == ResourceUsage(about(100.0), 200.0)


def test_version_1_memory_leaves_out_the_cache_that_can_be_taken_back(
    write: Write, host: Host, probe: Probe
) -> None:
    host()
    write(group_v1("") | group_v1("/a") | member_v1("/a"))
    limits = {"limit_in_bytes": 1024 * MIB, "usage_in_bytes": 700 * MIB}
    write({f"cgroup/memory/a/memory.{name}": str(n) for name, n in limits.items()})
    write({"cgroup/memory/a/memory.stat": f"total_inactive_file {200 * MIB}\n"})
    assert probe().sample().memory == ResourceUsage(500.0, 1024.0)


def test_version_1_usage_without_a_group_of_the_same_name_is_the_process_own(
    write: Write, host: Host, probe: Probe, clock_s: list[float]
) -> None:
    host()
    files = group_v1("") | group_v1("/a", quota_us=100_000) | group_v1("/b")
    write({name: text for name, text in files.items() if "cpuacct/a" not in name})
    write({"proc/self/cgroup": "2:cpu:/a\n3:cpuacct:/b\n4:memory:/\n5:cpuset:/\n"})
    seen = probe()
    seen.sample()
    clock_s[0] += 1
    write({"cgroup/cpuacct/b/cpuacct.usage": "500000000\n"})
    assert seen.sample().cpu == ResourceUsage(about(50.0), 100.0)


def test_a_counter_that_went_back_or_a_clock_that_stands_gives_no_rate_this_time(
    write: Write, host: Host, probe: Probe, clock_s: list[float]
) -> None:
    host()
    seen = probe()
    got = []
    for at_s, usage_us in [
        (0, 5_000_000),
        (1, 6_000_000),
        (1, 7_000_000),
        (2, 100),
        (3, 1_000_100),
    ]:
        clock_s[0] = at_s
        write(group_v2("", cpu_max="200000 100000", usage_us=usage_us) | member_v2("/"))
        cpu = seen.sample().cpu
        got.append(None if cpu is None else round(cpu.usage))
    assert got == [None, 100, None, None, 100]


def test_a_limit_that_moves_to_another_group_gives_no_rate_this_time(
    write: Write, host: Host, probe: Probe, clock_s: list[float]
) -> None:
    host()
    seen = probe()
    got = []
    for second in range(4):
        clock_s[0] += 1
        quota = "max 100000" if second < 2 else "100000 100000"
        write(group_v2("/a", cpu_max=quota, usage_us=second * 500_000) | member_v2("/a"))
        write(group_v2("", cpu_max="400000 100000", usage_us=second * 2_000_000))
        cpu = seen.sample().cpu
        got.append(None if cpu is None else (round(cpu.usage), cpu.limit))
    assert got == [None, (200, 400.0), None, (50, 100.0)]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("cgroup/cpu.stat", "user_usec 1\n"),
        ("cgroup/cpu.stat", "usage_usec many\n"),
        ("cgroup/cpu.max", "lots 100000\n"),
        ("cgroup/cpu.max", "100000 0\n"),
        ("cgroup/cpuset.cpus.effective", "zero\n"),
        ("proc/self/cgroup", "garbage\n"),
        ("proc/stat", ""),
    ],
)
def test_what_cannot_be_read_is_unknown_told_once_and_stops_nothing_else(
    write: Write, host: Host, probe: Probe, clock_s: list[float], *, file: str, text: str
) -> None:
    host()
    write(group_v2("", cpu_max="200000 100000") | member_v2("/"))
    write({file: text})
    seen = probe()
    with capture_logs() as logs:
        for _ in range(3):
            clock_s[0] += 1
            usage = seen.sample()
            assert usage.cpu is None
            assert usage.memory is not None or file.startswith("proc/")
    told = [log for log in logs if log.get("resource") == "cpu"]
    assert [log["event"] for log in told] == ["host.resource.unknown"]


def test_a_resource_known_again_is_told(write: Write, host: Host, probe: Probe) -> None:
    host()
    write(group_v2("") | member_v2("/") | {"proc/meminfo": "nonsense\n"})
    seen = probe()
    with capture_logs() as logs:
        assert seen.sample().memory is None
        host()
        assert seen.sample().memory is not None
    memory = [log["event"] for log in logs if log.get("resource") == "memory"]
    assert memory == ["host.resource.unknown", "host.resource.known"]


def test_scope_cgroup_without_cgroups_is_unknown(host: Host, probe: Probe) -> None:
    host()
    with capture_logs() as logs:
        usage = probe(scope="cgroup").sample()
    assert (usage.cpu, usage.memory) == (None, None)
    assert "no cgroup is mounted" in logs[0]["reason"]


def test_usage_far_above_the_limit_is_kept_and_told_once(
    write: Write, host: Host, probe: Probe, clock_s: list[float]
) -> None:
    host()
    write(member_v2("/"))
    seen = probe()
    with capture_logs() as logs:
        for second in range(4):
            clock_s[0] += 1
            write(group_v2("", cpu_max="100000 100000", usage_us=second * 3_000_000))
            usage = seen.sample()
    assert usage.cpu == ResourceUsage(about(300.0), 100.0)
    impossible = [log for log in logs if log["event"] == "host.usage.impossible"]
    assert [log["resource"] for log in impossible] == ["cpu"]


def test_a_host_that_tells_nothing_at_all_stops_nothing(probe: Probe) -> None:
    with capture_logs() as logs:
        usages = [probe(scope=scope).sample() for scope in ("auto", "cgroup", "host")]
    for usage in usages:
        assert usage == HostUsage(window_s=0.0)
    assert {log["event"] for log in logs} == {"host.resource.unknown"}


def test_a_controller_that_is_not_mounted_is_unknown_in_scope_cgroup(
    write: Write, host: Host, probe: Probe
) -> None:
    host()
    memory_only = group_v1("/a") | group_v1("") | member_v1("/a")
    write({n: text for n, text in memory_only.items() if "/cpu" not in n})
    usage = probe(scope="cgroup").sample()
    assert usage.cpu is None
    assert usage.memory == ResourceUsage(0.0, 16384.0)

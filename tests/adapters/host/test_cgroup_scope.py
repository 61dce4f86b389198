"""CPU and memory, each with the usage of the scope whose limit it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from loadmanager.adapters.host import PsutilHostProbe
from loadmanager.cli.pipeline import free_memory_bytes
from loadmanager.core.load import HostUsage, ResourceUsage

Write = Callable[[Mapping[str, str]], None]
Host = Callable[..., None]
Probe = Callable[..., PsutilHostProbe]


def about(value: float) -> Any:
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


QUOTA: dict[str, Any] = {"cpu_max": "200000 100000"}
POD: dict[str, Any] = {**QUOTA, "memory_max": str(512 * MIB)}
ROOT, MEMBER = group_v2(""), member_v2("/a")
HOST_MEMORY = ResourceUsage(4096.0, 16384.0)
WITHIN: dict[str, Any] = {"cpu_max": "900000 100000", "cpus": "0-1", "memory_max": str(2**16 * MIB)}


@dataclass(frozen=True)
class Case:
    """The files at first and a second later, and what is measured by then."""

    name: str
    files: Mapping[str, str]
    later: Mapping[str, str]
    cpu: ResourceUsage | None
    memory: ResourceUsage | None = HOST_MEMORY
    settings: Mapping[str, Any] = field(default_factory=dict)
    later_host: Mapping[str, int] = field(default_factory=dict)
    broker: int | None = None


CASES = [
    # 4 busy seconds in one: four of eight cores.
    Case("no cgroup", {}, {}, ResourceUsage(400, 800), later_host={"busy_ticks": 1400}),
    Case(
        "a quota takes usage and limit from its group",
        ROOT | group_v2("/a", **QUOTA) | MEMBER,
        group_v2("/a", **QUOTA, usage_us=1_500_000),
        ResourceUsage(150, 200),
        later_host={"busy_ticks": 999_000},
    ),
    # The container has 6 cores, but its pod 2: the neighbour's share counts too.
    Case(
        "of nested limits the tightest counts with the usage of its group",
        ROOT
        | group_v2("/pod", **POD, memory_mib=500)
        | group_v2("/pod/a", cpu_max="600000 100000", memory_mib=100)
        | member_v2("/pod/a"),
        group_v2("/pod/a", cpu_max="600000 100000", usage_us=500_000, memory_mib=100)
        | group_v2("/pod", usage_us=1_900_000, memory_mib=500, inactive_mib=20, **POD),
        ResourceUsage(190, 200),
        ResourceUsage(480, 512),
    ),
    Case(
        "a set of CPUs is a limit",
        ROOT | group_v2("/a", cpus="0-1,6") | MEMBER,
        group_v2("/a", cpus="0-1,6", usage_us=1_500_000),
        ResourceUsage(150, 300),
    ),
    Case(
        "a limit above what the host has is none",
        group_v2("/a", **WITHIN) | group_v2("", cpu_max=None, memory_max=None, cpus="0-1") | MEMBER,
        {},
        ResourceUsage(100, 200),
        later_host={"cores": 2, "busy_ticks": 1100},
    ),
    Case(
        "scope cgroup measures the group even without a limit",
        ROOT | group_v2("/a", memory_mib=300, inactive_mib=100) | MEMBER,
        group_v2("/a", usage_us=250_000, memory_mib=300, inactive_mib=100),
        ResourceUsage(25, 800),
        ResourceUsage(200, 16384),
        {"scope": "cgroup"},
    ),
    Case(
        "scope host looks at no cgroup",
        group_v2("/a", memory_max=str(MIB), **QUOTA) | ROOT | MEMBER,
        {},
        ResourceUsage(400, 800),
        settings={"scope": "host"},
        later_host={"busy_ticks": 1400},
    ),
    Case(
        "configured limits win",
        group_v2("", cpu_max="400000 100000") | member_v2("/"),
        group_v2("", cpu_max="400000 100000", usage_us=1_000_000),
        ResourceUsage(100, 150),
        ResourceUsage(4096, 1000),
        {"cores": 1.5, "memory_limit_mib": 1000.0},
    ),
    Case(
        "the group is that of the broker",
        ROOT
        | group_v2("/broker", memory_max=str(1024 * MIB), memory_mib=800, **QUOTA)
        | group_v2("/agent")
        | member_v2("/agent")
        | member_v2("/broker", process="77"),
        {},
        ResourceUsage(0, 200),
        ResourceUsage(800, 1024),
        broker=77,
    ),
    Case(
        "a group mounted as the root is found under its host path",
        group_v2("", memory_max=str(512 * MIB), memory_mib=128, **QUOTA)
        | member_v2("/docker/4f2a"),
        {},
        ResourceUsage(0, 200),
        ResourceUsage(128, 512),
    ),
    Case(
        "a controller that is not mounted is unknown in scope cgroup",
        {
            name: text
            for name, text in (group_v1("/a") | group_v1("") | member_v1("/a")).items()
            if "/cpu" not in name
        },
        {},
        None,
        ResourceUsage(0, 16384),
        {"scope": "cgroup"},
    ),
    Case(
        "version 1: nested limits and sets",
        group_v1("")
        | group_v1("/pod", quota_us=400_000)
        | group_v1("/pod/a")
        | member_v1("/pod/a")
        | {f"cgroup/cpuset{path}/cpuset.cpus": "2-3\n" for path in ("/pod", "/pod/a")},
        {"cgroup/cpuacct/pod/cpuacct.usage": "1000000000\n"},
        ResourceUsage(100, 200),
    ),
    Case(
        "version 1: memory leaves out the cache that can be taken back",
        group_v1("")
        | group_v1("/a", quota_us=100_000)
        | member_v1("/a")
        | {
            "cgroup/memory/a/memory.limit_in_bytes": str(1024 * MIB),
            "cgroup/memory/a/memory.usage_in_bytes": str(700 * MIB),
            "cgroup/memory/a/memory.stat": f"total_inactive_file {200 * MIB}\n",
        },
        {},
        ResourceUsage(0, 100),
        ResourceUsage(500, 1024),
    ),
    Case(
        "version 1: usage without a group of the same name is the process's own",
        {
            name: text
            for name, text in (
                group_v1("") | group_v1("/a", quota_us=100_000) | group_v1("/b")
            ).items()
            if "cpuacct/a" not in name
        }
        | {"proc/self/cgroup": "2:cpu:/a\n3:cpuacct:/b\n4:memory:/\n5:cpuset:/\n"},
        {"cgroup/cpuacct/b/cpuacct.usage": "500000000\n"},
        ResourceUsage(50, 100),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_each_resource_is_that_of_the_scope_whose_limit_it_is(
    write: Write, host: Host, probe: Probe, clock_s: list[float], case: Case
) -> None:
    cores = case.later_host.get("cores", 8)
    host(cores=cores)
    write(case.files)
    seen = probe(**case.settings)
    first = seen.sample(broker_process_id=case.broker)
    assert (first.window_s, first.cpu) == (0, None)
    clock_s[0] += 1
    host(**case.later_host)
    write(case.later)
    usage = seen.sample(broker_process_id=case.broker)
    assert usage.window_s == 1
    for found, wanted in ((usage.cpu, case.cpu), (usage.memory, case.memory)):
        if wanted is None:
            assert found is None
        else:
            assert found == ResourceUsage(about(wanted.usage), about(wanted.limit))


GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("groups", "free_gib"),
    [
        ({}, 12),
        (group_v2("/a", memory_max=str(4 * GIB), memory_mib=3072, inactive_mib=2048), 3),
        # Of nested limits the one that leaves least counts, and none above what the host has.
        (
            group_v2("/a/b", memory_max=str(4 * GIB), memory_mib=1024)
            | group_v2("/a", memory_max=str(6 * GIB), memory_mib=5120)
            | member_v2("/a/b"),
            1,
        ),
        (group_v2("/a", memory_max=str(64 * GIB), memory_mib=1024), 12),
    ],
)
def test_a_command_may_take_what_its_limits_leave(
    write: Write, host: Host, tmp_path: Path, groups: dict[str, str], free_gib: int
) -> None:
    host()
    write(MEMBER | {"cgroup/cgroup.controllers": "memory\n"} | groups)
    assert free_memory_bytes(tmp_path / "cgroup", tmp_path / "proc") == free_gib * GIB
    assert free_memory_bytes(tmp_path, tmp_path) is None


def test_a_group_outside_the_mount_is_unknown(write: Write, host: Host, probe: Probe) -> None:
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


def test_a_counter_that_went_back_or_a_clock_that_stands_gives_no_rate_this_time(
    write: Write, host: Host, probe: Probe, clock_s: list[float]
) -> None:
    host()
    seen = probe()
    got = []
    for at_s, usage_us in [(0, 5_000_000), (1, 6_000_000), (1, 7_000_000), (2, 0), (3, 1_000_000)]:
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

"""Traffic and capacity of network interfaces."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from loadmanager.adapters.host import PsutilHostProbe
from loadmanager.core.load import HostUsage, ResourceUsage

Make = Callable[..., None]
Probe = Callable[..., PsutilHostProbe]
Interfaces = Mapping[str, Mapping[str, Any]]


def about(value: float) -> Any:
    return pytest.approx(value)


@pytest.fixture(autouse=True)
def _host(host: Make) -> None:
    host()


def second_sample(
    probe: PsutilHostProbe, clock_s: list[float], between: Callable[[], None], after_s: float = 2.0
) -> HostUsage:
    first = probe.sample()
    assert (first.bandwidth_in, first.bandwidth_out) == (None, None)
    between()
    clock_s[0] += after_s
    return probe.sample()


EVERY: Interfaces = {
    "eth0": {},
    "eth1": {"operstate": "unknown"},
    "eth2": {"operstate": "down"},
    "ib0": {"kind": 32},
    "veth12ab": {"speed": "10000", "virtual": True},
    "docker0": {"speed": "-1", "virtual": True},
    "lo": {"kind": 772, "virtual": True},
}
VETH = {"speed": "10000", "virtual": True}
BOND = {"speed": "2000", "virtual": True}
NAMED = {"nics": ["eth9"], "nic_speed_mbit_per_s": 1000.0}
# Interfaces, folders in their place of the kernel, settings, what each receives, and the usage.
CASES: dict[str, tuple[Interfaces, str, dict[str, Any], dict[str, int], tuple[float, float]]] = {
    "hardware counts": (EVERY, "", {}, dict.fromkeys(EVERY, 250_000), (2000.0, 2_000_000.0)),
    # Opening the file fails, as with EINVAL on a virtual interface.
    "a speed that answers with an error is unknown": (
        {"eth0": {"speed": None}},
        *("eth0/speed", {}, {"eth0": 250_000}, (1000.0, 0.0)),
    ),
    "the configured speed is the total": (
        {"eth0": {}, "eth1": {"speed": "-1"}},
        *("", {"nic_speed_mbit_per_s": 2500.0}, {"eth1": 250_000}, (1000.0, 2_500_000.0)),
    ),
    "named interfaces always count": (
        {"eth0": {}, "eth9": {"virtual": True, "operstate": "down"}},
        *("", NAMED, {"eth0": 10**9, "eth9": 250_000}, (1000.0, 1_000_000.0)),
    ),
    "the speed of a veth is not believed": (
        {"eth0": VETH},
        *("", {"nics": ["eth0"]}, {"eth0": 250_000}, (1000.0, 0.0)),
    ),
    "bonds have a speed": (
        {"bond0": BOND},
        *("bond0/lower_eth0", {"nics": ["bond0"]}, {"bond0": 250_000}, (1000.0, 2_000_000.0)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_of_interfaces(
    name: str, nic: Make, probe: Probe, clock_s: list[float], tmp_path: Path
) -> None:
    interfaces, folder, settings, received, expected = CASES[name]
    for one, made in interfaces.items():
        nic(one, **made)
    (tmp_path / "sys/class/net/bonding_masters").write_text("bond0\n")
    (tmp_path / "sys/class/net" / folder).mkdir(exist_ok=not folder)

    def traffic() -> None:
        for one, count in received.items():
            nic(one, **{**interfaces[one], "received": count})

    usage = second_sample(probe(**settings), clock_s, traffic)
    assert usage.bandwidth_in == ResourceUsage(*map(about, expected))


@pytest.mark.parametrize("speed", ["-1", "0", "fast", None])
def test_an_unknown_speed_leaves_the_limit_unknown_and_is_told_once(
    nic: Make, probe: Probe, clock_s: list[float], speed: str | None
) -> None:
    nic("eth0")
    nic("eth1", speed=speed)
    with capture_logs() as logs:
        usage = second_sample(probe(), clock_s, lambda: nic("eth0", received=250_000))
    assert usage.bandwidth_in == ResourceUsage(about(1000.0), 0.0)
    assert usage.bandwidth_in.fraction is None
    assert [log["resource"] for log in logs] == ["network speed"]
    assert usage.memory is not None


@pytest.mark.parametrize(
    ("mode", "active", "member_bytes", "expected"),
    [
        ("active-backup 1", "eth1", (0, 250_000), (1000.0, 25_000_000.0)),
        ("active-backup 1", "", (250_000, 0), (1000.0, 10_000_000.0)),
        ("broadcast 3", "", (250_000, 250_000), (1000.0, 10_000_000.0)),
        ("802.3ad 4", "", (125_000, 125_000), (1000.0, 35_000_000.0)),
    ],
)
def test_a_bond_of_which_one_member_is_used_has_the_speed_of_that_one(
    nic: Make,
    probe: Probe,
    clock_s: list[float],
    tmp_path: Path,
    *,
    mode: str,
    active: str,
    member_bytes: tuple[int, int],
    expected: tuple[float, float],
) -> None:
    nic("bond0", speed="10000", virtual=True)
    bond = tmp_path / "sys/devices/virtual/net/bond0"
    (bond / "bonding").mkdir()
    (bond / "bonding/mode").write_text(f"{mode}\n")
    (bond / "bonding/active_slave").write_text(f"{active}\n")
    stands_on(nic, tmp_path, "bond0", eth0="10000", eth1="25000")

    def traffic() -> None:
        for name, speed, received in zip(
            ("eth0", "eth1"), ("10000", "25000"), member_bytes, strict=True
        ):
            nic(name, received=received, speed=speed)

    usage = second_sample(probe(), clock_s, traffic)
    assert usage.bandwidth_in == ResourceUsage(*map(about, expected))


def test_a_virtual_function_and_the_interface_above_it_are_one(
    nic: Make, probe: Probe, clock_s: list[float], tmp_path: Path
) -> None:
    """Azure's netvsc counts what its virtual function transfers, and has its speed."""
    nic("eth0", speed="50000")
    stands_on(nic, tmp_path, "eth0", enP1s1="50000")

    def traffic() -> None:
        nic("eth0", received=250_000, speed="50000")
        nic("enP1s1", received=240_000, speed="50000")

    usage = second_sample(probe(), clock_s, traffic)
    assert usage.bandwidth_in == ResourceUsage(about(1000.0), 50_000_000.0)


def stands_on(nic: Make, root: Path, upper: str, **lower: str) -> None:
    """Make interfaces below another one, by name and speed, linked as the kernel does it."""
    links = root / "sys/class/net"
    for name, speed in lower.items():
        nic(name, speed=speed)
        (links / name / "master").symlink_to((links / upper).resolve())
        (links / name / f"upper_{upper}").symlink_to((links / upper).resolve())
        (links / upper / f"lower_{name}").symlink_to((links / name).resolve())


def test_without_a_physical_interface_the_network_is_unknown(nic: Make, probe: Probe) -> None:
    nic("eth0", virtual=True)
    seen = probe()
    with capture_logs() as logs:
        usages = [seen.sample() for _ in range(3)]
    assert {usage.bandwidth_in for usage in usages} == {None}
    assert [log["reason"] for log in logs] == [
        "network: no physical interface is in use; name some as [host] nics"
    ]


def test_missing_counters_and_a_missing_sysfs_are_unknown(nic: Make, probe: Probe) -> None:
    assert probe().sample().bandwidth_in is None
    nic("eth0", received=None)
    seen = probe()
    with capture_logs() as logs:
        usages = [seen.sample() for _ in range(2)]
    assert {usage.bandwidth_out for usage in usages} == {None}
    assert [log["resource"] for log in logs] == ["network traffic"]


def test_changed_interfaces_give_no_rate(nic: Make, probe: Probe, clock_s: list[float]) -> None:
    nic("eth0", received=100)
    seen = probe()
    assert second_sample(seen, clock_s, lambda: nic("eth1", received=10**12)).bandwidth_in is None
    clock_s[0] += 2
    nic("eth1", received=10**12 + 250_000)
    assert seen.sample().bandwidth_in == ResourceUsage(about(1000.0), 2_000_000.0)


def test_counters_set_back_give_no_rate(nic: Make, probe: Probe, clock_s: list[float]) -> None:
    nic("eth0", received=10**9, sent=5)
    usage = second_sample(probe(), clock_s, lambda: nic("eth0", received=3, sent=250_005))
    assert usage.bandwidth_in is None
    assert usage.bandwidth_out == ResourceUsage(about(1000.0), 1_000_000.0)


def test_a_link_that_leads_in_circles_is_unknown(nic: Make, probe: Probe, tmp_path: Path) -> None:
    nic("eth0")
    (tmp_path / "sys/class/net/eth1").symlink_to("eth1")
    with capture_logs() as logs:
        assert probe().sample().bandwidth_in is None
    assert "eth1" in logs[0]["reason"]

"""Traffic and capacity of network interfaces."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from loadmanager.adapters.host import PsutilHostProbe
from loadmanager.core.load import HostUsage, ResourceUsage

Make = Callable[..., None]
Probe = Callable[..., PsutilHostProbe]


def about(value: float) -> Any:
    return pytest.approx(value)


@pytest.fixture(autouse=True)
def _host(host: Make) -> None:
    host()


def second_sample(
    probe: PsutilHostProbe, clock_s: list[float], between: Callable[[], None], after_s: float = 2.0
) -> HostUsage:
    probe.sample()
    between()
    clock_s[0] += after_s
    return probe.sample()


def test_rates_are_in_kbit_per_s_and_the_limit_is_the_interfaces_speed(
    nic: Make, probe: Probe, clock_s: list[float]
) -> None:
    nic("eth0", received=1000, sent=0)
    usage = second_sample(probe(), clock_s, lambda: nic("eth0", received=251_000, sent=500_000))
    assert usage.bandwidth_in == ResourceUsage(about(1000.0), 1_000_000.0)
    assert usage.bandwidth_out == ResourceUsage(about(2000.0), 1_000_000.0)


def test_the_first_sample_has_no_rates(nic: Make, probe: Probe) -> None:
    nic("eth0", received=1000)
    usage = probe().sample()
    assert (usage.bandwidth_in, usage.bandwidth_out) == (None, None)


def test_hardware_counts(nic: Make, probe: Probe, clock_s: list[float], tmp_path: Path) -> None:
    (tmp_path / "sys/class/net").mkdir(parents=True)
    (tmp_path / "sys/class/net/bonding_masters").write_text("bond0\n")

    def traffic(received: int) -> None:
        nic("eth0", received=received)
        nic("eth1", received=received, operstate="unknown")
        nic("eth2", received=received, operstate="down")
        nic("ib0", received=received, kind=32)
        nic("veth12ab", received=received, speed="10000", virtual=True)
        nic("docker0", received=received, speed="-1", virtual=True)
        nic("lo", received=received, kind=772, virtual=True)

    traffic(0)
    usage = second_sample(probe(), clock_s, lambda: traffic(250_000))
    assert usage.bandwidth_in == ResourceUsage(about(2000.0), 2_000_000.0)


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


def test_a_speed_that_answers_with_an_error_is_unknown(
    nic: Make, probe: Probe, clock_s: list[float], tmp_path: Path
) -> None:
    # A folder in place of the file: opening it fails, as EINVAL does on a virtual interface.
    nic("eth0", speed=None)
    (tmp_path / "sys/class/net/eth0/speed").mkdir()
    usage = second_sample(probe(), clock_s, lambda: nic("eth0", received=250_000, speed=None))
    assert usage.bandwidth_in == ResourceUsage(about(1000.0), 0.0)


def test_the_configured_speed_is_the_total(nic: Make, probe: Probe, clock_s: list[float]) -> None:
    nic("eth0")
    nic("eth1", speed="-1")
    usage = second_sample(
        probe(nic_speed_mbit_per_s=2500.0), clock_s, lambda: nic("eth1", received=250_000)
    )
    assert usage.bandwidth_in == ResourceUsage(about(1000.0), 2_500_000.0)


def test_named_interfaces_always_count(nic: Make, probe: Probe, clock_s: list[float]) -> None:
    nic("eth0", received=0)
    nic("eth9", received=0, virtual=True, operstate="down")

    def traffic() -> None:
        nic("eth0", received=10**9)
        nic("eth9", received=250_000, virtual=True)

    usage = second_sample(probe(nics=["eth9"], nic_speed_mbit_per_s=1000.0), clock_s, traffic)
    assert usage.bandwidth_in == ResourceUsage(about(1000.0), 1_000_000.0)


def test_the_speed_of_a_veth_is_not_believed(nic: Make, probe: Probe, clock_s: list[float]) -> None:
    nic("eth0", speed="10000", virtual=True)
    usage = second_sample(
        probe(nics=["eth0"]), clock_s, lambda: nic("eth0", received=250_000, virtual=True)
    )
    assert usage.bandwidth_in == ResourceUsage(about(1000.0), 0.0)


def test_bonds_have_a_speed(nic: Make, probe: Probe, clock_s: list[float], tmp_path: Path) -> None:
    nic("bond0", speed="2000", virtual=True)
    (tmp_path / "sys/devices/virtual/net/bond0/lower_eth0").mkdir()
    usage = second_sample(
        probe(nics=["bond0"]),
        clock_s,
        lambda: nic("bond0", received=250_000, speed="2000", virtual=True),
    )
    assert usage.bandwidth_in == ResourceUsage(about(1000.0), 2_000_000.0)


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

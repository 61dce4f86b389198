"""The CPU usage that a load manager reports, and that its process's CPU time takes the place of."""

import time
from collections.abc import Sequence

import pytest
from fake_pulsar import FakePulsar

from loadmanager.core.ids import BrokerId
from loadmanager.core.load import ResourceUsage
from loadmanager.pulsar.answers import Exposition, PulsarCluster
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.sampling import HostFigures, Hosts
from tests.attach.conftest import attach

BROKER, OTHER = BrokerId("broker-1:8080"), BrokerId("broker-2:8080")
MEMORY = ResourceUsage(100.0, 1000.0)


def told(
    reported: ResourceUsage, limit: float, used: Sequence[float | None], cores: float | None = None
) -> HostFigures:
    """Return the figures after windows in which the process took these cores."""
    hosts = Hosts(cores)
    usages = {"cpu": reported, "memory": MEMORY}
    measured = HostFigures(usages=usages, age_s=120.0, cpu_limit=limit)
    return [hosts.completed(BROKER, measured, one, 10.0) for one in used][-1]


OFF = ResourceUsage(180.0, 200.0)
BY_METRICS = ResourceUsage(90.0, 100.0)


@pytest.mark.parametrize(
    ("reported", "limit", "used", "cores", "expected"),
    [
        (OFF, 200.0, (0.4, 0.4, 0.5), None, ResourceUsage(50.0, 200.0)),
        (ResourceUsage(20.0, 200.0), 200.0, (1.0, 1.0, 1.0), None, ResourceUsage(100.0, 200.0)),
        # Two windows only, less than a tenth of the limit, or once as reported.
        (OFF, 200.0, (0.4, 0.4), None, OFF),
        (OFF, 200.0, (1.61, 1.61, 1.61), None, OFF),
        (OFF, 200.0, (0.4, 1.8, 0.4, 0.4, 0.4), None, OFF),
        # The process restarted, or reports no CPU time.
        (OFF, 200.0, (0.4, 0.4, None, 0.4), None, OFF),
        (OFF, 200.0, (None, None, None), None, OFF),
        # Percentages of an unknown number of cores, until somebody says how many.
        (BY_METRICS, 0.0, (0.4, 0.4, 0.4), None, BY_METRICS),
        (BY_METRICS, 0.0, (0.4, 0.4, 0.4), 4.0, ResourceUsage(40.0, 400.0)),
        (BY_METRICS, 0.0, (3.5, 3.5, 3.5), 4.0, BY_METRICS),
        (OFF, 200.0, (0.4, 0.4, 0.4), 1.0, ResourceUsage(40.0, 100.0)),
    ],
)
def test_cpu_time_takes_the_place_of_a_report_that_is_wrong_for_three_windows(
    reported: ResourceUsage,
    limit: float,
    used: Sequence[float | None],
    cores: float | None,
    expected: ResourceUsage,
) -> None:
    found = told(reported, limit, used, cores)
    assert found.usages == {"cpu": expected, "memory": MEMORY}
    assert bool(found.distrusted) is (expected is not reported)


@pytest.mark.parametrize(
    ("ahead_s", "pending"), [(-3600.0, False), (-60.0, True), (60.0, True), (3600.0, False)]
)
async def test_a_clock_that_is_an_hour_off_keeps_no_figures_back(
    ahead_s: float, pending: bool
) -> None:
    seen = Exposition(usages={"cpu": 50.0}, started_s=time.time_ns() / 1e9 + ahead_s)
    extensible = PulsarCluster(name="research", brokers=(BROKER,), manager="extensible")
    found = await Hosts().measured(PulsarAdmin(Access()), "", extensible, seen)
    assert found.pending is pending


def test_the_doctor_says_which_broker_reports_more_than_it_takes(pulsar: FakePulsar) -> None:
    for broker in pulsar.brokers:
        broker.load_report = {"cpu": {"usage": 180.0, "limit": 200.0}}
    pulsar.brokers[0].more_metrics = "process_cpu_seconds_total{} 100.0"
    found = attach(pulsar, "--doctor")
    assert found.exit_code == 0, found.output
    name = pulsar.brokers[0].name
    said = f"{name}: its load manager reports 90% of 2 cores, and its process takes 0%"
    assert said in found.output
    assert found.output.count("its load manager reports") == 1


def test_the_doctor_says_that_brokers_of_one_host_may_report_the_same_cpu(
    pulsar: FakePulsar,
) -> None:
    for broker in pulsar.brokers:
        broker.more_metrics = (
            'pulsar_lb_cpu_usage{cluster="research",broker="x"} 50\nprocess_cpu_seconds_total{} 1.0'
        )
    found = attach(pulsar, "--doctor")
    assert "may each report the CPU of the whole host as theirs" in found.output
    assert "--cores N" in found.output
    assert "whole host" not in attach(pulsar, "--doctor", "--cores", "1").output


# Percent as reported, and cores that the process took, of two brokers in each window of 10 s; the
# limits in cores that follow, 0 where a report counts as it is.
STEADY = ((50.0, 0.25), (5.0, 0.02))
MINUTE = ((50.0, 0.25), (5.0, 0.25))
LIMITS = {
    "from the first window, and those that are idle have the same": ([STEADY], (0.5, 0.5)),
    "of the minute that was measured": (
        [STEADY, *[MINUTE] * 6, ((50.1, 0.1), (50.0, 0.25))],
        (0.45, 0.5),
    ),
    "other processes are measured, too": ([((60.0, 0.9), (60.0, 0.05))], (1.5, 0.0)),
    "all are idle": ([((5.0, 0.02), (5.0, 0.02))], (0.0, 0.0)),
    "a minute that was not seen whole": (
        [((50.0, 0.25), (5.0, 0.25)), ((60.0, 0.1), (60.0, 0.1))],
        (0.5, 0.5),
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_limit_of_cpu_follows_from_percentages(name: str) -> None:
    windows, expected = LIMITS[name]
    hosts, limits = Hosts(), {BROKER: 0.0, OTHER: 0.0}
    for window in windows:
        for broker, (percent, cores) in zip(limits, window, strict=True):
            usages = {"cpu": ResourceUsage(percent, 100.0)}
            found = hosts.completed(broker, HostFigures(usages=usages, age_s=120.0), cores, 10.0)
            limits[broker] = found.cpu_limit / 100.0
    assert tuple(limits.values()) == pytest.approx(expected, abs=0.01)


def test_the_limit_of_a_broker_that_left_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, hosts = 1000.0, Hosts()
    monkeypatch.setattr("loadmanager.pulsar.sampling.time.monotonic", lambda: now_s)

    def limit(broker: BrokerId, cores: float) -> float:
        measured = HostFigures(usages={"cpu": ResourceUsage(50.0, 100.0)}, age_s=120.0)
        return hosts.completed(broker, measured, cores, 10.0).cpu_limit

    assert limit(OTHER, 1.0) == 200.0
    assert limit(BROKER, 0.25) == 0.0
    now_s += 121.0
    assert limit(BROKER, 0.25) == 50.0

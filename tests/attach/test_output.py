"""What `attach` prints for people: lines of tasks, and summaries of windows."""

from dataclasses import replace

import pytest

from loadmanager.cli.attach_output import LastHour, columns, short_line, summary
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskState, task_of
from loadmanager.core.ids import BrokerId, BundleId, parse_bundle
from loadmanager.core.load import ResourceUsage
from loadmanager.core.plan import Cause, Move
from loadmanager.core.rates import Rates
from loadmanager.pulsar.answers import PulsarCluster
from loadmanager.pulsar.observation import Observation
from loadmanager.pulsar.sampling import BrokerSample, HostFigures

BUNDLES = [
    parse_bundle(f"shop/orders/0x{number}0000000_0x{number + 1}0000000") for number in range(9)
]
RATES = Rates(1000.0, 240.0, 1e6, 2e6)


def task(
    state: TaskState = TaskState.SERVING,
    bundle: BundleId = BUNDLES[0],
    *,
    source: str = "broker-1:8080",
    took_s: float = 0.3,
    note: str = "",
    influence: Rates | None = RATES,
) -> BundleTask:
    target = BrokerId(source.replace("1", "2", 1))
    return task_of(
        *(Move(bundle, BrokerId(source), target, Cause.IMBALANCE), AskedBy.BALANCING),
        state=state,
        attempts=1,
        released_at_s=10.0,
        ended_at_s=10.0 + took_s,
        note=note,
        influence=influence,
    )


def test_a_move_that_arrived_is_a_line_with_traffic_and_pause() -> None:
    assert short_line(task(), 100) == (
        f"serving  {BUNDLES[0]}: broker-1:8080 -> broker-2:8080, 1,240 msg/s, pause 0.3 s"
    )


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("pulsar-broker-1.pulsar-broker.pulsar.svc.cluster.local:8080", "pulsar-broker-1 -> "),
        ("10.123.123.1:8080", "10.123.123.1 -> "),
    ],
)
def test_lines_fit_by_short_names_and_long_reasons_are_cut(source: str, shown: str) -> None:
    failed = task(TaskState.FAILED, source=source, note="refused " * 30)
    line = short_line(failed, 100)
    assert len(line) == 100
    assert shown in line
    assert line.endswith("…")
    assert "msg/s" not in line


def test_the_summary_of_the_last_hour() -> None:
    hour = LastHour()
    assert list(hour.summary(0.0)) == []
    hour.add(0.0, task(bundle=BUNDLES[8], took_s=9.0))
    for number in range(5):
        for _ in range(number + 1):
            hour.add(100.0, task(bundle=BUNDLES[number], took_s=number / 10))
    hour.add(200.0, task(TaskState.FAILED, BUNDLES[5], influence=None))
    hour.add(200.0, replace(task(TaskState.SUPERSEDED, BUNDLES[5]), attempts=0))
    assert list(hour.summary(3650.0)) == [
        "last hour: 16 moves (15 serving, 1 failed), 18,600 msg/s and 45.0 MB/s moved",
        f"moved more than twice: {BUNDLES[4]} (5), {BUNDLES[3]} (4), {BUNDLES[2]} (3)",
        f"longest pause: 0.4 s, of {BUNDLES[4]}",
    ]
    assert list(hour.summary(3900.0)) == []


def test_a_window_says_what_stays_and_shows_cpu_from_where_it_is_known() -> None:
    brokers = [BrokerId(f"broker-{number}:8080") for number in range(4)]
    known = HostFigures(usages={"cpu": ResourceUsage(50.0, 200.0)})
    samples = {
        brokers[0]: BrokerSample(window_s=10.0, bundles={}, cpu_cores=0.5, host=known),
        brokers[1]: BrokerSample(window_s=10.0, bundles={}, cpu_cores=0.25),
        brokers[2]: BrokerSample(window_s=10.0, bundles={}, usages={"cpu": 40.0}),
        brokers[3]: BrokerSample(window_s=10.0, bundles={}),
    }
    stays = {bundle: f"why {min(number, 11)}" for number, bundle in enumerate(BUNDLES)}
    seen = Observation(
        cluster=PulsarCluster(name="c", brokers=tuple(brokers)),
        samples=samples,
        missing={},
        plan=None,
        proposals=(),
        staying={**stays, BUNDLES[8]: "why 0"},
    )
    names, rows = columns(seen)
    cpu = {row[0]: row[names.index("CPU>")] for row in rows}
    assert list(cpu.values()) == ["0.50 cores, 25 %", "0.25 cores", "40 %", "-"]
    assert "  2 stay (with traffic): why 0" in list(summary(seen))

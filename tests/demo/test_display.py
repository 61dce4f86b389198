import io
import re

from rich.console import Console, RenderableType

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.demo.display import Display, RunState, summary_table
from loadmanager.demo.figures import (
    BrokerSample,
    ClusterSample,
    Evidence,
    Journal,
    KillEffects,
    Summary,
)
from loadmanager.demo.traffic import TrafficReport

B1, B2 = BrokerId("127.0.0.1:8081"), BrokerId("127.0.0.1:8082")
X = BundleId("public/demo/0x00000000_0x80000000")
Y = BundleId("public/demo/0x80000000_0xffffffff")


def broker(number: int, load: float, **bundles_or_killed: object) -> BrokerSample:
    fields: dict[str, object] = {
        "name": f"broker-{number}",
        "broker": (B1, B2)[number - 1],
        "cpu_fraction": load,
    }
    return BrokerSample(**fields | bundles_or_killed)  # type: ignore[arg-type] # a test's shorthand


BEFORE = ClusterSample(
    105.0, B1, (broker(1, 0.9, bundles={X: 60.0, Y: 40.0}), broker(2, 0.1, bundles={}))
)
AFTER = ClusterSample(
    163.0, B1, (broker(1, 0.4, bundles={X: 60.0}), broker(2, 0.36, bundles={Y: 40.0}))
)
DEAD = ClusterSample(
    170.0, B2, (broker(1, 0.0, killed=True), broker(2, 0.8, bundles={X: 60.0, Y: 40.0}))
)


def scene(*looks: ClusterSample, kills: tuple[KillEffects, ...] = ()) -> RunState:
    journal = Journal(100.0)
    for look in looks:
        journal.add(look)
    earlier = TrafficReport(kind="progress", at_s=162.0, published=6000, lookups=1000)
    later = TrafficReport(kind="progress", at_s=163.0, published=6120, lookups=1020)
    return RunState(
        names={B1: "broker-1", B2: "broker-2"},
        elapsed_s=looks[-1].at_s - 100.0,
        journal=journal,
        reports=(earlier, later),
        kills=kills,
    )


def text_of(picture: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(picture)
    return console.export_text()


def test_plain_lines_tell_each_move_once_and_figures_every_two_seconds() -> None:
    out = io.StringIO()
    show = Display(out)
    show.step("starting ZooKeeper")
    for _ in range(3):
        show.update(scene(BEFORE, AFTER))
    figures = (
        "   63 s  load  40%   36%  max/mean 1.05  120 msg/s  20 lookups/s  "
        "moves 1  waiting 0  errors 0"
    )
    assert out.getvalue().splitlines() == [
        "starting ZooKeeper",
        "   63 s  0x80000000_0xffffffff  broker-1 -> broker-2  rebalanced",
        figures,
    ]


def test_the_summary_names_every_promise() -> None:
    kill = KillEffects("broker-1", B1, 164.0, frozenset({X}), B1, B2, 4.2, 5.1, 5.4)
    summary = Summary(
        leader=B2,
        leader_name="broker-2",
        bundles=2,
        moves=5,
        taken_over=1,
        imbalance_start=2.1,
        imbalance_end=1.08,
        traffic=TrafficReport(
            kind="final", at_s=0.0, lookups=70, published=100, publish_errors=3, publish_retries=1
        ),
        evidence=Evidence(2, 0),
        seconds=60.0,
        settings={},
        kills=(kill,),
    )
    text = text_of(summary_table(summary))
    assert "2.10 → 1.08" in text
    assert "broker-2  127.0.0.1:8082" in text
    assert "5 to balance, 1 taken over" in text
    assert "70 lookups, errors 0" in text
    assert "100 messages, errors 3" in text
    assert re.search(r"broker-1 killed +had 1 bundles", text)
    assert re.search(r"a new leader after +4\.2 s", text)
    assert re.search(r"all bundles served after +5\.1 s", text)
    assert re.search(r"longest wait of a message +5\.4 s", text)

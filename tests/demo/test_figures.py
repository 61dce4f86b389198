import io
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from rich.console import Console

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.demo.display import Display, RunState, summary_table
from loadmanager.demo.figures import (
    BrokerSample,
    ClusterSample,
    Evidence,
    Journal,
    KillEffects,
    Move,
    Summary,
    imbalance,
)
from loadmanager.demo.traffic import TrafficReport

B1, B2, B3 = BrokerId("b1:80"), BrokerId("b2:80"), BrokerId("b3:80")
X, Y = BundleId("t/n/0x00000000_0x80000000"), BundleId("t/n/0x80000000_0xffffffff")


def broker(
    name: BrokerId, *bundles: BundleId, load: float | None = None, killed: bool = False
) -> BrokerSample:
    return BrokerSample(
        name=name,
        broker=name,
        killed=killed,
        cpu_fraction=load,
        bundles=None if killed else dict.fromkeys(bundles, 1.0),
    )


def silent(name: BrokerId) -> BrokerSample:
    return BrokerSample(name=name, broker=name)


def look(at_s: float, *brokers: BrokerSample, leader: BrokerId | None = B1) -> ClusterSample:
    return ClusterSample(at_s, leader, brokers)


def loads(at_s: float, values: Mapping[BrokerId, float]) -> ClusterSample:
    return look(at_s, *(broker(name, load=load) for name, load in values.items()))


def test_imbalance_is_the_busiest_brokers_mean_over_the_mean_of_all() -> None:
    # B1 is 0.8 on the mean, B2 0.2: the mean of both is 0.5.
    assert imbalance([{B1: 0.9, B2: 0.1}, {B1: 0.7, B2: 0.3}]) == pytest.approx(1.6)


@pytest.mark.parametrize("samples", [[], [{}], [{B1: 0.0}]])
def test_without_load_there_is_no_imbalance(samples: list[dict[BrokerId, float]]) -> None:
    assert imbalance(samples) is None


@pytest.mark.parametrize(
    ("samples", "moves"),
    [
        (
            [
                [broker(B1, X), broker(B2, Y)],
                [broker(B1), broker(B2, Y)],
                [broker(B1), broker(B2, X, Y)],
                [broker(B1), broker(B2, X, Y)],
            ],
            [Move(3.0, X, B1, B2, "rebalanced")],
        ),
        (
            [[broker(B1, X), broker(B2, Y)], [broker(B1, killed=True), broker(B2, X, Y)]],
            [Move(2.0, X, B1, B2, "taken over")],
        ),
        # Both list it in the same look: it has not moved yet.
        (
            [
                [broker(B1, X), broker(B2)],
                [broker(B1, X), broker(B2, X)],
                [broker(B1), broker(B2, X)],
            ],
            [Move(3.0, X, B1, B2, "rebalanced")],
        ),
        # The former owner did not answer: nothing is said to have left it.
        ([[broker(B1, X), broker(B2)], [silent(B1), broker(B2, X)]], []),
    ],
    ids=["moved", "taken over", "listed by both", "silent"],
)
def test_a_bundle_that_its_former_owner_lists_no_more_has_moved(
    samples: list[list[BrokerSample]], moves: list[Move]
) -> None:
    journal = Journal(0.0)
    for number, brokers in enumerate(samples, start=1):
        journal.add(look(float(number), *brokers))
    assert journal.moves == moves


def test_the_imbalance_at_the_start_ends_with_the_first_move() -> None:
    journal = Journal(10.0)
    journal.add(loads(10.5, {B1: 0.1, B2: 0.1}))
    journal.add(loads(14.5, {B1: 0.9, B2: 0.1}))
    assert journal.imbalance_start == pytest.approx(1.8)
    journal.add(look(15.0, broker(B1, X, load=0.9), broker(B2, load=0.1)))
    journal.add(look(15.8, broker(B1, load=0.5), broker(B2, X, load=0.5)))
    journal.add(look(16.0, broker(B1, load=0.5), broker(B2, X, load=0.5)))
    assert journal.imbalance_start == pytest.approx(1.8)
    assert journal.imbalance_now == pytest.approx(1.0)


def test_the_imbalance_at_the_end_is_that_of_the_last_ten_seconds() -> None:
    journal = Journal(0.0)
    journal.add(loads(5.0, {B1: 9.0, B2: 0.1}))
    journal.add(loads(25.0, {B1: 0.6, B2: 0.4}))
    journal.add(loads(35.0, {B1: 0.4, B2: 0.6}))
    assert journal.imbalance_end == pytest.approx(1.0)
    assert Journal(0.0).imbalance_end is None


def story(leader: BrokerId | None = B1) -> KillEffects:
    return KillEffects("broker-1", B1, 100.0, frozenset({X}), leader)


def test_a_kill_tells_when_another_led_and_when_all_was_served_again() -> None:
    kill = story()
    kill.follow(look(101.0, broker(B1, killed=True), broker(B2, Y), leader=B1), 2)
    kill.follow(look(104.5, broker(B1, killed=True), broker(B2, Y), leader=B2), 2)
    kill.follow(look(105.0, broker(B1, killed=True), broker(B2, X, Y), leader=B2), 2)
    kill.follow(look(109.0, broker(B1, killed=True), broker(B2, X, Y), leader=B3), 2)
    assert kill.to_json() == {
        "killed_broker": "broker-1 (b1:80)",
        "leader_before": B1,
        "leader_after": B3,
        "new_leader_s": 4.5,
        "reserved_s": 5.0,
        "publish_gap_s": 0.0,
    }


def test_the_publish_gap_is_the_longest_wait_on_a_lost_bundle_since_the_kill() -> None:
    kill = story()
    kill.add_report(TrafficReport(kind="progress", at_s=99.0, slowest_s={X: 3.0}))
    # Half of these nine seconds were before the kill at 100.
    kill.add_report(TrafficReport(kind="progress", at_s=104.5, slowest_s={X: 9.0, Y: 30.0}))
    assert kill.publish_gap_s == pytest.approx(4.5)
    kill.add_report(TrafficReport(kind="progress", at_s=110.0, slowest_s={X: 6.0}))
    assert kill.publish_gap_s == pytest.approx(6.0)
    kill.add_report(TrafficReport(kind="progress", at_s=111.0, slowest_s={}))
    assert kill.publish_gap_s == pytest.approx(6.0)


SETTINGS = {"brokers": 2, "bundles": 2, "topics": 3, "seed": 1}


def summary(*kills: KillEffects, **changed: int) -> Summary:
    counts = dict.fromkeys(("lookup_errors", "publish_errors"), 0) | changed
    evidence = Evidence(counts.pop("served", 2), counts.pop("double_owned", 0))
    return Summary(
        leader=B1,
        leader_name="broker-1",
        bundles=2,
        moves=1,
        taken_over=0,
        imbalance_start=1.987654,
        imbalance_end=None,
        traffic=TrafficReport(
            kind="final",
            at_s=0.0,
            lookups=7,
            published=100,
            publish_retries=1,
            last_lookup_error="503 no leader",
            last_publish_error="421 not here",
            lookup_errors=counts["lookup_errors"],
            publish_errors=counts["publish_errors"],
        ),
        seconds=60.04,
        settings=SETTINGS,
        evidence=evidence,
        kills=kills,
    )


def test_a_summary_has_the_promised_fields() -> None:
    assert summary().to_json() == {
        "leader": B1,
        "brokers": 2,
        "bundles": 2,
        "topics": 3,
        "moves": 1,
        "taken_over": 0,
        "imbalance_start": 1.99,
        "imbalance_end": None,
        "lookups": 7,
        "lookup_errors": 0,
        "published": 100,
        "publish_errors": 0,
        "publish_retries": 1,
        "double_owned": 0,
        "seconds": 60.04,
        "settings": SETTINGS,
    }


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ("double_owned", "2 bundles were served by two brokers at the same time"),
        (
            "lookup_errors",
            "2 lookups had no good answer from a living sidecar, the last: 503 no leader",
        ),
        ("publish_errors", "2 messages were accepted by no broker in time, the last: 421 not here"),
    ],
)
def test_a_broken_promise_is_named(changed: str, text: str) -> None:
    assert summary(**{changed: 2}).broken_promises == (text,)
    assert summary(served=1).broken_promises == ("the brokers' records list 1 of 2 bundles",)
    (unserved,) = summary(story()).broken_promises
    assert unserved == "not every bundle was served again after broker-1 was killed"


def scene() -> RunState:
    journal = Journal(100.0)
    journal.add(look(105.0, broker(B1, X, Y, load=0.9), broker(B2, load=0.1)))
    journal.add(look(163.0, broker(B1, X, load=0.4), broker(B2, Y, load=0.36)))
    earlier = TrafficReport(kind="progress", at_s=162.0, published=6000, lookups=1000)
    later = TrafficReport(kind="progress", at_s=163.0, published=6120, lookups=1020)
    return RunState(
        names={B1: "broker-1", B2: "broker-2"},
        elapsed_s=63.0,
        journal=journal,
        reports=(earlier, later),
        kills=(),
    )


def test_plain_lines_tell_each_move_once_and_figures_every_two_seconds() -> None:
    out = io.StringIO()
    show = Display(out)
    show.step("starting ZooKeeper")
    for _ in range(3):
        show.update(scene())
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
    console = Console(file=io.StringIO(), width=80, record=True)
    told = replace(summary(kill, publish_errors=3), imbalance_end=1.08, moves=5, taken_over=1)
    console.print(summary_table(told))
    text = console.export_text()
    assert "1.99 → 1.08" in text
    assert "broker-1  b1:80" in text
    assert "5 to balance, 1 taken over" in text
    assert "7 lookups, errors 0" in text
    assert "100 messages, errors 3" in text
    assert re.search(r"broker-1 killed +had 1 bundles", text)
    assert re.search(r"a new leader after +4\.2 s", text)
    assert re.search(r"all bundles served after +5\.1 s", text)
    assert re.search(r"longest wait of a message +5\.4 s", text)

"""What happens to brokers, and what it does to their bundles and clients."""

import numpy as np
import pytest
from simulated_worlds import Stepped, scenario

from loadmanager.core.scores import CPU

HAND_OVER = {
    "order_s": 0.0, "base_s": 1.0, "per_topic_s": 0.0, "reconnect_s": 0.0,
    "session_timeout_s": 30.0,
}  # fmt: skip


def played(*events: dict[str, object], brokers: int = 3) -> Stepped:
    return Stepped(scenario(brokers=brokers, hand_over=HAND_OVER, events=list(events)))


def event(kind: str, at_s: float, *brokers: str, **fields: object) -> dict[str, object]:
    return {"kind": kind, "at_s": at_s, "brokers": list(brokers), **fields}


def texts(stepped: Stepped) -> list[tuple[float, str]]:
    return stepped.world.world_events.texts


def test_a_broker_that_joins_is_there_empty() -> None:
    classes = [{"name": "b", "count": 2}, {"name": "late", "count": 1, "joined": False}]
    stepped = Stepped(scenario(brokers=classes, events=[event("join", 5.0, "late")]))
    assert stepped.until(4.0).measured.present.tolist() == [True, True, False]
    assert stepped.until(5.0).measured.present.tolist() == [True, True, True]
    assert stepped.owners() == ["b-1", "b-2", "b-1", "b-2"]
    assert texts(stepped) == [(5.0, "late-1:8080 joined")]


def test_the_bundles_of_a_broker_that_leaves_are_nobodys_at_once() -> None:
    stepped = played(event("leave", 5.0, "b-1"))
    measured = stepped.until(5.0).measured
    assert measured.present.tolist() == [False, True, True]
    assert stepped.owners() == [None, "b-2", "b-3", None]
    assert stepped.world.hand_overs.unowned() == [
        stepped.world.bundles[0],
        stepped.world.bundles[3],
    ]


def test_a_crashed_broker_serves_nothing_and_counts_as_there_until_its_session_ends() -> None:
    stepped = played(event("crash", 5.0, "b-1"))
    measured = stepped.until(5.0).measured
    assert stepped.owners() == [None, "b-2", "b-3", None]
    assert measured.present.tolist() == [True, True, True]
    assert not stepped.world.members.alive[0]
    assert stepped.world.world_events.silences == [([0], 35.0)]
    stepped.until(34.0)
    assert stepped.world.hand_overs.unowned() == []
    measured = stepped.until(35.0).measured
    assert measured.present.tolist() == [False, True, True]
    assert len(stepped.world.hand_overs.unowned()) == 2
    assert texts(stepped) == [(5.0, "b-1:8080 crashed"), (35.0, "b-1:8080 lost its session")]


def test_clients_of_a_crashed_broker_wait_from_the_crash_on() -> None:
    stepped = played(event("crash", 5.0, "b-1"))
    stepped.until(40.0)
    for bundle in stepped.world.hand_overs.unowned():
        stepped.order(bundle, "b-2")
    stepped.until(50.0)
    topics = stepped.world.topics
    clients = float((topics.producers + topics.consumers)[[0, 3]].sum())
    assert stepped.world.hand_overs.interrupted_client_s == pytest.approx(clients * 36.0)
    moved = sum(one.interrupted_client_s for one in stepped.world.hand_overs.records)
    assert moved == pytest.approx(clients * 1.0)


def test_a_broker_that_is_back_before_its_session_ended_waits_for_the_end() -> None:
    stepped = played(event("crash", 5.0, "b-1"), event("join", 10.0, "b-1"))
    stepped.until(34.0)
    assert not stepped.world.members.alive[0]
    assert stepped.until(35.0).measured.present.all()
    assert stepped.world.members.alive[0]


def test_a_draining_broker_serves_on_until_it_is_empty_and_leaves_then() -> None:
    stepped = played(event("drain", 5.0, "b-1"))
    measured = stepped.until(8.0).measured
    assert measured.draining.tolist() == [True, False, False]
    assert stepped.owners() == ["b-1", "b-2", "b-3", "b-1"]
    for bundle in (stepped.world.bundles[0], stepped.world.bundles[3]):
        stepped.order(bundle, "b-2")
    measured = stepped.until(9.0).measured
    assert stepped.owners() == ["b-2", "b-2", "b-3", "b-2"]
    assert measured.present.tolist() == [False, True, True]
    assert not measured.draining.any()
    assert texts(stepped) == [(5.0, "b-1:8080 drains"), (9.0, "b-1:8080 left")]


def test_a_draining_broker_does_not_leave_while_something_is_on_its_way_to_it() -> None:
    stepped = Stepped(
        scenario(
            brokers=3,
            load={"placed_on": ["b-1"]},
            hand_over={**HAND_OVER, "order_s": 5.0},
            events=[event("drain", 2.0, "b-2")],
        )
    )
    stepped.order(stepped.world.bundles[0], "b-2")
    assert stepped.until(6.0).measured.owner.tolist() == [1, 0, 0, 0]
    assert stepped.world.members.alive[1]
    stepped.order(stepped.world.bundles[0], "b-3")
    assert stepped.until(12.0).measured.owner.tolist() == [2, 0, 0, 0]
    assert not stepped.world.members.alive[1]


def test_a_restart_takes_one_after_the_other_and_waits_until_each_is_back() -> None:
    restart = event("restart", 10.0, "b", every_s=20.0, down_s=30.0, drained=False)
    stepped = played(restart, brokers=3)
    seen = [stepped.until(second).measured.present.tolist() for second in (10.0, 41.0, 75.0, 100.0)]
    assert seen == [[False, True, True], [True, False, True], [True, True, False], [True] * 3]
    assert texts(stepped) == [
        (10.0, "b-1:8080 left"),
        (40.0, "b-1:8080 joined"),
        (40.0, "b-2:8080 left"),
        (70.0, "b-2:8080 joined"),
        (70.0, "b-3:8080 left"),
        (100.0, "b-3:8080 joined"),
    ]


def test_a_drained_restart_goes_down_once_empty() -> None:
    restart = event("restart", 10.0, "b-2", "b-3", every_s=0.0, down_s=5.0)
    stepped = played(restart)
    stepped.until(15.0)
    assert stepped.owners() == ["b-1", "b-2", "b-3", "b-1"]
    stepped.order(stepped.world.bundles[1], "b-1")
    stepped.until(25.0)
    assert texts(stepped) == [
        (10.0, "b-2:8080 drains"),
        (16.0, "b-2:8080 left"),
        (21.0, "b-2:8080 joined"),
        (21.0, "b-3:8080 drains"),
    ]


def test_a_restart_passes_over_a_broker_that_is_down() -> None:
    restart = event("restart", 10.0, "b", every_s=0.0, down_s=5.0, drained=False)
    stepped = played(event("crash", 2.0, "b-1"), restart)
    stepped.until(22.0)
    assert [text for _, text in texts(stepped) if "left" in text] == [
        "b-2:8080 left",
        "b-3:8080 left",
    ]


def test_a_restart_goes_on_when_a_broker_crashes_while_it_drains() -> None:
    restart = event("restart", 10.0, "b-1", "b-2", every_s=0.0, down_s=5.0)
    stepped = played(restart, event("crash", 12.0, "b-1"))
    stepped.until(42.0)
    assert texts(stepped)[2:] == [(42.0, "b-1:8080 lost its session"), (42.0, "b-2:8080 drains")]


def test_noisy_neighbours_take_cores_for_a_while() -> None:
    noise = event("noise", 5.0, "b-1", cores=2.0, for_s=10.0)
    stepped = played(noise)
    before = stepped.until(4.0).measured.usage[:, CPU].copy()
    np.testing.assert_allclose(
        stepped.until(5.0).measured.usage[:, CPU] - before, [200.0, 0.0, 0.0]
    )
    np.testing.assert_allclose(stepped.until(15.0).measured.usage[:, CPU], before)


def test_hand_overs_before_a_crash_within_the_same_step_are_done() -> None:
    crash = event("crash", 15.0, "b-2")
    stepped = Stepped(scenario(step_s=10.0, brokers=3, hand_over=HAND_OVER, events=[crash]))
    stepped.until(10.0)
    stepped.order(stepped.world.bundles[0], "b-2")
    stepped.until(20.0)
    (record,) = stepped.world.hand_overs.records
    assert record.at_s == 10.0
    assert stepped.owner(stepped.world.bundles[0]) is None

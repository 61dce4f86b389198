"""What happens to brokers and to bundles that change hands: who serves, how long clients wait."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_worlds import Stepped, broker, scenario

from loadmanager.core.plan import Cause, Move
from loadmanager.core.scores import CPU
from loadmanager.simulator.results import Why

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


SLOW = {
    "order_s": 2.0, "base_s": 3.0, "per_topic_s": 0.0, "reconnect_s": 0.5,
    "session_timeout_s": 10.0,
}  # fmt: skip


def slow(*events: dict[str, object], load: dict[str, object] | None = None) -> Stepped:
    return Stepped(scenario(brokers=3, load=load, hand_over=SLOW, events=list(events)))


def clients(played: Stepped, row: int = 0) -> int:
    topics = played.world.topics
    return int(topics.producers[row] + topics.consumers[row])


def test_the_old_owner_serves_until_it_lets_go_and_the_new_one_once_it_has_taken_up() -> None:
    played = slow()
    bundle = played.world.bundles[0]
    played.order(bundle, "b-2")
    assert played.world.hand_overs.under_way == {bundle: broker("b-2")}
    seen, flying = [], []
    for second in range(1, 7):
        played.until(float(second))
        seen.append(played.owner(bundle))
        flying.append(played.world.hand_overs.under_way == {bundle: broker("b-2")})
        assert played.world.hand_overs.unowned() == []
    assert seen == ["b-1", None, None, None, "b-2", "b-2"]
    assert flying == [True] * 4 + [False] * 2
    assert played.world.hand_overs.under_way == {}


def test_clients_wait_from_the_release_until_they_have_reconnected() -> None:
    played = slow()
    played.order(played.world.bundles[0], "b-2")
    rates = played.moment.wanted[0]
    played.until(9.0)
    (record,) = played.world.hand_overs.records
    assert record.interrupted_client_s == pytest.approx(clients(played) * 3.5)
    assert played.world.hand_overs.interrupted_client_s == record.interrupted_client_s
    assert (record.at_s, record.source, record.target) == (0.0, broker("b-1"), broker("b-2"))
    assert (record.why, record.cause) == (Why.SHED, Cause.OVERLOADED)
    assert record.msgs_per_s == pytest.approx(float(rates[0] + rates[1]))
    assert record.bytes_per_s == pytest.approx(float(rates[2] + rates[3]))


def test_a_pause_shorter_than_a_step_is_counted_to_the_millisecond() -> None:
    short = {"order_s": 0.1, "base_s": 0.05, "per_topic_s": 0.0, "reconnect_s": 0.2}
    played = Stepped(scenario(step_s=10.0, hand_over=short))
    bundle = played.world.bundles[0]
    played.order(bundle, "b-2")
    played.until(10.0)
    assert played.owner(bundle) == "b-2"
    assert played.world.hand_overs.interrupted_client_s == pytest.approx(clients(played) * 0.25)


@pytest.mark.parametrize("ordered_s", [0.0, 1.0])
def test_a_bundle_stays_if_its_target_leaves_before_the_release(ordered_s: float) -> None:
    played = slow(event("leave", 1.0, "b-2"))
    played.until(ordered_s)
    bundle = played.world.bundles[0]
    played.order(bundle, "b-2")
    played.until(20.0)
    assert played.owner(bundle) == "b-1"
    assert bundle not in played.world.hand_overs.under_way


def test_what_nobody_has_is_asked_for_and_placed() -> None:
    played = slow(load={"placed": "unowned"})
    assert played.world.hand_overs.unowned() == list(played.world.bundles)
    played.until(10.0)
    bundle = played.world.bundles[0]
    played.order(bundle, "b-3", Cause.UNOWNED)
    assert bundle not in played.world.hand_overs.unowned()
    played.until(15.0)
    assert played.owner(bundle) == "b-3"
    (record,) = played.world.hand_overs.records
    assert (record.source, record.why) == (None, Why.PLACED)
    # The clients came at 0; of the move's making are only the 5.5 s after the order.
    assert record.interrupted_client_s == pytest.approx(clients(played) * 5.5)
    assert played.world.hand_overs.interrupted_client_s == pytest.approx(clients(played) * 15.5)


def test_moves_at_a_time_leave_a_broker_one_after_the_other() -> None:
    played = Stepped(scenario(brokers=2, hand_over=SLOW, load={"placed_on": ["b-1"]}))
    world = played.world
    source, target = broker("b-1"), broker("b-2")
    moves = [Move(bundle, source, target, Cause.DRAINING) for bundle in world.bundles]
    world.order(moves, 0.0, Why.DRAINED, at_a_time=2)
    seen = [played.until(second).measured.owner.tolist() for second in (2.0, 5.0, 7.0, 10.0)]
    assert seen == [[-1, -1, 0, 0], [1, 1, 0, 0], [1, 1, -1, -1], [1, 1, 1, 1]]


def test_a_crashed_target_is_waited_for_until_its_session_ends() -> None:
    played = slow(event("crash", 1.0, "b-2"))
    bundle = played.world.bundles[0]
    played.order(bundle, "b-2")
    played.until(10.0)
    assert played.owner(bundle) is None
    assert bundle in played.world.hand_overs.under_way
    played.until(11.0)
    assert bundle in played.world.hand_overs.unowned()
    played.order(bundle, "b-3", Cause.UNOWNED)
    played.until(20.0)
    assert played.owner(bundle) == "b-3"
    # Let go at 2, with b-3 from 16 on, its clients at 16.5.
    assert played.world.hand_overs.records[-1].interrupted_client_s == clients(played) * 5.5
    assert len([one for one in played.world.hand_overs.records if one.bundle == bundle]) == 1


@pytest.mark.parametrize("ordered_s", [0.0, 5.0])
def test_a_source_that_crashes_lets_go_when_its_session_ends(ordered_s: float) -> None:
    played = slow(event("crash", 1.0, "b-1"))
    played.until(ordered_s)
    bundle = played.world.bundles[0]
    played.order(bundle, "b-2")
    played.until(10.0)
    assert played.world.hand_overs.held_by(0).tolist() == [0, 3]
    played.until(13.0)
    assert played.owner(bundle) is None
    played.until(14.0)  # Its session ended at 11.
    assert played.owner(bundle) == "b-2"


def test_a_source_that_leaves_lets_go_at_once() -> None:
    played = slow(event("leave", 1.0, "b-1"))
    bundle = played.world.bundles[0]
    played.order(bundle, "b-2")
    played.until(4.0)
    assert played.owner(bundle) == "b-2"
    (record,) = [one for one in played.world.hand_overs.records if one.bundle == bundle]
    assert record.interrupted_client_s == pytest.approx(clients(played) * 3.5)


def test_what_is_under_way_at_the_end_is_recorded_with_the_pause_so_far() -> None:
    played = slow()
    played.order(played.world.bundles[0], "b-2")
    played.until(4.0)
    played.world.hand_overs.finish(4.0)
    (record,) = played.world.hand_overs.records
    assert record.interrupted_client_s == pytest.approx(clients(played) * 2.0)
    assert played.world.hand_overs.interrupted_client_s == record.interrupted_client_s
    assert played.world.hand_overs.under_way == {}


orders = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 3), st.sampled_from(["b-1", "b-2", "b-3"])),
    max_size=12,
)
some_events = st.lists(
    st.builds(
        lambda kind, at_s, names: {"at_s": float(at_s), "brokers": names, **kind},
        st.sampled_from(
            [
                {"kind": "join"},
                {"kind": "leave"},
                {"kind": "crash"},
                {"kind": "drain"},
                {"kind": "restart", "every_s": 3.0, "down_s": 4.0},
                {"kind": "restart", "every_s": 9.0, "down_s": 2.0, "drained": False},
            ]
        ),
        st.integers(0, 30),
        st.sampled_from([["b-1"], ["b-2"], ["b-3"], ["b"]]),
    ),
    max_size=5,
)


@pytest.mark.parametrize("examples", [25, pytest.param(500, marks=pytest.mark.thorough)])
def test_pauses_add_up_and_a_bundle_is_never_in_two_places(examples: int) -> None:
    settings(max_examples=examples)(given(orders=orders, events=some_events)(_pauses_add_up))()


def _pauses_add_up(orders: list[tuple[int, int, str]], events: list[dict[str, object]]) -> None:
    times = {**SLOW, "reconnect_s": 0.0}  # All on whole seconds, so that steps see all.
    played = Stepped(scenario(brokers=3, hand_over=times, events=events))
    world, waited = played.world, 0.0
    everybody = np.array([clients(played, row) for row in range(4)])
    for second in range(46):
        measured = played.until(float(second)).measured
        waited += float(everybody[measured.owner < 0].sum())
        _nobody_is_in_two_places(played)
        for at, row, target in orders:
            if at == second:
                played.order(world.bundles[row], target)
    world.hand_overs.finish(46.0)
    assert world.hand_overs.interrupted_client_s == pytest.approx(waited)
    moved = sum(one.interrupted_client_s for one in world.hand_overs.records)
    assert moved <= waited + 1e-6


def _nobody_is_in_two_places(played: Stepped) -> None:
    world, measured = played.world, played.moment.measured
    assert (measured.owner < 3).all()
    served = measured.owner[measured.owner >= 0]
    assert world.members.alive[served].all()
    for bundle in world.hand_overs.unowned():
        assert bundle not in world.hand_overs.under_way
        assert played.owner(bundle) is None
    for bundle, target in world.hand_overs.under_way.items():
        assert played.owner(bundle) != target.removesuffix(":8080")

"""Whose bundles a modelled leader keeps for a broker that vanished."""

import pytest
from modelled_cluster import BROKERS, BUNDLES, settled
from simulated_worlds import EXACT, run, scenario


def test_the_bundles_of_one_broker_that_vanished_go_on_at_once() -> None:
    cluster = settled()
    lost = cluster.lose(1)
    cluster.step()
    moves = cluster.leader.place(cluster.now_s, lost, {})
    assert [move.bundle for move in moves] == lost
    assert BROKERS[1] not in {move.target for move in moves}


def test_the_bundles_of_brokers_that_vanished_together_wait_for_their_return() -> None:
    cluster = settled()
    lost = cluster.lose(1, 2)
    cluster.step()
    assert cluster.leader.place(cluster.now_s, lost, {}) == []
    plan = cluster.leader.round(cluster.now_s + 1.0, {}, lost)
    assert plan.moves == ()
    assert len(cluster.leader.place(cluster.now_s + 9.9, [*lost, BUNDLES[0]], {})) == 1
    assert len(cluster.leader.place(cluster.now_s + 10.0, lost, {})) == len(lost)


def test_brokers_that_came_back_are_waited_for_no_more_and_anew() -> None:
    cluster = settled()
    lost = cluster.lose(1, 2)
    cluster.step()
    assert cluster.leader.place(cluster.now_s, lost, {}) == []
    cluster.present = [True] * 4
    cluster.step()
    assert len(cluster.leader.place(cluster.now_s, lost, {})) == len(lost)
    for row, bundle in enumerate(BUNDLES):
        cluster.owner[row] = 1 if bundle in lost else cluster.owner[row]
    cluster.step()
    assert cluster.leader.place(cluster.now_s, [], {}) == []
    again = cluster.lose(1)
    cluster.step()
    assert len(cluster.leader.place(cluster.now_s, again, {})) == len(again)


@pytest.mark.parametrize(
    ("session_s", "steps_between", "waits"),
    [(30.0, 0, True), (15.0, 1, False), (25.0, 1, True), (30.0, 1, True)],
)
def test_brokers_that_vanish_within_a_session_count_as_together(
    session_s: float, steps_between: int, *, waits: bool
) -> None:
    cluster = settled(session_s=session_s)
    first = cluster.lose(1)
    cluster.step()
    assert len(cluster.leader.place(cluster.now_s, first, {})) == len(first)
    for bundle in first:
        cluster.owner[BUNDLES.index(bundle)] = 0
    for _ in range(steps_between):
        cluster.step()
        cluster.leader.place(cluster.now_s, [], {})
    second = cluster.lose(2)
    cluster.step()  # With a step between, the other one has been missed for 20 s by now.
    assert bool(cluster.leader.place(cluster.now_s, second, {})) is not waits


@pytest.mark.parametrize(("session_timeout_s", "placed_s"), [(5.0, 125.0), (30.0, 160.0)])
def test_a_simulated_leader_goes_by_the_sessions_of_its_scenario(
    session_timeout_s: float, placed_s: float
) -> None:
    # The second broker is missed 20 s after the first: with the longer session its bundles wait
    # another 10 s for it to come back.
    crashes = [
        {"kind": "crash", "at_s": at_s, "brokers": [name]}
        for at_s, name in ((100.0, "b-1"), (120.0, "b-2"))
    ]
    played = scenario(
        brokers=4,
        duration_s=200.0,
        load={"bundles": 8, "topics": 8, "over": "bundles"},
        events=crashes,
        hand_over={"session_timeout_s": session_timeout_s},
        noise=EXACT,
    )
    assert max(move.at_s for move in run(played).moves) == placed_s

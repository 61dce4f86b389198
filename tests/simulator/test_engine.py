"""A simulation as a whole: the world, the agents and the leader together."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_digest
from run_digest import digest
from scenario_texts import SOUND, loaded, told
from simulated_worlds import (
    AT_ONCE,
    BUSY,
    EXACT,
    NAMESPACE,
    PAIR,
    PLAIN,
    Stepped,
    Told,
    broker,
    run,
    scenario,
)

from loadmanager.core.plan import Cause
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.results import Why, scores_of
from loadmanager.simulator.scenario import Scenario, ScenarioError
from loadmanager.simulator.strategies import Strategy, planner_for

ALIKE = {
    "bundles": 16, "topics": 16, "over": "bundles", "msgs_in_per_s": 10_000.0,
    "message_bytes": 20_000.0,
}  # fmt: skip
"""Bundles alike, that make four such brokers half busy."""
ON_ONE = ALIKE | {"placed_on": ["b-1"]}


def event(kind: str, at_s: float, *names: str, **fields: object) -> dict[str, object]:
    return {"kind": kind, "at_s": at_s, "brokers": names, **fields}


def test_a_leader_evens_out_what_lies_on_one_broker() -> None:
    told = Told()
    played = scenario(brokers=BUSY, step_s=10.0, duration_s=1800.0, load=ON_ONE)
    found = run(played, witness=told)
    first, last = found.timeline.demand[0, :, 0], found.timeline.demand[-1, :, 0]
    assert first.tolist() == pytest.approx([2.0, 0.0, 0.0, 0.0])
    assert last.max() <= 0.7
    assert {move.why for move in found.moves} == {Why.SHED}
    assert {move.source for move in found.moves} >= {broker("b-1")}
    # The witness is told of every report, round and move.
    assert {report.broker for _, report in told.reports} == set(found.timeline.brokers)
    assert [at_s for at_s, _, _ in told.rounds] == [60.0 * number for number in range(1, 31)]
    assert set(told.averages[-1]) == {bundle for _, one in told.reports for bundle in one.bundles}
    assert sorted(told.moves, key=lambda one: one.at_s) == list(found.moves)
    assert len(found.moves) == sum(len(plan.moves) for _, _, plan in told.rounds)


def test_what_would_be_without_moves_is_what_a_run_without_shedding_shows() -> None:
    loads = ON_ONE | {"patterns": [{"kind": "jitter", "fraction": 0.3}]}
    events = [event("leave", 900.0, "b-1"), event("join", 1200.0, "b-1")]
    fields: dict[str, Any] = {"brokers": BUSY, "step_s": 10.0, "duration_s": 1800.0, "load": loads}
    moved = run(scenario(**fields, events=events))
    still = run(scenario(**fields, shedding={"enabled": False}))
    assert any(move.why is Why.SHED for move in moved.moves)
    unmoved, demand = moved.timeline.unmoved_cpu, still.timeline.demand[:, :, 0]
    assert unmoved is not None
    assert still.timeline.unmoved_cpu is not None
    np.testing.assert_allclose(unmoved[:15], demand[:15], rtol=1e-5)
    np.testing.assert_allclose(still.timeline.unmoved_cpu, demand, rtol=1e-5)
    # What the first broker had is where the run has it from when it left, also when it is back.
    assert np.isnan(unmoved[16, 0])
    np.testing.assert_allclose(unmoved[16:, 1:].sum(axis=1), demand[16:].sum(axis=1), rtol=1e-5)
    assert unmoved[-1, 0] == 0.0


def test_a_cold_start_ends_with_every_bundle_on_some_broker() -> None:
    cold = ALIKE | {"bundles": 40, "topics": 200, "placed": "unowned", "msgs_in_per_s": 8000.0}
    found = run(scenario(brokers=4, step_s=5.0, duration_s=120.0, load=cold, noise=EXACT))
    timeline = found.timeline
    assert timeline.bundles[0].tolist() == [0] * 4
    assert timeline.unowned_msgs_per_s[0] == pytest.approx(16_000.0)
    assert timeline.bundles[-1].sum() == 40
    assert timeline.unowned_msgs_per_s[-1] == 0.0
    assert Counter((move.why, move.source) for move in found.moves) == {(Why.PLACED, None): 40}


def test_what_a_crashed_broker_had_is_placed_again_after_its_session() -> None:
    crash = [event("crash", 100.0, "b-1")]
    found = run(scenario(brokers=3, step_s=5.0, load={"bundles": 12}, events=crash))
    placed = [move for move in found.moves if move.why is Why.PLACED]
    assert len(placed) == 4
    assert all(130.0 <= move.at_s <= 140.0 for move in placed)
    assert found.timeline.bundles[-1].tolist()[0] == 0
    assert found.timeline.bundles[-1].sum() == 12
    assert np.isnan(found.timeline.demand[:, 0, 0]).tolist() == [False] * 2 + [True] * 9
    records = sum(move.interrupted_client_s for move in found.moves)
    assert found.interrupted_client_s > records + 30.0  # Each of its clients waited 30 s.


# A hand-over of 8 s takes two steps of 5 s; in a step of 30 s, six of 5 s follow each other.
@pytest.mark.parametrize(
    ("step_s", "order_s", "base_s", "at_a_time", "every_s"),
    [(5.0, 0.0, 8.0, 3, 10.0), (30.0, 1.0, 4.0, 2, 5.0)],
)
def test_a_draining_broker_is_emptied_a_few_at_a_time_and_leaves(
    step_s: float, order_s: float, base_s: float, at_a_time: int, every_s: float
) -> None:
    played = scenario(
        brokers=3,
        step_s=step_s,
        load={"bundles": 36},
        events=[event("drain", 30.0, "b-1")],
        hand_over={"order_s": order_s, "base_s": base_s, "per_topic_s": 0.0},
    )
    planner = planner_for(played, Strategy.parse(PAIR))
    settings = replace(planner.settings, in_flight_per_broker=at_a_time)
    found = simulate(played, replace(planner, settings=settings), seed=1)
    assert {(move.why, move.cause) for move in found.moves} == {(Why.DRAINED, Cause.DRAINING)}
    first_s, turns = found.moves[0].at_s, 12 // at_a_time
    begun_s = Counter(move.at_s for move in found.moves)
    assert begun_s == {first_s + every_s * turn: at_a_time for turn in range(turns)}
    assert [text for _, text in found.happened] == ["b-1:8080 drains", "b-1:8080 left"]


def test_a_leader_empties_no_broker_that_has_not_told_it_to_drain() -> None:
    events = [event("silence", 40.0, "b-1", for_s=100.0), event("drain", 50.0, "b-1")]
    found = run(scenario(brokers=3, step_s=5.0, events=events, noise=EXACT))
    assert min(move.at_s for move in found.moves) == 140.0


def test_a_drain_that_nobody_can_take_over_leaves_everything_where_it_is() -> None:
    found = run(scenario(brokers=1, step_s=5.0, events=[event("drain", 50.0, "b-1")]))
    assert found.moves == ()
    assert found.timeline.bundles[-1].tolist() == [4]


def test_rounds_and_records_are_as_far_apart_as_asked_for() -> None:
    leader = {"round_interval_s": 30.0, "tick_interval_s": 7.0}
    found = run(scenario(duration_s=150.0, step_s=25.0, leader=leader))
    assert found.rounds == 5
    assert found.timeline.time_s.tolist() == [0.0, 75.0, 125.0]


def test_the_same_seed_gives_the_same_run_in_another_process_whatever_its_hashes() -> None:
    here = digest(run_digest.run(5))
    command = [sys.executable, run_digest.__file__, "5"]
    other_hash = {**os.environ, "PYTHONHASHSEED": "271828"}
    there = subprocess.run(command, capture_output=True, text=True, check=True, env=other_hash)
    assert there.stdout == here != digest(run_digest.run(6))


def test_strategies_are_compared_on_the_same_load() -> None:
    one, other = (run_digest.run(5, name) for name in ("threshold+avg", "uniform+round_robin"))
    assert one.timeline.bound.tobytes() == other.timeline.bound.tobytes()


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    rows = ["time_s,topic,msg_rate_in"]
    rows += [f"{time_s},persistent://{NAMESPACE}/a,{rate}" for time_s, rate in ((0, 10), (60, 30))]
    file = tmp_path / "trace.csv"
    file.write_text("\n".join(rows) + "\n")
    played = scenario(load=[], trace=str(file), trace_bundles=2, duration_s=120.0)
    found = run(played)
    sent = found.timeline.bytes_per_s.sum(axis=1)
    assert sent.tolist() == [20.0 * 1024, 60.0 * 1024, 60.0 * 1024]


def test_a_shift_of_what_is_not_in_the_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(f"time_s,topic,msg_rate_in\n0,persistent://{NAMESPACE}/a,5\n")
    shift = {"kind": "shift", "at_s": 5.0, "namespace": "tenant/none", "factor": 3.0}
    played = scenario(load=[], trace=str(file), events=[shift])
    with pytest.raises(ScenarioError) as refused:
        run(played)
    assert str(refused.value) == f"{file}: no topic in tenant/none; expected one of {NAMESPACE}"


@pytest.mark.parametrize("pair", ["avg+avg", "threshold+round_robin"])
def test_no_simulated_cluster_was_ever_below_its_bound(pair: str) -> None:
    classes = [
        {"name": "b", "count": 2, "cores": 4.0},
        {"name": "slow", "count": 1, "cost": {"cpu_us_per_msg": 60.0}},
    ]
    load = {"bundles": 8, "msgs_in_per_s": 60_000.0, "placed_on": ["b-1"]}
    jittered = load | {"patterns": [{"kind": "jitter", "fraction": 0.2}]}
    settings = {"leader": {"settle_s": 0.0}, "duration_s": 900.0, "step_s": 10.0, "hidden": {}}
    line = run(scenario(brokers=classes, load=jittered, **settings), pair, seed=7).timeline
    largest = np.nan_to_num(line.demand).max(axis=(1, 2))
    assert (line.unowned_msgs_per_s == 0).all()
    assert (largest >= line.bound * (1 - 1e-5)).all()
    assert (line.bound > 0).all()


def crashing(warm_up_s: float) -> Scenario:
    """Return two brokers with ten clients each, one of which dies at 100 s."""
    return scenario(
        duration_s=300.0,
        load={"bundles": 2, "topics": 10, "over": "bundles"},
        events=[{"kind": "crash", "at_s": 100.0, "brokers": ["b-1"]}],
        warm_up_s=warm_up_s,
        hand_over=AT_ONCE | {"session_timeout_s": 30.0},
        noise=EXACT,
    )


def cold(warm_up_s: float) -> Scenario:
    return scenario(
        duration_s=60.0,
        load={"bundles": 2, "topics": 10, "over": "bundles", "placed": "unowned"},
        warm_up_s=warm_up_s,
        hand_over=AT_ONCE | {"order_s": 2.0, "reconnect_s": 1.0},
        noise=EXACT,
    )


def interrupted_client_s(played: Scenario) -> float:
    return scores_of(run(played)).interrupted_client_s


@pytest.mark.parametrize("warm_up_s", [0.0, 100.0, 110.0, 112.5, 131.0, 200.0])
def test_waiting_for_a_crashed_broker_counts_from_the_end_of_the_warm_up(warm_up_s: float) -> None:
    all_s = interrupted_client_s(crashing(0.0)) / 10
    assert 30.0 <= all_s <= 32.0
    want_s = max(100.0 + all_s - max(warm_up_s, 100.0), 0.0)
    assert interrupted_client_s(crashing(warm_up_s)) == pytest.approx(10 * want_s)


@pytest.mark.parametrize("warm_up_s", [1.0, 2.25, 10.0])
def test_waiting_for_a_first_owner_counts_from_the_end_of_the_warm_up(warm_up_s: float) -> None:
    clients = 20
    all_s = interrupted_client_s(cold(0.0)) / clients
    assert all_s == pytest.approx(3.0)
    want = clients * max(all_s - warm_up_s, 0.0)
    assert interrupted_client_s(cold(warm_up_s)) == pytest.approx(want)


def test_clients_that_wait_until_the_end_are_counted_from_the_end_of_the_warm_up() -> None:
    played = crashing(110.0).model_copy(update={"duration_s": 120.0})
    assert interrupted_client_s(played) == pytest.approx(10 * 10.0)
    assert run(played).interrupted_client_s == pytest.approx(10 * 20.0)


def test_the_warm_up_changes_nothing_in_what_happens() -> None:
    assert run(crashing(110.0)).moves == run(crashing(0.0)).moves
    assert run(crashing(110.0)).interrupted_client_s == run(crashing(0.0)).interrupted_client_s


LOAD = {
    "bundles": 8, "topics": 16, "over": "bundles", "msgs_in_per_s": 4_000.0, "fan_out": 0.0,
    "message_bytes": 20_000.0,
}  # fmt: skip
"""Bundles that are 0.4 of such a broker together."""
KEPT = [{"name": "few", "namespaces": ["kept/.*"], "primary": ["b-[12]"]}]


@pytest.mark.parametrize(
    "pair", ["threshold+least_long_term_message_rate", "uniform+least_long_term_message_rate"]
)
def test_no_bundle_goes_where_isolation_does_not_let_it(pair: str) -> None:
    load = LOAD | {"namespace": "kept/here", "placed_on": ["b-1"], "msgs_in_per_s": 9_000.0}
    fields: dict[str, Any] = {
        "brokers": BUSY, "load": load, "step_s": 10.0, "duration_s": 2400.0,
    }  # fmt: skip
    free = {move.target for move in run(scenario(**fields), pair).moves}
    kept = {move.target for move in run(scenario(isolation=KEPT, **fields), pair).moves}
    assert free >= {broker("b-3"), broker("b-4")}
    assert kept == {broker("b-2")}


def test_bundles_begin_where_isolation_lets_them() -> None:
    loads = [LOAD | {"namespace": "kept/here"}, LOAD | {"namespace": "free/there"}]
    world = Stepped(scenario(brokers=BUSY, load=loads, isolation=KEPT))
    assert world.owners() == ["b-1", "b-2"] * 4 + ["b-3", "b-4"] * 4


def test_the_bound_is_that_of_what_isolation_allows() -> None:
    load = LOAD | {"namespace": "kept/here"}
    free = Stepped(scenario(brokers=BUSY, load=load, hidden=PLAIN))
    kept = Stepped(scenario(brokers=BUSY, load=load, hidden=PLAIN, isolation=KEPT))
    assert free.world.bound() == pytest.approx(0.1)
    assert kept.world.bound() == pytest.approx(0.2)
    growing = PLAIN | {"cpu_growth": 0.5}
    grown = Stepped(scenario(brokers=BUSY, load=load, hidden=growing, isolation=KEPT))
    assert grown.world.bound() == pytest.approx(0.2 * 1.1)


def test_namespaces_of_one_group_are_placed_on_different_brokers() -> None:
    one = {"bundles": 1, "topics": 1, "placed": "unowned"}
    loads = [
        LOAD | one | {"namespace": f"team/{number}", "anti_affinity_group": "apart"}
        for number in range(4)
    ]
    fields: dict[str, Any] = {"brokers": BUSY, "step_s": 5.0, "duration_s": 120.0}
    owned = run(scenario(load=loads, **fields)).timeline.bundles[-1]
    assert owned.tolist() == [1, 1, 1, 1]


def test_groups_are_spread_over_failure_domains_first() -> None:
    racks = [BUSY[0] | {"name": name, "count": 2, "failure_domain": name} for name in ("r1", "r2")]
    one = {"bundles": 1, "topics": 1, "placed": "unowned", "anti_affinity_group": "apart"}
    loads = [LOAD | one | {"namespace": f"team/{number}"} for number in range(2)]
    fields: dict[str, Any] = {"step_s": 5.0, "duration_s": 120.0}
    spread = {"failure_domains": True}
    owned = run(scenario(brokers=racks, load=loads, placement=spread, **fields)).timeline.bundles
    assert np.add.reduceat(owned[-1], [0, 2]).tolist() == [1, 1]


def test_a_policy_of_a_file_is_checked(tmp_path: Path) -> None:
    policy = '\n[[isolation]]\nname = "p"\nnamespaces = ["a/("]\nprimary = []\n'
    faults = told(tmp_path, SOUND + policy)
    assert faults[0].startswith(
        'isolation[0].namespaces[0] = "a/("; expected: RE2 does not support'
    )
    assert faults[1].startswith("isolation[0].primary = []; expected it to have at least 1 item")
    assert len(faults) == 2
    sound = loaded(tmp_path, SOUND + policy.replace("a/(", "a/.*").replace("[]", '["small-1"]'))
    assert sound.isolation[0].primary == ("small-1",)

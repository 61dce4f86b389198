"""A simulation as a whole: the world, the agents and the leader together."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_digest
from run_digest import digest
from simulated_worlds import EXACT, FREE, NAMESPACE, QUIET, broker, scenario

from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.plan import Cause
from loadmanager.core.planner import Plan
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.errors import ScenarioError
from loadmanager.simulator.run import MoveRecord, Run, Why
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.strategies import Strategy, planner_for

PAIR = "threshold+least_long_term_message_rate"

BUSY = [
    {
        "name": "b", "count": 4, "cores": 1.0, "background": QUIET,
        "cost": FREE | {"cpu_us_per_msg": 100.0},
    }
]  # fmt: skip
"""Four brokers that are full at 10,000 messages a second."""

ALIKE = {
    "bundles": 16, "topics": 16, "over": "bundles", "msgs_in_per_s": 10_000.0,
    "message_bytes": 20_000.0,
}  # fmt: skip
"""Bundles alike, that make four such brokers half busy."""


class Told:
    """A witness that keeps what it is told."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, LoadReport]] = []
        self.rounds: list[tuple[float, ClusterView, Plan]] = []
        self.averages: list[Mapping[BundleId, BundleAverages]] = []
        self.moves: list[MoveRecord] = []

    def reported(self, at_s: float, report: LoadReport) -> None:
        """Keep a report."""
        self.reports.append((at_s, report))

    def round_done(
        self,
        at_s: float,
        view: ClusterView,
        plan: Plan,
        averages: Callable[[], Mapping[BundleId, BundleAverages]],
    ) -> None:
        """Keep a round."""
        self.rounds.append((at_s, view, plan))
        self.averages.append(averages())

    def moved(self, record: MoveRecord) -> None:
        """Keep a move."""
        self.moves.append(record)


def run(played: Scenario, strategy: str = PAIR, seed: int = 1, **others: object) -> Run:
    pair = Strategy.parse(strategy)
    planner = planner_for(played, pair)
    return simulate(played, planner, strategy=pair.name, seed=seed, **others)  # type: ignore[arg-type]  # by name


def test_a_leader_evens_out_what_lies_on_one_broker() -> None:
    played = scenario(
        brokers=BUSY, step_s=10.0, duration_s=1800.0, load=ALIKE | {"placed_on": ["b-1"]}
    )
    found = run(played)
    first, last = found.timeline.demand[0, :, 0], found.timeline.demand[-1, :, 0]
    assert first.tolist() == pytest.approx([2.0, 0.0, 0.0, 0.0])
    assert last.max() <= 0.7
    assert {move.why for move in found.moves} == {Why.SHED}
    assert {move.source for move in found.moves} >= {broker("b-1")}


def test_what_would_be_without_moves_is_what_a_run_without_shedding_shows() -> None:
    loads = ALIKE | {"placed_on": ["b-1"], "patterns": [{"kind": "jitter", "fraction": 0.3}]}
    leave = {"kind": "leave", "at_s": 900.0, "brokers": ["b-1"]}
    late = {"kind": "join", "at_s": 1200.0, "brokers": ["b-1"]}
    fields: dict[str, Any] = {"brokers": BUSY, "step_s": 10.0, "duration_s": 1800.0, "load": loads}
    moved = run(scenario(**fields, events=[leave, late]))
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


def test_without_shedding_nothing_moves() -> None:
    played = scenario(
        brokers=BUSY,
        step_s=10.0,
        load=ALIKE | {"placed_on": ["b-1"]},
        shedding={"enabled": False},
    )
    found = run(played)
    assert found.moves == ()
    assert found.interrupted_client_s == 0.0
    assert found.refusals == {"shedding_off": 10}


def test_a_cold_start_ends_with_every_bundle_on_some_broker() -> None:
    cold = {
        "bundles": 40,
        "topics": 200,
        "over": "bundles",
        "placed": "unowned",
        "msgs_in_per_s": 8000.0,
    }
    found = run(scenario(brokers=4, step_s=5.0, duration_s=120.0, load=cold, noise=EXACT))
    timeline = found.timeline
    assert timeline.bundles[0].tolist() == [0] * 4
    assert timeline.unowned_msgs_per_s[0] == pytest.approx(16_000.0)
    assert timeline.bundles[-1].sum() == 40
    assert timeline.unowned_msgs_per_s[-1] == 0.0
    assert Counter((move.why, move.source) for move in found.moves) == {(Why.PLACED, None): 40}


def test_what_a_crashed_broker_had_is_placed_again_after_its_session() -> None:
    crash = {"kind": "crash", "at_s": 100.0, "brokers": ["b-1"]}
    found = run(scenario(brokers=3, step_s=5.0, load={"bundles": 12}, events=[crash]))
    placed = [move for move in found.moves if move.why is Why.PLACED]
    assert len(placed) == 4
    assert all(130.0 <= move.at_s <= 140.0 for move in placed)
    assert found.timeline.bundles[-1].tolist()[0] == 0
    assert found.timeline.bundles[-1].sum() == 12
    assert found.timeline.present[:, 0].tolist() == [True] * 2 + [False] * 9
    assert np.isnan(found.timeline.demand[2:, 0]).all()
    records = sum(move.interrupted_client_s for move in found.moves)
    assert found.interrupted_client_s > records + 30.0  # Each of its clients waited 30 s.


def test_clients_that_wait_at_the_end_have_waited_until_then() -> None:
    crash = {"kind": "crash", "at_s": 50.0, "brokers": ["b-1"]}
    load = {"bundles": 2, "topics": 10, "over": "bundles"}
    found = run(scenario(brokers=2, duration_s=60.0, load=load, events=[crash]))
    assert found.interrupted_client_s == pytest.approx(10.0 * 10)


def test_a_draining_broker_is_emptied_a_few_at_a_time_and_leaves() -> None:
    drain = {"kind": "drain", "at_s": 50.0, "brokers": ["b-1"]}
    slow = {"order_s": 0.0, "base_s": 8.0, "per_topic_s": 0.0}
    played = scenario(brokers=3, step_s=5.0, load={"bundles": 36}, events=[drain], hand_over=slow)
    planner = planner_for(played, Strategy.parse(PAIR))
    planner = replace(planner, settings=replace(planner.settings, in_flight_per_broker=3))
    found = simulate(played, planner, strategy=PAIR, seed=1)
    drained = [move for move in found.moves if move.why is Why.DRAINED]
    assert len(drained) == 12
    assert {move.cause for move in drained} == {Cause.DRAINING}
    # Those before them are under way for 8 s, two steps.
    begun_s = Counter(move.at_s for move in drained)
    assert begun_s == {drained[0].at_s + 10.0 * turn: 3 for turn in range(4)}
    assert [text for _, text in found.happened] == ["b-1:8080 drains", "b-1:8080 left"]


def test_a_drain_in_long_steps_has_no_more_under_way_at_a_time() -> None:
    drain = {"kind": "drain", "at_s": 30.0, "brokers": ["b-1"]}
    slow = {"order_s": 1.0, "base_s": 4.0, "per_topic_s": 0.0}
    played = scenario(brokers=3, step_s=30.0, load={"bundles": 36}, events=[drain], hand_over=slow)
    planner = planner_for(played, Strategy.parse(PAIR))
    planner = replace(planner, settings=replace(planner.settings, in_flight_per_broker=2))
    found = simulate(played, planner, strategy=PAIR, seed=1)
    begun_s = Counter(move.at_s for move in found.moves)
    assert begun_s == {found.moves[0].at_s + 5.0 * turn: 2 for turn in range(6)}


def test_brokers_that_drain_at_once_give_nothing_to_each_other() -> None:
    drain = {"kind": "drain", "at_s": 50.0, "brokers": ["b-1", "b-2"]}
    found = run(scenario(brokers=4, step_s=5.0, load={"bundles": 24}, events=[drain]))
    assert Counter(move.target for move in found.moves).keys() == {broker("b-3"), broker("b-4")}
    assert len(found.moves) == 12


def test_a_leader_empties_no_broker_that_has_not_told_it_to_drain() -> None:
    silence = {"kind": "silence", "at_s": 40.0, "brokers": ["b-1"], "for_s": 100.0}
    drain = {"kind": "drain", "at_s": 50.0, "brokers": ["b-1"]}
    found = run(scenario(brokers=3, step_s=5.0, events=[silence, drain], noise=EXACT))
    assert min(move.at_s for move in found.moves) == 140.0


def test_a_drain_that_nobody_can_take_over_leaves_everything_where_it_is() -> None:
    drain = {"kind": "drain", "at_s": 50.0, "brokers": ["b-1"]}
    found = run(scenario(brokers=1, step_s=5.0, events=[drain]))
    assert found.moves == ()
    assert found.timeline.bundles[-1].tolist() == [4]


def test_a_step_that_is_longer_than_hand_overs_empties_as_much_as_short_ones() -> None:
    drain = {"kind": "drain", "at_s": 60.0, "brokers": ["b-1"]}
    ended = []
    for step_s in (1.0, 30.0):
        many = {"bundles": 200}
        played = scenario(brokers=3, step_s=step_s, duration_s=180.0, load=many, events=[drain])
        ended.append(run(played, seed=2).happened[-1][0])
    assert ended[0] <= ended[1] <= ended[0] + 60.0


def test_rounds_and_records_are_as_far_apart_as_asked_for() -> None:
    leader = {"round_interval_s": 30.0, "tick_interval_s": 7.0}
    found = run(scenario(duration_s=100.0, step_s=5.0, leader=leader), record_every_s=25.0)
    assert found.rounds == 3
    assert found.timeline.time_s.tolist() == [0.0, 25.0, 50.0, 75.0, 100.0]


def test_a_run_says_what_was_run() -> None:
    found = run(scenario(duration_s=60.0, warm_up_s=20.0, title="Mine"), seed=9)
    assert (found.scenario, found.strategy, found.mode, found.seed) == ("Mine", PAIR, "safe", 9)
    assert (found.warm_up_s, found.duration_s) == (20.0, 60.0)


def test_a_saturated_broker_reports_less_than_is_asked_of_it() -> None:
    played = scenario(
        brokers=BUSY, duration_s=60.0, load=ALIKE | {"placed_on": ["b-1"]}, noise=EXACT
    )
    told = Told()
    found = run(played, witness=told)
    report = next(report for _, report in told.reports if report.broker == broker("b-1"))
    assert report.totals.msgs_in_per_s == pytest.approx(5000.0)
    assert report.cpu is not None
    assert report.cpu.usage == pytest.approx(100.0)
    assert found.timeline.demand[0, 0, 0] == pytest.approx(2.0)
    assert found.timeline.served[0, 0, 0] == pytest.approx(1.0)
    assert found.timeline.msgs_per_s[0, 0] == pytest.approx(10_000.0)


def test_the_bound_is_what_no_assignment_can_undercut() -> None:
    played = scenario(
        brokers=BUSY, duration_s=60.0, load=ALIKE | {"placed_on": ["b-1"]}, noise=EXACT
    )
    assert run(played).timeline.bound[0] == pytest.approx(0.5, abs=1e-3)


def test_a_witness_is_told_of_every_report_round_and_move() -> None:
    told = Told()
    played = scenario(
        brokers=BUSY, step_s=10.0, duration_s=1200.0, load=ALIKE | {"placed_on": ["b-1"]}
    )
    found = run(played, witness=told)
    assert found.moves
    assert {report.broker for _, report in told.reports} == set(found.timeline.brokers)
    assert [at_s for at_s, _, _ in told.rounds] == [60.0 * number for number in range(1, 21)]
    assert set(told.averages[-1]) == {bundle for _, one in told.reports for bundle in one.bundles}
    assert sorted(told.moves, key=lambda one: one.at_s) == list(found.moves)
    assert len(found.moves) == sum(len(plan.moves) for _, _, plan in told.rounds)


def test_a_witness_changes_nothing() -> None:
    played = run_digest.sample()
    planner = planner_for(played, Strategy.parse(PAIR))
    seen = simulate(played, planner, strategy=PAIR, seed=4, witness=Told())
    assert digest(seen) == digest(simulate(played, planner, strategy=PAIR, seed=4))


def test_the_same_seed_gives_the_same_run_in_another_process_whatever_its_hashes() -> None:
    here = digest(run_digest.run(5))
    command = [sys.executable, run_digest.__file__, "5"]
    other_hash = {**os.environ, "PYTHONHASHSEED": "271828"}
    there = subprocess.run(command, capture_output=True, text=True, check=True, env=other_hash)
    assert there.stdout == here


def test_another_seed_gives_another_run() -> None:
    assert digest(run_digest.run(5)) != digest(run_digest.run(6))


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
    assert found.timeline.msgs_per_s.sum(axis=1).tolist() == [20.0, 60.0, 60.0]


def test_a_shift_of_what_is_not_in_the_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(f"time_s,topic,msg_rate_in\n0,persistent://{NAMESPACE}/a,5\n")
    shift = {"kind": "shift", "at_s": 5.0, "namespace": "tenant/none", "factor": 3.0}
    played = scenario(load=[], trace=str(file), events=[shift])
    with pytest.raises(ScenarioError) as refused:
        run(played)
    assert str(refused.value) == f"{file}: no topic in tenant/none; expected one of {NAMESPACE}"

"""The history of a simulation is what agents and a leader would have written."""

import json

import pytest
from history_sinks import KeptHistory
from simulated_worlds import BUSY, EXACT, PAIR, Told, broker, run, scenario

from loadmanager.core.load import LoadReport
from loadmanager.ports.history import HistorySink
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.recording import MONDAY_MS, WRITER, Recording
from loadmanager.simulator.results import Run
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.strategies import Strategy, planner_for

ALL_ON_ONE = scenario(
    brokers=BUSY,
    step_s=10.0,
    duration_s=1200.0,
    load={"bundles": 16, "topics": 16, "over": "bundles", "msgs_in_per_s": 10_000.0,
          "message_bytes": 20_000.0, "placed_on": ["b-1"]},
    noise=EXACT,
)  # fmt: skip


def play(sink: HistorySink, played: Scenario = ALL_ON_ONE) -> Run:
    planner = planner_for(played, Strategy.parse(PAIR))
    witness = Recording(played, planner, sink, base_every_rounds=5)
    return simulate(played, planner, seed=1, witness=witness)


@pytest.fixture(name="kept", scope="module")
def kept_fixture() -> tuple[KeptHistory, Run]:
    sink = KeptHistory(WRITER)
    return sink, play(sink)


def test_every_move_is_told_with_its_end(kept: tuple[KeptHistory, Run]) -> None:
    sink, run = kept
    moves, ends = sink.lines("move"), sink.lines("hand_over")
    told = [(line["bundle"], line["source"], line["target"]) for line in moves]
    assert run.moves
    assert sorted(told) == sorted((one.bundle, one.source, one.target) for one in run.moves)
    assert sorted(line["ordered_at_ms"] for line in ends) == sorted(
        MONDAY_MS + round(one.at_s * 1000) for one in run.moves
    )
    for line in ends:
        assert line["outcome"] == "finished"
        assert line["ordered_at_ms"] <= line["released_at_ms"] <= line["acquired_at_ms"]
        assert line["pause_s"] <= line["took_s"]


def test_every_round_says_which_reports_the_leader_had(kept: tuple[KeptHistory, Run]) -> None:
    sink, run = kept
    rounds = sink.lines("round")
    assert len(rounds) == run.rounds
    assert [line["round"] for line in rounds if line["base"]] == [1, 6, 11, 16]
    reports = {(one["broker"], one["reported_at_ms"]): one for one in sink.lines("report")}
    for line in rounds:
        told = line["brokers"]
        for name, at_ms, traffic in zip(
            told["broker"], told["reported_at_ms"], told["msgs_in_per_s"], strict=True
        ):
            assert reports[name, at_ms]["msgs_in_per_s"] == pytest.approx(traffic)


def test_a_base_has_all_bundles_and_what_strategies_remember(kept: tuple[KeptHistory, Run]) -> None:
    sink, _ = kept
    bases = {line["round"]: line for line in sink.lines("round") if line["base"]}
    bundles = {line["round"]: line["bundles"] for line in sink.lines("bundles")}
    assert bundles.keys() == bases.keys()
    assert {len(columns["bundle"]) for columns in bundles.values()} == {16}
    moved = json.loads(bases[16]["memory"])["movedAtS"]
    assert moved
    assert all(MONDAY_MS / 1000 <= at_s <= bases[16]["at_ms"] / 1000 for at_s in moved.values())


def test_agents_tell_their_class_and_last_report(kept: tuple[KeptHistory, Run]) -> None:
    sink, run = kept
    reports = sink.lines("report")
    assert {line["broker"] for line in reports} == set(run.timeline.brokers)
    assert {line["broker_class"] for line in reports} == {"b"}
    firsts = [line for line in reports if line["due"] == "first"]
    assert len(firsts) == len(run.timeline.brokers)
    assert all(line["interval_s"] is None for line in firsts)
    assert all(line["interval_s"] > 0 for line in reports if line["due"] == "simulated")


def reports_of(
    name: str, event: dict[str, object], step_s: float, seed: int
) -> list[tuple[float, LoadReport]]:
    brokers = [{"name": "b", "count": 2}, {"name": "late", "count": 1, "joined": False}]
    told = Told()
    events = [event | {"brokers": [name]}]
    played = scenario(brokers=brokers, duration_s=300.0, step_s=step_s, noise=EXACT, events=events)
    run(played, seed=seed, witness=told)
    return [one for one in told.reports if one[1].broker == broker(name)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("step_s", [2.0, 10.0])
def test_no_report_of_a_broker_is_older_than_the_broker(step_s: float, seed: int) -> None:
    told = reports_of("late-1", {"kind": "join", "at_s": 130.0}, step_s, seed)
    first_s, first = told[0]
    assert first.started_at_ms == 130_000
    assert 130.0 <= first_s < 130.0 + step_s
    assert all(one.reported_at_ms >= one.started_at_ms for _, one in told)


@pytest.mark.parametrize("seed", range(4))
def test_no_report_of_a_new_life_is_older_than_that_life(seed: int) -> None:
    # It is down for less than a step: what stands in its node is replaced without a gap.
    restart: dict[str, object] = {"kind": "restart", "at_s": 121.0, "down_s": 6.0}
    told = reports_of("b-1", restart | {"drained": False}, 10.0, seed)
    lives = {one.started_at_ms for _, one in told}
    assert lives == {0, 127_000}
    assert all(0 <= one.started_at_ms <= one.reported_at_ms for _, one in told)
    assert min(at_s for at_s, one in told if one.started_at_ms) <= 130.0

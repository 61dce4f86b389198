"""The history of a simulation is what agents and a leader would have written."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from history_disks import finished, lines_in
from history_sinks import KeptHistory
from simulated_worlds import BUSY, EXACT, PAIR, scenario
from snapshot_of_history import report_of, snapshot_of

from loadmanager.adapters.history import recorded
from loadmanager.adapters.history.checking import check_history
from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.planner import Plan
from loadmanager.core.snapshot.document import view_of_snapshot
from loadmanager.core.snapshot.encoding import in_force
from loadmanager.ports.history import HistorySink
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.recording import MONDAY_MS, WRITER, Recording, origin_of
from loadmanager.simulator.run import Run
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.strategies import Strategy, planner_for

Averages = Callable[[], Mapping[BundleId, BundleAverages]]
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
    witness = Recording.of(played, planner, sink, base_every_rounds=5)
    return simulate(played, planner, strategy=PAIR, seed=1, witness=witness)


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
        for broker, at_ms, traffic in zip(
            told["broker"], told["reported_at_ms"], told["msgs_in_per_s"], strict=True
        ):
            assert reports[broker, at_ms]["msgs_in_per_s"] == pytest.approx(traffic)


def test_a_base_has_all_bundles_and_what_strategies_remember(kept: tuple[KeptHistory, Run]) -> None:
    sink, _ = kept
    bases = {line["round"]: line for line in sink.lines("round") if line["base"]}
    bundles = {line["round"]: line["bundles"] for line in sink.lines("bundles")}
    assert bundles.keys() == bases.keys()
    assert {len(columns["bundle"]) for columns in bundles.values()} == {16}
    moved = json.loads(bases[16]["memory"])["movedAtS"]
    assert moved
    assert all(MONDAY_MS / 1000 <= at_s <= bases[16]["at_ms"] / 1000 for at_s in moved.values())


def test_agents_tell_their_class_and_how_long_ago_they_reported(
    kept: tuple[KeptHistory, Run],
) -> None:
    sink, run = kept
    reports = sink.lines("report")
    assert {line["broker"] for line in reports} == set(run.timeline.brokers)
    assert {line["broker_class"] for line in reports} == {"b"}
    firsts = [line for line in reports if line["due"] == "first"]
    assert len(firsts) == len(run.timeline.brokers)
    assert all(line["interval_s"] is None for line in firsts)
    assert all(line["interval_s"] > 0 for line in reports if line["due"] == "simulated")


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        with recorded(folder, origin_of(ALL_ON_ONE, PAIR, 1)) as sink:
            play(sink)
        written.append([(path.name, path.read_bytes()) for path in finished(folder)])
    assert written[0] == written[1]
    found = check_history(tmp_path / "one")
    assert (found.faults, found.missing, found.given_up) == ([], 0, 0)
    assert {line["writer"] for line in lines_in(*finished(tmp_path / "one"))} == {WRITER}


class Watched(Recording):
    views: list[ClusterView]

    def round_done(self, at_s: float, view: ClusterView, plan: Plan, averages: Averages) -> None:
        self.views.append(view)
        super().round_done(at_s, view, plan, averages)


def test_a_base_round_gives_the_leaders_view_back() -> None:
    sink, planner = KeptHistory(WRITER), planner_for(ALL_ON_ONE, Strategy.parse(PAIR))
    witness = Watched.of(ALL_ON_ONE, planner, sink, base_every_rounds=2)
    witness.views = []
    simulate(ALL_ON_ONE, planner, strategy=PAIR, seed=1, witness=witness)
    reports = {
        (BrokerId(line["broker"]), line["reported_at_ms"]): report_of(line)
        for line in sink.lines("report")
    }
    bases = [line for line in sink.lines("round") if line["base"]]
    assert len(bases) == 10
    for line in bases:
        bundles = [one for one in sink.lines("bundles") if one["round"] == line["round"]]
        snapshot = snapshot_of(line, bundles, reports)
        got = view_of_snapshot(snapshot, planner.weights)
        want = witness.views[line["round"] - 1]
        for name in ("usage", "limit", "traffic", "long_msgs_per_s", "load_ema", "topics"):
            known, told = getattr(want.brokers, name), getattr(got.brokers, name)
            np.testing.assert_allclose(told, known, err_msg=name)
        np.testing.assert_allclose(got.age_s, want.age_s, atol=1e-6)
        assert got.brokers.names == want.brokers.names
        assert (got.moved, got.top_bundles) == (want.moved, want.top_bundles)
        for bundle in want.bundles.names:
            np.testing.assert_array_equal(got.short_rates(bundle), want.short_rates(bundle))
            assert got.long_rates(bundle) == want.long_rates(bundle)
            assert got.listed_owner(bundle) == want.listed_owner(bundle)
        assert snapshot.in_force == in_force(planner)

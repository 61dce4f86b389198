"""What moves achieved in simulations: some that help, and a strategy that thrashes."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from history_sinks import KeptHistory
from moved_cluster import BROKER_LOAD, BUNDLE_LOAD, HAND_OVERS, MOVES, ROUNDS, frame, when

from loadmanager.core.ids import BundleId
from loadmanager.pipeline.move_effects.effects import Recorded, effects, summary
from loadmanager.pipeline.move_effects.hand_overs import ping_pong
from loadmanager.pipeline.move_effects.predictions import errors
from loadmanager.pipeline.move_effects.windows import Windows, loads, weights_in_force
from loadmanager.simulator.catalogue import find
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.recording import WRITER, Recording
from loadmanager.simulator.run import MoveRecord, Run
from loadmanager.simulator.scenario_files import load_scenario
from loadmanager.simulator.scores import returned
from loadmanager.simulator.strategies import Strategy, planner_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BACK_WITHIN_S = 3600.0
PLAYED = {
    "all-on-one": Strategy.parse("threshold+least_long_term_message_rate"),
    "over-unloading": Strategy.parse("threshold+least_average_usage", "parity"),
}


def play(name: str, strategy: Strategy) -> tuple[Run, list[Mapping[str, Any]]]:
    """Return a run of a shipped scenario, and the lines of its history, of its own cluster."""
    scenario = load_scenario(find(name))
    planner = planner_for(scenario, strategy)
    sink = KeptHistory(WRITER)
    witness = Recording.of(scenario, planner, sink)
    run = simulate(scenario, planner, strategy=strategy.name, seed=1, witness=witness)
    return run, [{**line, "cluster": name, **when(line["at_ms"] / 1000)} for line in sink.lines()]


def bundles_of(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = report["bundles"]
    return [
        {**report, **{name: values[place] for name, values in columns.items()}}
        for place in range(len(columns["bundle"]))
    ]


@pytest.fixture(scope="module")
def runs() -> Mapping[str, tuple[Run, list[Mapping[str, Any]]]]:
    """Return both runs."""
    return {name: play(name, strategy) for name, strategy in PLAYED.items()}


@pytest.fixture(scope="module")
def found(
    spark: "SparkSession", runs: Mapping[str, tuple[Run, list[Mapping[str, Any]]]]
) -> "tuple[DataFrame, DataFrame]":
    """Return what the moves of both runs achieved, and the errors of predictions."""
    lines = [dict(line) for _, told in runs.values() for line in told]

    def of(kind: str) -> list[dict[str, Any]]:
        return [line for line in lines if line["kind"] == kind]

    moved = {(line["cluster"], line["bundle"]) for line in of("move")}
    rows = [row for line in of("report") for row in bundles_of(line)]
    weights = weights_in_force(frame(spark, ROUNDS, of("round")))
    told = Recorded(
        moves=frame(spark, MOVES, of("move")),
        hand_overs=frame(spark, HAND_OVERS, of("hand_over")),
        loads=loads(frame(spark, BROKER_LOAD, of("report")), weights).localCheckpoint(),
        bundle_load=frame(
            spark, BUNDLE_LOAD, (row for row in rows if (row["cluster"], row["bundle"]) in moved)
        ),
    )
    made = effects(told, Windows(300.0), BACK_WITHIN_S, keep=lambda one: one.localCheckpoint())
    return made.moves.localCheckpoint(), errors(made.targets).localCheckpoint()


def totals(found: "tuple[DataFrame, DataFrame]", cluster: str) -> dict[str, Any]:
    row = summary(found[0].where(f"cluster = '{cluster}' AND cause <> 'unowned'")).first()
    assert row is not None
    return row.asDict()


def test_moves_off_the_only_loaded_broker_help(found: "tuple[DataFrame, DataFrame]") -> None:
    told = totals(found, "all-on-one")
    assert told["moves"] > 100
    assert told["judged"] > 0.9 * told["moves"]
    assert told["helped_fraction"] > 0.95
    assert told["returns"] == 0
    assert told["evened_mean"] > 0.1


def test_what_targets_take_on_is_predicted(found: "tuple[DataFrame, DataFrame]") -> None:
    rows = found[1].where("cluster = 'all-on-one' AND model = 'traffic_share'").collect()
    assert {row["resource"] for row in rows} == {"cpu", "bandwidth_in", "bandwidth_out"}
    assert all(row["changes"] > 30 for row in rows)
    assert all(row["error_fraction"] < 0.15 for row in rows)


def test_a_thrashing_strategy_brings_bundles_back_and_helps_less(
    found: "tuple[DataFrame, DataFrame]", runs: Mapping[str, tuple[Run, Any]]
) -> None:
    told = totals(found, "over-unloading")
    moves = runs["over-unloading"][0].moves
    assert told["returns"] == returned(moves) > 5
    assert told["helped_fraction"] < 0.8
    bouncing = ping_pong(found[0].where("cluster = 'over-unloading'")).orderBy("rank").collect()
    assert sum(row["returns"] for row in bouncing) == told["returns"]
    assert [row["returns"] for row in bouncing] == sorted(
        (row["returns"] for row in bouncing), reverse=True
    )
    assert bouncing[0]["moves"] == len(of_bundle(moves, bouncing[0]["bundle"]))


def of_bundle(moves: Iterable[MoveRecord], bundle: BundleId) -> list[MoveRecord]:
    return [one for one in moves if one.bundle == bundle]


def test_what_clients_paid_is_what_was_simulated(
    found: "tuple[DataFrame, DataFrame]", runs: Mapping[str, tuple[Run, Any]]
) -> None:
    for name, (run, _) in runs.items():
        pauses = found[0].where(f"cluster = '{name}'").agg({"pause_s": "sum"}).first()
        assert pauses is not None
        assert pauses[0] == pytest.approx(sum(one.pause_s for one in run.moves))

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from snapshot_samples import B1, B2, hot_and_idle

from loadmanager.cli import main
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.snapshot.codec import encode_snapshot, in_force
from loadmanager.core.wire.reports import report_to_json


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.json"
    told = replace(hot_and_idle(), in_force=in_force(Planner()))
    file.write_bytes(encode_snapshot(told))
    return file


def decide(file: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["decide", "--snapshot", str(file), *options])


def test_moves_brokers_and_reasons_are_told_in_tables(snapshot: Path) -> None:
    got = decide(snapshot)
    assert got.exit_code == 0, got.output
    lines = got.output.splitlines()
    assert lines[0] == "ThresholdShedder, LeastLongTermMessageRate, safe mode"
    columns = lines[lines.index("4 moves") + 1].split()
    assert columns == ["bundle", "from", "to", "cause", "msgs/s", "kB/s"]
    (hot,) = (line.split() for line in lines if line.startswith("b1:8080 "))
    assert hot == ["b1:8080", "0.800", "0.400", "8", "4", "160000", "80000"]
    assert "max 0.800 -> 0.400, mean 0.267 -> 0.267, max/mean 3.000 -> 1.500" in lines
    assert "\nb2:8080  within_threshold  0.000, mean 0.267  The load is within" in got.output


def test_json_tells_the_same_to_programs(snapshot: Path) -> None:
    got = decide(snapshot, "--json", "--seed", "3")
    told = json.loads(got.output)
    assert {key: told[key] for key in ("shedder", "placement", "mode", "seed", "leftOut")} == {
        "shedder": "threshold",
        "placement": "least_long_term_message_rate",
        "mode": "safe",
        "seed": 3,
        "leftOut": [],
    }
    (one,) = told["rounds"]
    assert one["round"] == 1
    assert [move["source"] for move in one["moves"]] == [B1] * 4
    assert one["moves"][0]["cause"] == "overloaded"
    assert one["moves"][0]["bytesPerS"] == 20e6
    assert one["before"]["max"] == pytest.approx(0.8)
    assert one["after"]["maxOverMean"] == pytest.approx(1.5)
    assert one["leftAlone"][0]["subject"] == B2
    assert one["leftAlone"][0]["meaning"].endswith(".")
    assert one["brokers"][0]["after"]["bundles"] == 4


def test_the_same_seed_gives_the_same_decision(snapshot: Path) -> None:
    options = ("--json", "--rounds", "3", "--placement", "round_robin")
    assert decide(snapshot, *options).output == decide(snapshot, *options).output


def test_rounds_follow_one_another(snapshot: Path) -> None:
    got = decide(snapshot, "--rounds", "3")
    assert "Round 1 of 3" in got.output
    assert "Round 3 of 3" in got.output
    assert "Nothing moves." in got.output.partition("Round 3 of 3")[2]


def test_another_strategy_and_settings_can_be_tried(snapshot: Path) -> None:
    options = ("--shedder", "org.apache.pulsar.broker.loadbalance.impl.AvgShedder")
    waits = decide(snapshot, *options)
    assert "hits_pending" in waits.output
    acts = decide(snapshot, *options, "--set", "high_hits=1", "--mode", "parity")
    assert acts.output.startswith("AvgShedder, LeastLongTermMessageRate, parity mode")
    assert "imbalance" in acts.output


def test_what_the_leader_would_only_observe_is_shown_as_observed(tmp_path: Path) -> None:
    planner = Planner(settings=PlannerSettings(observe=True))
    file = tmp_path / "cluster.json"
    file.write_bytes(encode_snapshot(replace(hot_and_idle(), in_force=in_force(planner))))
    assert "4 observed" in decide(file).output
    assert json.loads(decide(file, "--json").output)["rounds"][0]["moves"][0]["onlyObserved"]


def test_a_plain_dump_on_stdin_is_enough() -> None:
    dump = {name: report_to_json(one) for name, one in hot_and_idle().reports.items()}
    asked = ["decide", "--snapshot", "-", "--rounds", "3"]
    got = CliRunner().invoke(main, asked, input=json.dumps(dump))
    assert got.exit_code == 0
    assert got.output.startswith("JointShedder, JointPlacement, safe mode\n")
    assert "moves\n" in got.output
    got = CliRunner().invoke(main, [*asked, "--shedder", "avg"], input=json.dumps(dump))
    assert got.output.startswith("AvgShedder, PlannedPlacement, safe mode\n")
    assert "hits_pending" in got.output


def test_message_rates_stand_in_for_capacities_that_nobody_knows(tmp_path: Path) -> None:
    reports = {name: replace(one, cpu=None) for name, one in hot_and_idle().reports.items()}
    file = tmp_path / "cluster.json"
    file.write_bytes(encode_snapshot(replace(hot_and_idle(), reports=reports)))
    got = decide(file, "--shedder", "uniform")
    assert "Brokers, by message rate relative to the busiest" in got.output
    assert "max 1.000 -> " in got.output


def test_what_cannot_be_read_is_refused_or_left_out(tmp_path: Path) -> None:
    document = json.loads(encode_snapshot(hot_and_idle()))
    document["brokers"][B2]["cpu"]["usage"] = -1
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(document))
    message = f'{file}: brokers["b2:8080"].cpu.usage = -1; expected a finite number from 0 to 1e+15'
    refused = decide(file)
    assert (refused.exit_code, refused.stderr) == (2, message + "\n")
    taken = decide(file, "--lenient", "--json")
    assert (taken.exit_code, taken.stderr) == (0, f"left out: {message}\n")
    assert json.loads(taken.stdout)["leftOut"] == [message]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shedder", "foo"], "--shedder foo; expected one of AvgShedder"),
        (["--set", "treshold=1"], "--set treshold=1: treshold is unknown; did you mean threshold"),
        (["--rounds", "0"], "Invalid value for '--rounds'"),
        (["--mode", "fast"], "Invalid value for '--mode'"),
    ],
)
def test_bad_input_ends_with_2_and_why(snapshot: Path, options: list[str], message: str) -> None:
    got = decide(snapshot, *options)
    assert got.exit_code == 2
    assert message in got.stderr


def test_a_file_that_is_not_there_ends_with_2(tmp_path: Path) -> None:
    assert decide(tmp_path / "none.json").exit_code == 2

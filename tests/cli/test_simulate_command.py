"""``loadmanager simulate``: what it prints and writes, how it ends, and that it repeats."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from simulated_jobs import SCENARIO, simulate, small_jobs, written

from loadmanager.cli.simulate_runs import _Progress
from loadmanager.simulator.results import SCORE_DOCS
from loadmanager.simulator.scenario_files import shipped
from loadmanager.simulator.simulation_jobs import Job, SimulationDied, run_job
from loadmanager.simulator.strategies import PAIR_NAMES

SHOWN = ("gap", "moved", "moves")


def simulated(*arguments: object) -> Result:
    done = simulate(*arguments)
    assert done.exit_code == 0, done.output
    return done


def document(*arguments: object) -> Any:
    return json.loads(simulated(*arguments, "--json").stdout)


def test_strategies_stand_best_first_with_the_rule_below(scenario: Path) -> None:
    done = simulated(scenario, "--strategy", "uniform+round_robin,threshold+avg")
    _, title, head, *rows = done.output.splitlines()
    assert title == f"{scenario}: Two brokers"
    assert head.split()[:2] == ["strategy", "max/mean"]
    found = document(scenario, "--strategy", "uniform+round_robin,threshold+avg")
    order = [one["strategy"] for one in found["scenarios"][0]["strategies"]]
    assert [row.split()[0] for row in rows[:2]] == order
    gaps = [one["scores"]["priced_gap"]["median"] for one in found["scenarios"][0]["strategies"]]
    assert gaps == sorted(gaps)
    assert gaps[0] < gaps[1]
    assert (
        "\nBest first: smallest gap to the lower bound with the price of the moves" in done.output
    )
    assert "threshold+avg: this placement follows AvgShedder's plan" in done.output


def test_without_a_strategy_every_pair_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "short.toml"
    file.write_text(SCENARIO.replace("duration_s = 480.0", "duration_s = 60.0"))
    (found,) = document(file)["scenarios"]
    assert sorted(one["strategy"] for one in found["strategies"]) == sorted(PAIR_NAMES)
    assert {one["mode"] for one in found["strategies"]} == {"safe"}


def test_medians_and_spreads_are_of_all_seeds(scenario: Path) -> None:
    arguments = (scenario, "--strategy", "avg+avg", "--mode", "both", "--seeds", 3)
    done = simulate(*arguments)
    assert "Two brokers, medians of 3 seeds" in done.output
    assert "mode " in done.output
    for one in document(*arguments)["scenarios"][0]["strategies"]:
        assert [run["seed"] for run in one["runs"]] == [7, 8, 9]
        gaps = sorted(run["gap"] for run in one["runs"])
        assert one["scores"]["gap"] == dict(zip(("least", "median", "most"), gaps, strict=True))
        assert set(one["scores"]) == set(SCORE_DOCS)


def test_the_first_seed_can_be_told(scenario: Path) -> None:
    arguments = (scenario, "--strategy", "avg+avg")
    (several,) = document(*arguments, "--seeds", 2)["scenarios"][0]["strategies"]
    (second,) = document(*arguments, "--first-seed", 8)["scenarios"][0]["strategies"]
    assert second["runs"] == several["runs"][1:]


def test_settings_change_what_is_simulated_and_are_told(scenario: Path) -> None:
    arguments = (scenario, "--strategy", "threshold+round_robin")
    usual = document(*arguments)["scenarios"][0]["strategies"][0]
    found = document(*arguments, "--set", "threshold=0.9", "--set", "margin=0.5")
    changed = found["scenarios"][0]["strategies"][0]
    assert found["settings"] == {"--set": "threshold=0.9, margin=0.5"}
    assert changed["settings"] == ["threshold=0.9", "margin=0.5"]
    assert usual["scores"]["moves"]["median"] > changed["scores"]["moves"]["median"]


EXPECTED = """\
[[expect]]
score = "moves"
least = 1
strategies = ["threshold+*"]

[[expect]]
score = "max_over_mean"
least = 1.2
strategies = ["threshold+*"]
known_failure = "it begins with all on one"
"""
NOT_MET = """\
[[expect]]
score = "moves"
most = 0
"""


def test_what_is_expected_and_came_true_ends_well(tmp_path: Path) -> None:
    file = written(tmp_path / "two.toml", EXPECTED)
    done = simulated(file, "--strategy", "threshold+round_robin")
    assert "\n1 expectation held\n" in done.output
    assert "\nknown failure shown: " in done.output
    assert "(it begins with all on one)\n" in done.output


def test_what_is_expected_and_did_not_come_true_ends_with_one(tmp_path: Path) -> None:
    file = written(tmp_path / "two.toml", EXPECTED, NOT_MET)
    done = simulate(file, "--strategy", "threshold+round_robin")
    assert done.exit_code == 1
    told = f"failed: {file}: threshold+round_robin, safe: expected moves at most 0; found "
    assert told in done.output
    as_json = simulate(file, "--strategy", "threshold+round_robin", "--json")
    assert as_json.exit_code == 1
    assert as_json.stderr.startswith(told)
    (found,) = json.loads(as_json.stdout)["scenarios"]
    outcomes = [one["outcome"] for one in found["expectations"]]
    assert outcomes == ["held", "known failure shown", "failed"]


def test_with_settings_of_ones_own_nothing_is_judged(tmp_path: Path) -> None:
    file = written(tmp_path / "two.toml", NOT_MET)
    done = simulated(file, "--strategy", "threshold+round_robin", "--set", "margin=0.03")
    assert "expectations are not judged" in done.stderr


def test_one_table_has_a_row_for_each_scenario_and_the_means(tmp_path: Path) -> None:
    files = [tmp_path / "one.toml", tmp_path / "two.toml"]
    for file in files:
        file.write_text(SCENARIO)
    pairs = ("--strategy", "threshold+avg,uniform+round_robin")
    done = simulated(*files, *pairs, "--table")
    _, title, head, *rows, mean, _, _ = done.stdout.splitlines()
    assert title == "Scenarios, medians of 1 seed"
    names = [f"{name} {one}" for name in ("uniform+round_robin", "threshold+avg") for one in SHOWN]
    assert head.split() == ["scenario", "bound", *" ".join(names).split()]
    assert [row.split()[0] for row in rows] == [str(file) for file in files]
    assert mean.split() == ["mean", *rows[0].split()[1:]]
    of = document(files[0], *pairs)["scenarios"][0]["strategies"]
    scores = {one["strategy"]: one["scores"] for one in of}
    told = [scores["threshold+avg"]["bound"]]
    told += [
        scores[name][score]
        for name in ("uniform+round_robin", "threshold+avg")
        for score in ("gap", "moved_ratio", "moves")
    ]
    assert rows[0].split()[1:] == [f"{one['median']:.3g}" for one in told]


def test_one_table_in_both_modes_names_them(scenario: Path) -> None:
    done = simulated(scenario, "--strategy", "threshold+avg", "--mode", "both", "--table")
    assert "threshold+avg safe gap" in done.stdout
    assert "threshold+avg parity moves" in done.stdout


def test_a_list_tells_scenarios_strategies_and_scores() -> None:
    done = simulated("--list")
    words = done.output.split()
    assert not {*shipped(), *SCORE_DOCS} - set(words)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "expected one or more scenarios, or --all"),
        (["{file}", "--all"], "expected one or more scenarios, or --all"),
        (["over-placment"], "did you mean over-placement?"),
        (["{folder}/none.toml"], "none.toml"),
        (["{file}", "--strategy", "avg"], "strategy 'avg'; expected shedder+placement"),
        (["{file}", "--set", "marging=1"], "did you mean margin"),
        (["{file}", "--strategy", "avg+avg", "--set", "margin=9"], "expected fraction from 0.0"),
        (["{file}", "--mode", "unsafe"], "'unsafe' is not one of"),
        (["{file}", "--seeds", "0"], "0 is not in the range"),
        (["{file}", "--html", "{folder}"], "is a directory"),
        (["{file}", "--html", "{folder}/no/x.html"], "no is no folder to write to"),
        (["{file}", "--html", "/proc/x.html"], "nothing may be written to /proc ("),
        (["{file}", "--html", "/dev/null"], "/dev/null: is no file that a page could replace"),
        (["{file}", "--html", "{folder}/{long}.html"], "(File name too long)"),
        (["{file}", "--trace", "{folder}/no.csv"], "does not exist"),
        (["{file}", "--model", "1"], "there is one model; leave the option out"),
        (["{file}", "--table", "--html", "{folder}/x.html"], "--table is not given with --html"),
    ],
)
def test_bad_input_is_told_and_ends_in_2(scenario: Path, arguments: list[str], told: str) -> None:
    names = {"file": scenario, "folder": scenario.parent, "long": "x" * 250}
    done = simulate(*(one.format(**names) for one in arguments))
    assert done.exit_code == 2
    assert told in done.stderr
    assert not done.stdout
    assert list(scenario.parent.iterdir()) == [scenario]


def test_faults_of_several_scenarios_are_told_at_once(tmp_path: Path) -> None:
    one = written(tmp_path / "one.toml", "[noise]", "usage = 1")
    other = written(tmp_path / "other.toml", "[noise]", "delay_s = -1.0")
    done = simulate(one, other)
    assert done.exit_code == 2
    assert f"{one}:" in done.stderr
    assert f"{other}:" in done.stderr


def test_a_page_with_plots_is_written_beside_the_tables(scenario: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = simulated(
        scenario, scenario, "--strategy", "avg+avg,threshold+avg", "--seeds", 2,
        "--html", page,
    )  # fmt: skip
    assert page.read_text().startswith("<!doctype html>")
    assert "report.html written, " in done.stderr
    assert "report.html" not in done.stdout


def test_without_plotly_a_page_is_refused_before_anything_is_simulated(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.cli.simulate_runs.find_spec", lambda _: None)
    done = simulate(scenario, "--html", tmp_path / "report.html")
    assert done.exit_code == 2
    assert "pip install 'loadmanager[simulator]'" in done.stderr
    assert not done.stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_line_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = _Progress(2)
    for job in small_jobs(2, ["avg+avg"]):
        progress.count(job)
    progress.clear()
    assert terminal.getvalue().split("\r\x1b[K") == [
        "",
        "0 of 2 runs",
        "1 of 2 runs: two with avg+avg, safe, seed 7",
        "2 of 2 runs: two with avg+avg, safe, seed 8",
        "",
    ]


def test_interruptions_are_told_so_far(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter(range(2))

    def run_twice(job: Job, _witnessed: object) -> Any:
        if next(runs, None) is None:
            raise KeyboardInterrupt
        return run_job(job)

    monkeypatch.setattr("loadmanager.simulator.simulation_jobs.run_job", run_twice)
    done = simulate(scenario, "--seeds", 4, "--strategy", "avg+avg")
    assert done.exit_code == 130
    assert done.stderr == "interrupted after 2 of 4 runs\n"


def test_a_process_that_died_is_told(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(job: Job, _witnessed: object) -> Any:
        raise SimulationDied(job)

    monkeypatch.setattr("loadmanager.simulator.simulation_jobs.run_job", dies)
    done = simulate(scenario, "--strategy", "avg+avg")
    assert done.exit_code == 1
    assert (
        "with avg+avg, safe, seed 7; was it killed, or is there too little memory?" in done.stderr
    )

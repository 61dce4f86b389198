"""docs/simulator.md: its scenario can be run, and its commands and scores exist."""

import re
from pathlib import Path

from click.testing import CliRunner

from loadmanager.cli import main
from loadmanager.simulator.scenario_files import load_scenario
from loadmanager.simulator.scores import SCORE_NAMES
from loadmanager.simulator.simulation_jobs import Job, score_job
from loadmanager.simulator.strategies import Strategy, parse_strategies

TEXT = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()


def test_the_scenario_of_the_document_runs_and_comes_out_as_it_expects(tmp_path: Path) -> None:
    path = tmp_path / "evening.toml"
    path.write_text(re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)[0])
    scenario = load_scenario(path)
    (expected,) = scenario.expect
    pair = Strategy.parse(expected.strategies[0])
    scores = score_job(Job(name="evening", scenario=scenario, strategy=pair, seed=scenario.seed))
    assert expected.most is not None
    assert getattr(scores, expected.score) <= expected.most
    assert scores.moves > 0


def test_the_options_and_strategies_of_the_document_exist() -> None:
    shown = CliRunner().invoke(main, ["simulate", "--help"]).output
    commands = [line for line in TEXT.splitlines() if line.startswith("loadmanager simulate")]
    assert len(commands) > 3
    for option in {one for line in commands for one in re.findall(r"--[a-z-]+", line)}:
        assert option in shown
    for pairs in {one for line in commands for one in re.findall(r"--strategy (\S+)", line)}:
        assert parse_strategies(pairs)


def test_the_scores_of_the_document_exist() -> None:
    table = TEXT.partition("## Scores")[2].partition("## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`([a-z][a-z_]+)`", row)}
    assert told <= set(SCORE_NAMES)
    assert len(told) > 10

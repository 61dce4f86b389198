"""``loadmanager simulate --history``: no run's history is lost or mixed with another's."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from history_sinks import lines_in
from simulated_jobs import SCENARIO

from loadmanager.adapters.history.storage import Disk, check_history
from loadmanager.cli import main

SHORT = SCENARIO.replace("duration_s = 480.0", "duration_s = 120.0")
TRACE = """\
time_s,topic,msg_rate_in
0,persistent://shop/orders/a,1000
60,persistent://shop/orders/a,1000
"""
RUN = "avg+avg-safe-seed-7"


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return written(tmp_path / "two.toml")


def written(file: Path, content: str = SHORT) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(content)
    return file


def simulate(folder: Path, *arguments: object) -> Result:
    options = ["--jobs", "1", "--strategy", "avg+avg", "--history", str(folder)]
    return CliRunner().invoke(main, ["simulate", *options, *map(str, arguments)])


def files_in(folder: Path) -> dict[Path, bytes]:
    return {one.path: one.path.read_bytes() for one in Disk().find(folder)}


def refused(done: Result, folder: Path) -> None:
    assert done.exit_code == 2, done.output
    assert not done.stdout
    assert f"{folder} holds the history of another run" in done.stderr
    assert "expected a new folder, or delete what is there" in done.stderr


@pytest.mark.parametrize("duration_s", ["120.0", "150.0"])
def test_scenarios_of_one_name_have_a_history_each(tmp_path: Path, duration_s: str) -> None:
    one = written(tmp_path / "a" / "x.toml")
    other = written(tmp_path / "b" / "x.toml", SHORT.replace("120.0", duration_s))
    third = written(tmp_path / "x-2.toml")
    history = tmp_path / "history"
    done = simulate(history, one, other, third)
    assert done.exit_code == 0, done.output
    assert done.stderr == (
        f"{other}: its history goes to {history / 'x-3'}, for another has its name\n"
    )
    assert sorted(folder.name for folder in history.iterdir()) == ["x", "x-2", "x-3"]
    ends = [
        max(line["at_ms"] for line in lines_in(*files_in(history / name / RUN)))
        for name in ("x", "x-3")
    ]
    assert (ends[1] > ends[0]) == (duration_s == "150.0")


@pytest.mark.parametrize(
    "change", [("msgs_in_per_s = 60000.0", "msgs_in_per_s = 50000.0"), ("seed = 7", "seed = 8")]
)
def test_a_folder_with_the_history_of_another_run_is_refused(
    scenario: Path, tmp_path: Path, change: tuple[str, str]
) -> None:
    history = tmp_path / "history"
    assert simulate(history, scenario).exit_code == 0
    before = files_in(history)
    other = written(tmp_path / "other" / "two.toml", SHORT.replace(*change))
    refused(simulate(history, other), history)
    refused(simulate(history, scenario, "--set", "margin=0.5"), history)
    refused(simulate(history, scenario, "--seeds", 2), history)
    assert files_in(history) == before
    assert [one.name for one in history.iterdir()] == ["date=2026-01-05"]


def test_a_folder_with_anothers_history_is_refused(scenario: Path, tmp_path: Path) -> None:
    history = tmp_path / "history"
    assert simulate(history, scenario, "--seeds", 2).exit_code == 0
    other = written(tmp_path / "other" / "two.toml", SHORT.replace("60000.0", "50000.0"))
    refused(simulate(history, other, "--seeds", 2), history / "two" / RUN)
    refused(simulate(history, scenario), history)
    third = written(tmp_path / "three.toml")
    assert simulate(history, third, "--seeds", 2).exit_code == 0
    assert sorted(one.name for one in history.iterdir()) == ["three", "two"]


def test_another_trace_makes_another_run(scenario: Path, tmp_path: Path) -> None:
    history = tmp_path / "history"
    trace = written(tmp_path / "rates.csv", TRACE)
    first = simulate(history, scenario, "--trace", trace)
    assert first.exit_code == 0, first.output
    copied = shutil.copy(trace, tmp_path / "copy.csv")
    assert simulate(history, scenario, "--trace", copied).exit_code == 0
    trace.write_text(TRACE.replace("1000", "2000"))
    refused(simulate(history, scenario, "--trace", trace), history)


def test_a_run_that_is_repeated_writes_the_same_again(scenario: Path, tmp_path: Path) -> None:
    history = tmp_path / "history"
    for more in ((), ("--mode", "both", "--seeds", 2)):
        folder = history / str(len(more))
        first = simulate(folder, scenario, *more)
        assert (first.exit_code, first.stderr) == (0, "")
        before = files_in(folder)
        assert simulate(folder, scenario, *more).stdout == first.stdout
        assert files_in(folder) == before
        assert check_history(folder).faults == []
    assert sorted(one.name for one in (folder / "two").iterdir()) == [
        f"avg+avg-{mode}-seed-{seed}" for mode in ("parity", "safe") for seed in (7, 8)
    ]


def test_it_has_the_rounds_and_moves_of_the_run_which_is_as_without_it(tmp_path: Path) -> None:
    scenario, history = written(tmp_path / "two.toml", SCENARIO), tmp_path / "history"
    arguments = ["simulate", str(scenario), "--strategy", "threshold+round_robin", "--json"]
    without = CliRunner().invoke(main, arguments)
    done = CliRunner().invoke(main, [*arguments, "--history", str(history)])
    assert (done.exit_code, done.stdout, done.stderr) == (0, without.stdout, "")
    kinds = [line["kind"] for line in lines_in(*files_in(history))]
    (run,) = json.loads(done.stdout)["scenarios"][0]["strategies"]
    assert kinds.count("round") == 8
    assert kinds.count("move") == run["scores"]["moves"]["median"] > 0


def test_a_history_that_cannot_be_written_is_told(scenario: Path) -> None:
    done = simulate(scenario / "history", scenario)
    assert (done.exit_code, done.stderr) == (2, f"{scenario / 'history'}: Not a directory\n")

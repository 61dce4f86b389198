"""``loadmanager simulate --history``: what a run writes, where, and the same each time."""

import gzip
import json
from pathlib import Path

from simulated_jobs import simulate

from loadmanager.adapters.history.storage import check_history


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_a_run_writes_the_same_history_each_time(scenario: Path, tmp_path: Path) -> None:
    arguments = (scenario, "--strategy", "threshold+round_robin", "--json")
    without = simulate(*arguments)
    for folder in ("once", "again"):
        done = simulate(*arguments, "--history", tmp_path / folder)
        assert (done.exit_code, done.stdout, done.stderr) == (0, without.stdout, "")
    written = files_in(tmp_path / "once")
    assert written == files_in(tmp_path / "again")
    assert check_history(tmp_path / "once").faults == []
    lines = [
        json.loads(line)
        for name, content in written.items()
        if Path(name).name.startswith("rounds-")
        for line in gzip.decompress(content).splitlines()
    ]
    (run,) = json.loads(done.stdout)["scenarios"][0]["strategies"]
    assert sum(line["kind"] == "round" for line in lines) == 8
    assert sum(line["kind"] == "move" for line in lines) == run["scores"]["moves"]["median"] > 0


def test_several_runs_write_to_a_folder_each(scenario: Path, tmp_path: Path) -> None:
    done = simulate(
        scenario, "--strategy", "avg+avg", "--mode", "both", "--seeds", 2,
        "--history", tmp_path / "history",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert sorted(one.name for one in (tmp_path / "history" / "two").iterdir()) == [
        f"avg+avg-{mode}-seed-{seed}" for mode in ("parity", "safe") for seed in (7, 8)
    ]


def test_a_history_that_cannot_be_written_is_told(scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = simulate(scenario, "--history", tmp_path / "file" / "history")
    assert done.exit_code == 2
    assert done.stderr == f"{tmp_path / 'file' / 'history'}: Not a directory\n"

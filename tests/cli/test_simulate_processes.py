"""``loadmanager simulate`` in processes of its own: the same bytes, Ctrl-C, a reader gone."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_jobs import SCENARIO
from waiting import eventually

pytestmark = pytest.mark.simulated
COMMAND = [sys.executable, "-m", "loadmanager", "simulate"]


def test_the_same_bytes_come_of_any_number_of_processes_and_any_hash_seed(scenario: Path) -> None:
    outputs = {
        subprocess.run(
            [*COMMAND, str(scenario), "--strategy=avg+*", "--seeds=2", "--json", f"--jobs={jobs}"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for jobs, hash_seed in (("1", "1"), ("2", "2"), ("3", "random"))
    }
    assert len(outputs) == 1


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start what takes minutes, in processes of its own, as a terminal would."""
    file = tmp_path / "long.toml"
    file.write_text(SCENARIO.replace("duration_s = 480.0", "duration_s = 3e7"))
    arguments = [str(file), "--strategy", "avg+avg", "--seeds", "8", "--jobs", "2"]
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        with contextlib.suppress(ProcessLookupError):
            # Its workers would go on for hours.
            os.killpg(process.pid, signal.SIGKILL)


def group(leader: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[2]) == leader and stat[0] != "Z":
                found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
async def test_ctrl_c_ends_all_at_once_with_one_line(long_run: subprocess.Popen[str]) -> None:
    # The command, multiprocessing's own, and the two that simulate.
    await eventually(lambda: len(group(long_run.pid)) == 4)
    os.killpg(long_run.pid, signal.SIGINT)
    _, told = long_run.communicate(timeout=240)
    assert told == "interrupted after 0 of 8 runs\n"
    assert long_run.returncode == 130
    await eventually(lambda: not group(long_run.pid))


def test_a_reader_that_goes_away_is_no_failure_to_tell_of(scenario: Path) -> None:
    arguments = [str(scenario), "--strategy", "avg+*", "--json"]
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1

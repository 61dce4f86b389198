"""``loadmanager simulate`` in processes of its own: the same bytes, Ctrl-C, a reader gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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

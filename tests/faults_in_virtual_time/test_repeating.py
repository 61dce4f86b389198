"""The same seed does the same, in whatever process."""

import json
import os
import subprocess
import sys
from typing import Any

from tests.testbed.faults.seed_run import run_seed


def _in_a_process(*arguments: str, hash_seed: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.testbed.faults", *arguments, "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_seed_leaves_the_same_trace_in_processes_that_hash_differently() -> None:
    arguments = ("--seeds", "2", "--first-seed", "11", "--steps", "10", "--jobs", "1")
    one = _in_a_process(*arguments, hash_seed="1")
    other = _in_a_process(*arguments, hash_seed="2")
    assert [run["seed"] for run in one[:-1]] == [11, 12]
    assert [run["digest"] for run in one[:-1]] == [run["digest"] for run in other[:-1]]
    assert one[0]["digest"] != one[1]["digest"]


def test_a_seed_does_the_same_whatever_ran_before_it() -> None:
    alone = run_seed(12, steps=8)
    run_seed(11, steps=8)
    after = run_seed(12, steps=8)
    assert (alone.digest, alone.happened) == (after.digest, after.happened)


def test_another_seed_does_something_else() -> None:
    assert run_seed(1, steps=5).digest != run_seed(2, steps=5).digest

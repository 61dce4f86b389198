"""``loadmanager faults``: what it prints, how it ends, and that a failure repeats."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadmanager.cli import main

BROKEN = Path(__file__).parents[1] / "support" / "broken_faults.py"


def _broken(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BROKEN), "faults", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_runs_without_a_violation_end_well_and_tell_what_happened() -> None:
    done = CliRunner().invoke(main, ["faults", "--seeds", "2", "--steps", "12", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    assert re.search(
        r"^2 seeds in [\d.]+ s with 1 process: [\d.]+ seeds/s$", done.output, re.MULTILINE
    )
    assert re.search(r"^24 steps in [\d.]+ simulated hours", done.output, re.MULTILINE)
    assert re.search(r"^\d+ of \d+ lookups answered; \d+ orders written", done.output, re.MULTILINE)
    assert re.search(r"^ +\d+  move a bundle$", done.output, re.MULTILINE)
    assert done.output.rstrip().endswith("0 violations")


def test_json_has_one_line_for_each_seed_and_one_for_all() -> None:
    arguments = ["faults", "--seeds", "3", "--first-seed", "5", "--steps", "4", "--json"]
    done = CliRunner().invoke(main, [*arguments, "--jobs", "1"])
    assert done.exit_code == 0, done.output
    *runs, totals = [json.loads(line) for line in done.output.splitlines()]
    assert [run["seed"] for run in runs] == [5, 6, 7]
    assert all(len(run["digest"]) == 64 and not run["violation"] for run in runs)
    assert (totals["seeds"], totals["steps"], totals["failed_seeds"]) == (3, 12, [])


@pytest.mark.simulated
def test_several_processes_do_the_same_as_one() -> None:
    digests = []
    for jobs in ("1", "2"):
        arguments = ["faults", "--seeds", "3", "--steps", "4", "--jobs", jobs, "--json"]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        runs = [json.loads(line) for line in done.output.splitlines()[:-1]]
        digests.append({run["seed"]: run["digest"] for run in runs})
    assert digests[0] == digests[1]


def test_a_violation_ends_with_1_and_the_command_that_repeats_it() -> None:
    found = _broken("--seeds", "6", "--jobs", "1")
    assert found.returncode == 1, found.stdout + found.stderr
    seed = re.search(r"^seed (\d+): (one_server broken at .*)$", found.stdout, re.MULTILINE)
    assert seed, found.stdout
    told = f"to repeat it: loadmanager faults --seeds 1 --first-seed {seed[1]} --steps 40 --jobs 1"
    assert told in found.stdout
    assert re.search(r"^  [\d.]+ step \d+ .+: .+$", found.stdout, re.MULTILINE)
    again = _broken(*told.partition(" faults ")[2].split())
    assert again.returncode == 1
    assert seed[0] in again.stdout.splitlines()


def test_a_seed_below_0_is_refused() -> None:
    done = CliRunner().invoke(main, ["faults", "--first-seed", "-1"])
    assert done.exit_code == 2
    assert "--first-seed" in done.output

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.testbed.faults import campaign
from tests.testbed.faults.__main__ import main
from tests.testbed.faults.seed_run import SeedOutcome

BROKEN = Path(__file__).parents[1] / "support" / "broken_faults.py"


def _broken(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BROKEN), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _dies(seed: int) -> SeedOutcome:
    os.kill(os.getpid(), signal.SIGKILL)
    return _found(seed)


@pytest.mark.simulated
def test_a_process_that_dies_in_a_run_is_an_error() -> None:
    with pytest.raises(BrokenProcessPool):
        list(campaign.outcomes(range(4), jobs=2, run_one=_dies))


@pytest.mark.simulated
def test_a_build_that_fences_nothing_is_found_out_and_found_out_again_by_its_seed() -> None:
    found = _broken("--seeds", "6", "--jobs", "1")
    assert found.returncode == 1, found.stdout + found.stderr
    seed = re.search(r"^seed (\d+): (one_server broken at .*)$", found.stdout, re.MULTILINE)
    assert seed, found.stdout
    told = f"python -m tests.testbed.faults --seeds 1 --first-seed {seed[1]} --steps 40 --jobs 1"
    assert f"to repeat it: {told}" in found.stdout
    assert re.search(r"^  [\d.]+ step \d+ .+: .+$", found.stdout, re.MULTILINE)
    again = _broken(*told.partition(".faults ")[2].split())
    assert again.returncode == 1
    assert seed[0] in again.stdout.splitlines()


def _found(seed: int) -> SeedOutcome:
    """Stand in for a run that finds something in each odd seed."""
    outcome = SeedOutcome(seed=seed, steps=3, digest="d", virtual_s=7.0, real_s=0.1)
    if seed % 2 == 0:
        return outcome
    last_lines = ("1001.0 step 3 kill a broker: b",)
    return replace(outcome, violation="one_server broken", last_lines=last_lines)


def test_a_violation_ends_with_1_and_is_told_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(campaign, "run_seed", lambda seed, *, steps: _found(seed + 0 * steps))
    arguments = ["--seeds", "3", "--first-seed", "4", "--steps", "9", "--jobs", "1"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "failed_seeds: [5]\n\nseed 5: one_server broken\n" in done.output
    assert done.output.endswith(
        "  1001.0 step 3 kill a broker: b\n"
        "to repeat it: python -m tests.testbed.faults --seeds 1 --first-seed 5 --steps 9 --jobs 1\n"
    )
    as_json = CliRunner().invoke(main, [*arguments, "--json"])
    assert as_json.exit_code == 1
    assert json.loads(as_json.output.splitlines()[-1])["failed_seeds"] == [5]

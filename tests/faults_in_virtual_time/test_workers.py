"""Processes that run seeds: what becomes of a seed that its process does not survive."""

import os
import re
import signal
import time
from functools import partial

import pytest

from tests.testbed.faults.campaign import outcomes_from_processes
from tests.testbed.faults.seed_run import SeedOutcome

pytestmark = pytest.mark.simulated


def _run(seed: int, *, deadly: int, hanging: int) -> SeedOutcome:
    if seed == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == hanging:
        re.match(r"(a+)+$", "a" * 60 + "b")  # In C, which no signal interrupts.
    return SeedOutcome(seed=seed, steps=1, digest="d", virtual_s=1.0, real_s=0.0)


def test_a_process_that_dies_or_hangs_is_a_failure_of_its_seed_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    run_one = partial(_run, deadly=4, hanging=6)
    found = list(outcomes_from_processes(range(9), jobs=2, run_one=run_one, last_limit_s=2.0))
    assert sorted(one.seed for one in found) == list(range(9))
    failures = {one.seed: one.violation for one in found if one.violation}
    assert failures == {
        4: "the process ended with -9 in the midst of the run",
        6: "the process ended with 1 in the midst of the run",
    }
    assert "in _run\n" in capfd.readouterr().err


def test_a_caller_that_wants_no_more_outcomes_leaves_no_process_behind() -> None:
    run_one = partial(_run, deadly=-1, hanging=1)
    running = outcomes_from_processes(range(9), jobs=2, run_one=run_one)
    began_s = time.monotonic()
    assert next(running).seed == 0
    running.close()  # type: ignore[attr-defined] # it is a generator
    assert time.monotonic() - began_s < 60.0

"""Promises broken under faults: over ten thousand simulated seeds, and on real processes.

Both are counts of what must never be; the figures beside them say how much was tried. They
take most of an hour together: LOADMANAGER_BENCH_SEEDS and LOADMANAGER_BENCH_FAULT_RUNS
set how many.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from figures import emit

from tests.testbed.faults.campaign import Totals, outcomes
from tests.testbed.faults.seed_run import STEPS

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("LOADMANAGER_BENCH_SEEDS", "10000"))
RUNS = int(os.environ.get("LOADMANAGER_BENCH_FAULT_RUNS", "50"))
JOBS = len(os.sched_getaffinity(0))

pytestmark = [pytest.mark.bench, pytest.mark.timeout(2 * 3600)]


def test_no_simulated_seed_breaks_a_promise() -> None:
    totals, begun_s = Totals(), time.monotonic()
    for outcome in outcomes(range(SEEDS), jobs=JOBS):
        totals.add(outcome)
    took_s = time.monotonic() - begun_s
    emit(
        "simulated_faults",
        first_seed=0,
        seeds=totals.seeds,
        steps_each=STEPS,
        jobs=JOBS,
        violations=len(totals.failures),
        failed_seeds=[one.seed for one in totals.failures][:20],
        simulated_h=totals.virtual_s / 3600,
        times_real_time=totals.virtual_s / took_s,
        seeds_per_s=totals.seeds / took_s,
        terms=totals.counted["terms"],
        lookups_answered=totals.counted["answers"],
    )
    assert not totals.failures


def test_no_fault_on_real_processes_breaks_a_promise() -> None:
    done = subprocess.run(
        [sys.executable, "tests/faults/run_faults.py", "--runs", str(RUNS), "--seed", "1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    last = done.stdout.rstrip().rpartition("\n")[2]
    emit("real_faults", **json.loads(last))
    assert done.returncode == 0, done.stdout

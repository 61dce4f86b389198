"""The service under random faults: no seed breaks a promise."""

import os

import pytest

from loadmanager.config import SheddingSettings
from tests.testbed.faults.campaign import Totals, outcomes
from tests.testbed.faults.seed_run import ACTIONS, run_seed, seeded_config

QUICK_SEEDS = range(8)
DEFAULT_SEEDS = range(500, 520)
MANY_SEEDS = range(1000, 1300)


@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_no_fault_breaks_a_promise_and_peace_mends_all(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violation, "\n".join([*outcome.last_lines, outcome.violation])


@pytest.mark.simulated
@pytest.mark.timeout(600)
def test_no_fault_breaks_a_promise_with_the_default_strategy() -> None:
    # The other seeds have ThresholdShedder, which moves more.
    default = seeded_config(
        shedding={"strategy": SheddingSettings().strategy}, placement={"strategy": None}
    )
    for seed in DEFAULT_SEEDS:
        outcome = run_seed(seed, config=default)
        assert not outcome.violation, "\n".join([*outcome.last_lines, outcome.violation])


@pytest.mark.simulated
@pytest.mark.timeout(2400)
def test_no_seed_of_three_hundred_breaks_a_promise_and_everything_happens_in_them() -> None:
    totals = Totals()
    for outcome in outcomes(MANY_SEEDS, jobs=len(os.sched_getaffinity(0))):
        totals.add(outcome)
    assert totals.seeds == len(MANY_SEEDS)
    assert [f"{one.seed}: {one.violation}" for one in totals.failures] == []
    assert {one.name for one in ACTIONS} <= totals.happened.keys()
    assert totals.counted["answers"] > 30_000
    assert totals.counted["terms"] > 500

"""The service under random faults: no seed breaks a promise."""

import os
from collections.abc import Sequence

import pytest

from loadmanager.config import SheddingSettings
from tests.testbed.faults.campaign import Totals, outcomes
from tests.testbed.faults.seed_run import ACTIONS, run_seed, seeded_config

QUICK_SEEDS = range(8)


@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_no_fault_breaks_a_promise_and_peace_mends_all(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violation, "\n".join([*outcome.last_lines, outcome.violation])


@pytest.mark.simulated
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seeds", [range(500, 506), pytest.param(range(506, 520), marks=pytest.mark.thorough)]
)
def test_no_fault_breaks_a_promise_with_the_default_strategy(seeds: Sequence[int]) -> None:
    # The other seeds have ThresholdShedder, which moves more.
    default = seeded_config(
        shedding={"strategy": SheddingSettings().strategy}, placement={"strategy": None}
    )
    for seed in seeds:
        outcome = run_seed(seed, config=default)
        assert not outcome.violation, "\n".join([*outcome.last_lines, outcome.violation])


@pytest.mark.simulated
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "seeds", [range(1000, 1036), pytest.param(range(1036, 1300), marks=pytest.mark.thorough)]
)
def test_no_seed_of_many_breaks_a_promise_and_everything_happens_in_them(
    seeds: Sequence[int],
) -> None:
    totals = Totals()
    for outcome in outcomes(seeds, jobs=len(os.sched_getaffinity(0))):
        totals.add(outcome)
    assert totals.seeds == len(seeds)
    assert [f"{one.seed}: {one.violation}" for one in totals.failures] == []
    assert {one.name for one in ACTIONS} <= totals.happened.keys()
    assert totals.counted["answers"] > 100 * len(seeds)
    assert totals.counted["terms"] > 1.6 * len(seeds)

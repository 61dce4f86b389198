"""How honest the intervals are, over many months whose truth is known."""

from collections.abc import Iterator

import numpy as np
import pytest
from cost_months import Month, made, with_moves
from rows_in_memory import InMemory

from loadmanager.pipeline.cost_model.learning import learn
from loadmanager.pipeline.cost_model.rows import RATES

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

MONTHS = 12
"""Of 17 terms that cost something and 13 that cost nothing, each."""


def months(count: int) -> Iterator[Month]:
    """Yield months of all sorts: long and short memories of errors, full brokers, outliers."""
    for seed in range(count):
        yield Month(
            seed=1000 + seed,
            brokers=5,
            bundles=60,
            step_minutes=15,
            moves_per_day=12.0,
            wander=0.04 if seed % 3 == 0 else 0.02,
            wander_h=(1.0, 6.0, 24.0)[seed % 3],
            full=85.0 if seed % 4 == 0 else None,
            odd=(0.0, 0.01, 0.04)[seed // 3 % 3],
            rate_noise=(0.0, 0.02)[seed % 2],
        )


def test_nine_of_ten_intervals_hold_the_truth() -> None:
    held, errors = [], []
    for month in months(MONTHS):
        of = made(month)
        found = learn(InMemory(with_moves(of)), of.class_of)
        for (number, resource), finding in found.findings.items():
            truth = of.costs[number, resource]
            typical = truth * found.statistics.scale[number]
            for one in finding.terms:
                term = RATES.index(one.rate)
                if truth[term] > 0:
                    held.append(one.term.low <= truth[term] <= one.term.high)
                if typical[term] > 0.2 * typical.sum():
                    errors.append(abs(one.term.value / truth[term] - 1.0))
    assert len(held) == 17 * MONTHS
    assert 0.85 <= np.mean(held) <= 0.95
    assert np.median(errors) < 0.03
    assert np.quantile(errors, 0.9) < 0.1

"""A simulated month with hidden costs, which reports and moves give away."""

import math

import numpy as np
import pytest
from cost_simulation import Grid, classes, scenario, simulated, true_costs
from rows_in_memory import InMemory

from loadmanager.core.scores import CPU
from loadmanager.pipeline.cost_model.learning import Learned, learn
from loadmanager.pipeline.cost_model.rows import RATES

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(900)]

USAGE_FRACTION = 0.02
DRAWS = 4
"""Months that differ by the error of measuring usage alone: one simulation is the costly part."""


@pytest.fixture(scope="module")
def month() -> Grid:
    return simulated(scenario(usage_fraction=0.0), seed=4)


@pytest.fixture(scope="module")
def learned(month: Grid) -> list[Learned]:
    every = (month.rows(seed, USAGE_FRACTION) for seed in range(DRAWS))
    return [learn(InMemory(rows), classes(month.scenario)) for rows in every]


def test_hidden_costs_that_matter_are_found_within_a_tenth(
    month: Grid, learned: list[Learned]
) -> None:
    errors = []
    for found in learned:
        for (number, resource), finding in found.findings.items():
            truth = true_costs(month.scenario.brokers[number])[resource]
            typical = truth * found.statistics.scale[number]
            for one in finding.terms:
                term = RATES.index(one.rate)
                if typical[term] >= 0.05 * typical.sum():
                    errors.append(abs(one.term.value / truth[term] - 1.0))
    assert len(errors) >= 22 * DRAWS
    assert np.mean(np.array(errors) < 0.1) > 0.97
    assert np.median(errors) < 0.02


def test_nine_of_ten_intervals_hold_the_hidden_costs(month: Grid, learned: list[Learned]) -> None:
    held = []
    for found in learned:
        for (number, resource), finding in found.findings.items():
            truth = true_costs(month.scenario.brokers[number])[resource]
            held += [
                one.term.low <= truth[RATES.index(one.rate)] <= one.term.high
                for one in finding.terms
                if truth[RATES.index(one.rate)] > 0
            ]
    assert len(held) == 28 * DRAWS
    # Nine of ten, by three deviations of so many.
    assert abs(np.mean(held) - 0.9) <= 3 * math.sqrt(0.9 * 0.1 / len(held))


def test_full_brokers_and_busy_hosts_were_among_them(month: Grid, learned: list[Learned]) -> None:
    small = [group.name for group in month.scenario.brokers].index("small")
    for found in learned:
        full = found.statistics.full[small, CPU] / found.statistics.measured[small, CPU]
        assert full > 0.02
        assert found.statistics.changes.min() > 20


def test_held_out_days_are_predicted_better_than_by_traffic_shares(learned: list[Learned]) -> None:
    for found in learned:
        measured = found.statistics.measured > 0
        assert (found.trial.error[measured] < 0.03).all()
        assert (found.trial.error[measured] < found.trial.rule_error[measured]).all()
        assert (np.abs(found.trial.within[measured] - 0.9) < 0.03).all()


def test_held_out_days_are_predicted_where_bundles_cost_more_than_rates_say() -> None:
    month = simulated(scenario(usage_fraction=0.0, hidden={}), seed=4)
    found = learn(InMemory(month.rows(0, USAGE_FRACTION)), classes(month.scenario))
    measured = found.statistics.measured > 0
    assert (found.trial.error[measured] < 0.03).all()
    assert (found.trial.error[measured] < found.trial.rule_error[measured]).all()

"""How fast costs are learned and in what memory, and how true they are over simulated months."""

import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import costs_by_spark
import numpy as np
import pytest
from cost_simulation import classes, scenario, simulated, true_costs
from figures import emit
from rows_in_memory import InMemory

from loadmanager.pipeline.cost_model.learning import learn
from loadmanager.pipeline.cost_model.rows import RATES

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

BROKERS: Final = 20
DAYS: Final = (8, 32)
MOST_GROWTH: Final = 1.3
SEEDS: Final = range(1, 33)

OFTEN: Final = 0.01
"""Of the time."""


def measured(folder: Path, days: int) -> dict[str, Any]:
    command = [sys.executable, costs_by_spark.__file__, str(folder), str(BROKERS), str(days)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_costs_are_learned_in_memory_that_does_not_grow_with_the_history(tmp_path: Path) -> None:
    told = {days: measured(tmp_path / str(days), days) for days in DAYS}
    for days, figures in told.items():
        minutes = BROKERS * days * 1440
        emit("costs", minutes=minutes, minutes_per_s=round(minutes / figures["took_s"]), **figures)
    small, large = (told[days] for days in DAYS)
    growth = large["peak_mib"] / small["peak_mib"]
    python_growth = large["python_peak_mib"] / small["python_peak_mib"]
    emit("costs_memory", times_the_input=4, jvm_growth=growth, python_growth=python_growth)
    assert growth <= MOST_GROWTH
    assert python_growth <= MOST_GROWTH


@dataclass(frozen=True)
class Told:
    """What is told of a month's costs: which intervals hold them, and how far off they are.

    ``full`` are the intervals of a resource that was full for more than `OFTEN` of the time.
    """

    held: list[bool]
    full: list[bool]
    errors: list[float]


def told_of(seed: int) -> Told:
    """Simulate a month and learn from it."""
    played = scenario()
    found = learn(InMemory(simulated(played, seed).rows()), classes(played))
    told = Told([], [], [])
    for (number, resource), finding in found.findings.items():
        truth = true_costs(played.brokers[number])[resource]
        typical = truth * found.statistics.scale[number]
        full = (
            found.statistics.full[number, resource]
            > OFTEN * found.statistics.measured[number, resource]
        )
        for one in finding.terms:
            term = RATES.index(one.rate)
            if truth[term] > 0:
                told.held.append(one.term.low <= truth[term] <= one.term.high)
                told.full.extend(told.held[-1:] if full else [])
            if typical[term] >= 0.05 * typical.sum():
                told.errors.append(abs(one.term.value / truth[term] - 1.0))
    return told


def test_simulated_months_give_their_hidden_costs_away() -> None:
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        months = list(pool.map(told_of, SEEDS))
    for seed, month in zip(SEEDS, months, strict=True):
        emit("costs_month", seed=seed, held=np.mean(month.held), error_most=max(month.errors))
    held = [one for each in months for one in each.held]
    full = [one for each in months for one in each.full]
    errors = [one for each in months for one in each.errors]
    emit(
        "costs_months",
        months=len(months),
        intervals=len(held),
        held=np.mean(held),
        intervals_where_full=len(full),
        held_where_full=np.mean(full),
        error_median=np.median(errors),
        error_p95=np.quantile(errors, 0.95),
        error_most=max(errors),
    )
    assert 0.85 <= np.mean(held) <= 0.95
    assert np.quantile(errors, 0.95) < 0.1

"""The arithmetic that costs are estimated with, and what is said of them."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from cost_months import Month, made, with_moves
from rows_in_memory import InMemory

from loadmanager.pipeline.confidence import NORMAL_95, student_95
from loadmanager.pipeline.cost_model import results
from loadmanager.pipeline.cost_model.learning import (
    Learned,
    Verdict,
    condition,
    entangled,
    interval,
    learn,
    verdict,
)
from loadmanager.pipeline.cost_model.results import Unit, Units, block_minutes
from loadmanager.pipeline.cost_model.row_statistics import hazard
from loadmanager.pipeline.cost_model.rows import RATES


@pytest.mark.parametrize("at", [-30.0, -6.0, -1.0, 0.0, 0.5, 2.0, 6.0])
def test_the_hazard_is_the_density_over_what_lies_above(at: float) -> None:
    density = math.exp(-at * at / 2.0) / math.sqrt(2.0 * math.pi)
    above = math.erfc(at / math.sqrt(2.0)) / 2.0
    assert hazard(np.array([at]))[0] == pytest.approx(density / above, rel=1e-12)


TABLE = {
    1: 6.3138, 2: 2.9200, 3: 2.3534, 4: 2.1318, 5: 2.0150, 6: 1.9432, 7: 1.8946, 8: 1.8595,
    9: 1.8331, 10: 1.8125, 15: 1.7531, 20: 1.7247, 30: 1.6973, 60: 1.6706, 120: 1.6577,
}  # fmt: skip
"""The 95th percentiles of Student's t by degrees of freedom, as any book of tables has them."""


def test_quantiles_are_those_of_the_tables() -> None:
    assert pytest.approx(1.644854, abs=1e-6) == NORMAL_95
    assert {one: student_95(one) for one in TABLE} == pytest.approx(TABLE, rel=5e-4)


DAY = 1440


def unit(broker: str = "b:1", *, days: float = 1.0, name: str = "", share: float = 1.0) -> Unit:
    last = int(days * DAY) - 1
    return Unit("cluster", name, broker, int(days * DAY * share), 0, last)


def test_errors_depend_on_each_other_for_that_long() -> None:
    for days, minutes in ((10.0, 1440), (9.0, 360)):
        assert block_minutes([unit(f"b{n}:1", days=days) for n in range(4)]) == minutes
    for days, share, minutes in ((3, 1.0, 60), (0.5, 1.0, 10), (0.01, 1.0, 10), (40, 0.005, 60)):
        assert block_minutes([unit(days=days, share=share)]) == minutes


def test_an_interval_at_zero_begins_there() -> None:
    low, high = interval(2, np.array([5.0, 5, 0.1, 5, 5, 5]), np.eye(6), 1e3, 10**6)
    assert low == 0.0
    assert high == pytest.approx(1.745, rel=1e-3)


def test_no_interval_goes_beyond_what_is_possible() -> None:
    assert interval(0, np.full(6, 5.0), np.zeros((6, 6)), 7.0, 100) == (0.0, 7.0)


def test_two_terms_known_together_alone_reach_from_nothing_to_all() -> None:
    together = np.zeros(6)
    together[:2] = 1.0
    precision = 1e4 * np.outer(together, together) + np.diag([0, 0, 1.0, 1, 1, 1])
    low, high = interval(0, np.array([2.0, 2, 1, 1, 1, 1]), precision, 100.0, 10**6)
    assert low == pytest.approx(0.0, abs=1e-6)
    assert high == pytest.approx(4.0, rel=0.01)


def test_terms_that_go_together_are_named_for_each_other() -> None:
    gram = np.eye(6)
    gram[1, 4] = gram[4, 1] = 0.9999
    assert condition(gram) > 100
    found = entangled(gram)
    assert found[1] == (RATES[4],)
    assert found[4] == (RATES[1],)
    assert [found[n] for n in (0, 2, 3, 5)] == [()] * 4


@pytest.mark.parametrize(
    ("varied", "partners", "low", "value", "high", "expected"),
    [
        (True, (), 8.0, 10.0, 13.0, Verdict.KNOWN),
        (True, ("topics",), 8.0, 10.0, 13.0, Verdict.KNOWN),
        (True, (), 0.0, 10.0, 30.0, Verdict.VAGUE),
        (True, ("topics",), 0.0, 10.0, 30.0, Verdict.ENTANGLED),
        (True, (), 0.0, 0.0, 0.9, Verdict.KNOWN),
        (True, (), 0.0, 0.0, 5.0, Verdict.VAGUE),
        (False, (), 0.0, 0.0, 0.5, Verdict.UNVARIED),
    ],
)
def test_verdicts(
    *,
    varied: bool,
    partners: tuple[str, ...],
    low: float,
    value: float,
    high: float,
    expected: Verdict,
) -> None:
    told = verdict(varied=varied, partners=partners, low=low, value=value, high=high, usage=100.0)
    assert told is expected


MONTH = Month(brokers=2, bundles=20, days=11, step_minutes=60, moves_per_day=12.0)


@pytest.fixture(scope="module")
def learned() -> Learned:
    of = made(MONTH)
    rows = with_moves(of)
    unmeasured = rows.usage.copy()
    unmeasured[:, 2] = np.nan
    return learn(InMemory(replace(rows, usage=unmeasured)), of.class_of)


@pytest.fixture(scope="module")
def units() -> Units:
    return Units.of([unit("b-1:8080", days=11), unit("b-2:8080", days=11)])


def test_the_summary_says_what_is_known_and_what_is_not(learned: Learned, units: Units) -> None:
    lines = list(results.summary(units, learned))
    changes = learned.statistics.changes[0]
    assert (
        lines[0] == f"class (none) of cluster: 2 brokers, 528 minutes, {changes} changes by moves"
    )
    told = "direct_memory was never measured"
    assert f"  direct_memory: no costs, {told}" in lines
    term = next(one for one in learned.findings[0, 0].terms if one.rate == "msgs_in_per_s")
    amounts = (term.term.value, term.term.low, term.term.high)
    value, low, high = (f"{amount * 1e3:,.4g}" for amount in amounts)
    line = next(one for one in lines if "1,000 messages/s in" in one)
    assert f"{value} % of a core [{low} to {high}]" in line


def test_tables_have_a_row_for_each_term_and_resource(learned: Learned, units: Units) -> None:
    terms = list(results.term_rows(units, learned))
    assert len(terms) == sum(len(one.terms) for one in learned.findings.values())
    quality = {row["resource"]: row for row in results.quality_rows(units, learned)}
    assert quality["direct_memory"]["refused"] == "was never measured"
    assert quality["direct_memory"]["mape"] is None
    assert quality["cpu"]["refused"] is None
    assert quality["cpu"]["moves"] == learned.statistics.changes[0] > 10
    backgrounds = list(results.background_rows(units, learned))
    assert len(backgrounds) == 2 * 4


@pytest.mark.parametrize("last", [10 * DAY - 1, 27_000 * DAY], ids=["usual", "a clock years ahead"])
def test_the_middle_is_that_of_the_time_in_which_all_reported(last: int) -> None:
    start = 29_000_000
    found = Units.of(
        [
            Unit("c", "plain", f"b{number}:8080", 10 * DAY, start, start + end)
            for number, end in ((1, 10 * DAY - 1), (2, 10 * DAY - 1), (3, last))
        ]
    )
    assert found.middle_minute == start + 5 * DAY


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


@pytest.mark.thorough
@pytest.mark.timeout(900)
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

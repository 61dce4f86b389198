"""The estimation of costs on months whose truth is known, and its arithmetic."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cost_months import MINUTES_PER_DAY, TRUE_COSTS, Made, Month, made

from loadmanager.core.rates import MSGS_IN
from loadmanager.core.scores import BANDWIDTH_IN, CPU, MEMORY, RESOURCES
from loadmanager.pipeline.confidence import NORMAL_95, student_95
from loadmanager.pipeline.cost_fits import interval
from loadmanager.pipeline.costs import (
    RATES,
    Found,
    Rows,
    Unit,
    block_minutes,
    learn,
    summary,
    verdict,
)

SMALL = Month(brokers=4, bundles=40, days=12, step_minutes=30, moves_per_day=12.0)
SHORT = replace(SMALL, days=8)
ONE_DAY = {"block": MINUTES_PER_DAY}
Vector = np.ndarray[tuple[int], np.dtype[np.float64]]


class Learned:
    """A month and what was found of it, by number of the class and resource."""

    def __init__(self, of: Made, rows: Rows | None = None) -> None:
        self.of, self.rows = of, rows or of.rows
        self.found = learn(self.rows, of.units, **ONE_DAY)
        self.classes = sorted({one.broker_class for one in of.units})

    def terms(self, number: int, resource: int) -> list[dict[str, Any]]:
        key = self.classes[number], RESOURCES[resource]
        return [one for one in self.found[0] if (one["broker_class"], one["resource"]) == key]

    def values(self, number: int, resource: int) -> Vector:
        """Return what typical traffic costs."""
        return np.array([one["typical_usage"] for one in self.terms(number, resource)])

    def quality(self, resource: int, number: int = 0) -> dict[str, Any]:
        return self.found[1][number * len(RESOURCES) + resource]

    def truth(self, number: int, resource: int) -> Vector:
        mine = [self.of.units[unit].broker_class == self.classes[number] for unit in self.rows.unit]
        mean: Vector = self.rows.rates[mine].mean(axis=0)
        typical: Vector = self.of.costs[number, resource] * mean
        return typical


@pytest.fixture(scope="module")
def usual() -> Learned:
    return Learned(made(SMALL))


def test_without_errors_costs_are_found_exactly() -> None:
    exact = replace(SHORT, usage_noise=0.0, rate_noise=0.0, wander=0.0, odd=0.0)
    found = Learned(made(exact))
    for resource in range(len(RESOURCES)):
        wanted = found.truth(0, resource)
        assert (np.abs(found.values(0, resource) - wanted) < 1e-3 * wanted.sum()).all()


def test_terms_that_matter_are_near_the_truth(usual: Learned) -> None:
    for resource in (CPU, MEMORY, BANDWIDTH_IN):
        wanted = usual.truth(0, resource)
        matter = wanted > 0.15 * wanted.sum()
        np.testing.assert_allclose(usual.values(0, resource)[matter], wanted[matter], rtol=0.15)


def test_most_intervals_hold_the_truth_and_none_is_negative(usual: Learned) -> None:
    held = []
    for one in usual.found[0]:
        truth = TRUE_COSTS[RESOURCES.index(one["resource"]), RATES.index(one["rate"])]
        assert 0.0 <= one["low"] <= one["value"] <= one["high"]
        held.append(one["low"] <= truth <= one["high"])
    assert len(held) == len(RATES) * len(RESOURCES)
    assert np.mean(held) > 0.75


def test_backgrounds_are_found_with_their_brokers(usual: Learned) -> None:
    names = [one.broker for one in usual.of.units]
    held = []
    for one in usual.found[2]:
        place = names.index(one["broker"]), RESOURCES.index(one["resource"])
        held.append(one["low"] <= usual.of.background[place] <= one["high"])
    assert len(held) == len(names) * len(RESOURCES)
    assert np.mean(held) > 0.6


def test_held_out_minutes_are_predicted_better_than_by_shares(usual: Learned) -> None:
    for row in usual.found[1]:
        assert row["mape"] < min(0.05, 0.6 * row["baseline_mape"])
        assert row["coverage"] == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize(
    ("changed", "off"),
    [
        pytest.param({"odd": 0.08}, 0.02, id="outliers"),
        pytest.param({"full": 70.0}, 0.04, id="full minutes"),
        pytest.param({"brokers": 3, "class_factors": (1.0, 0.4)}, 0.06, id="two classes"),
    ],
)
def test_what_is_odd_does_not_shift_costs(changed: dict[str, Any], off: float) -> None:
    found = Learned(made(replace(SHORT, **changed)))
    for number in range(len(found.classes)):
        wanted = found.truth(number, CPU).sum()
        assert found.values(number, CPU).sum() == pytest.approx(wanted, rel=off)
    if "full" in changed:
        rows = found.rows
        assert 0.2 < np.mean(rows.usage[:, CPU] >= 0.9 * rows.limit[:, CPU]) < 0.6


def test_minutes_in_which_others_fill_the_host_do_not_raise_costs() -> None:
    of = made(replace(SHORT, full=80.0))
    rows, usage = of.rows, of.rows.usage.copy()
    limit, sent = rows.limit[:, CPU], rows.rates[:, MSGS_IN]
    idle = usage[:, CPU] < 0.7 * limit
    # They come when more than usual is sent.
    drawn = np.random.default_rng(1).random(len(usage)) < 0.2
    others = idle & (sent > np.median(sent[idle])) & drawn
    usage[others, CPU] = limit[others]
    plain, spoilt = Learned(of), Learned(of, replace(rows, usage=usage))
    off = np.abs(spoilt.values(0, CPU) - plain.values(0, CPU))
    assert others.sum() > 40
    assert off.max() < 0.015 * plain.truth(0, CPU).sum()


def test_costs_that_change_halfway_are_told() -> None:
    row = Learned(made(replace(SMALL, brokers=6, later_factor=1.4))).quality(CPU)
    assert row["drifted"]
    assert row["drift"] == pytest.approx(0.4, abs=0.06)


def test_costs_that_stay_are_not_said_to_drift(usual: Learned) -> None:
    assert [row["drifted"] for row in usual.found[1]] == [False] * len(RESOURCES)


@pytest.fixture(scope="module")
def spoilt() -> Learned:
    """Each message goes to one consumer, topics never change, and two resources tell nothing."""
    of = made(SMALL)
    rates, usage, limit = of.rows.rates.copy(), of.rows.usage.copy(), of.rows.limit.copy()
    rates[:, 1] = rates[:, 0]
    rates[:, RATES.index("topics")] = 100.0
    usage[:, CPU] = 20.0 + rates @ TRUE_COSTS[CPU]
    usage[:, CPU] *= 1.0 + 0.02 * np.random.default_rng(1).standard_normal(len(usage))
    usage[:, MEMORY] = np.nan
    limit[:, BANDWIDTH_IN] = usage[:, BANDWIDTH_IN] / 2.0
    return Learned(of, replace(of.rows, rates=rates, usage=usage, limit=limit))


def test_rates_that_go_together_exactly_share_their_cost_and_say_so(spoilt: Learned) -> None:
    both = TRUE_COSTS[CPU, 0] + TRUE_COSTS[CPU, 1]
    for term, other in ((0, 1), (1, 0)):
        one = spoilt.terms(0, CPU)[term]
        assert (one["verdict"], one["partners"]) == ("entangled", RATES[other])
        assert one["value"] == pytest.approx(both / 2, rel=0.1)
        assert one["low"] == 0.0
        assert one["high"] > 0.95 * both
    # What typical traffic costs is known where its parts are not.
    assert spoilt.quality(CPU)["typical_error"] < 0.05


def test_a_rate_that_never_varies_within_brokers_is_said_to_be_unknown(spoilt: Learned) -> None:
    term = spoilt.terms(0, CPU)[RATES.index("topics")]
    assert term["verdict"] == "unvaried"
    assert term["value"] == term["low"] == 0.0
    assert term["high"] > 0.0


def test_what_was_never_measured_or_always_full_has_no_costs(spoilt: Learned) -> None:
    full = "has 0 minutes below 90 % of the limit; expected 240 or more"
    refused = [row["refused"] for row in spoilt.found[1]]
    assert refused == [None, "was never measured", None, full, None]
    assert {one["resource"] for rows in (spoilt.found[0], spoilt.found[2]) for one in rows} == {
        "cpu",
        "direct_memory",
        "bandwidth_out",
    }
    lines = list(summary(spoilt.found))
    assert "memory of class class 0 of cluster: no costs, memory was never measured" in lines
    one = spoilt.terms(0, CPU)[0]
    value, low, high = (f"{one[name] * 1e3:,.4g}" for name in ("value", "low", "high"))
    told = next(line for line in lines if "1,000 messages/s in" in line)
    assert f"{value} % of a core [{low} to {high}] not separable from {RATES[1]}" in told


def steady(rows: Rows) -> Rows:
    wave = 1.0 + 1e-3 * np.sin(np.arange(len(rows.unit)))
    return replace(rows, rates=rows.rates.mean(axis=0) * wave[:, None])


@pytest.mark.parametrize(
    ("less", "told"),
    [
        (
            lambda rows: rows.take(slice(0, 200)),
            "has 200 minutes below 90 % of the limit; expected 240 or more",
        ),
        (
            lambda rows: replace(rows, minute=rows.minute // 4),
            "has 6 stretches of time; expected 20 or more",
        ),
        (steady, "traffic varied by 0.07% of its mean within brokers; expected 1% or more"),
    ],
    ids=["few minutes", "few stretches", "steady traffic"],
)
def test_too_little_to_learn_is_told(less: Callable[[Rows], Rows], told: str) -> None:
    of = made(SMALL)
    rows = less(of.rows.take(of.rows.unit < 2))
    assert Learned(of, rows).quality(CPU)["refused"] == told


TABLE = {
    1: 6.3138, 2: 2.9200, 3: 2.3534, 4: 2.1318, 5: 2.0150, 6: 1.9432, 7: 1.8946, 8: 1.8595,
    9: 1.8331, 10: 1.8125, 15: 1.7531, 20: 1.7247, 30: 1.6973, 60: 1.6706, 120: 1.6577,
}  # fmt: skip
"""The 95th percentiles of Student's t by degrees of freedom, as any book of tables has them."""


def test_quantiles_are_those_of_the_tables() -> None:
    assert pytest.approx(1.644854, abs=1e-6) == NORMAL_95
    assert {one: student_95(one) for one in TABLE} == pytest.approx(TABLE, rel=5e-4)


@pytest.mark.parametrize(
    ("brokers", "days", "length"),
    [(4, 10.0, 1440), (4, 9.0, 360), (1, 3.0, 60), (1, 0.5, 10), (1, 0.01, 10)],
)
def test_errors_depend_on_each_other_for_that_long(brokers: int, days: float, length: int) -> None:
    each = np.arange(int(days * MINUTES_PER_DAY))
    nothing = np.zeros((brokers * len(each), len(RATES)))
    rows = Rows(
        unit=np.repeat(np.arange(brokers), len(each)), minute=np.tile(each, brokers),
        rates=nothing, usage=nothing[:, 1:], limit=nothing[:, 1:],
    )  # fmt: skip
    assert block_minutes(rows, np.zeros(brokers, dtype=np.int64)) == length


def test_intervals_begin_at_zero_and_end_at_what_is_possible() -> None:
    low, high = interval(2, np.array([5.0, 5, 0.1, 5, 5, 5]), np.eye(6), 1e3, 10**6)
    assert low == 0.0
    assert high == pytest.approx(1.745, rel=1e-3)
    assert interval(0, np.full(6, 5.0), np.zeros((6, 6)), 7.0, 100) == (0.0, 7.0)


@pytest.mark.parametrize(
    ("varied", "partners", "ends", "expected"),
    [
        (True, (), (8.0, 10.0, 13.0), "known"),
        (True, ("topics",), (8.0, 10.0, 13.0), "known"),
        (True, (), (0.0, 10.0, 30.0), "vague"),
        (True, ("topics",), (0.0, 10.0, 30.0), "entangled"),
        (True, (), (0.0, 0.0, 0.9), "known"),
        (True, (), (0.0, 0.0, 5.0), "vague"),
        (False, (), (0.0, 0.0, 0.5), "unvaried"),
    ],
)
def test_verdicts(
    *, varied: bool, partners: tuple[str, ...], ends: tuple[float, float, float], expected: str
) -> None:
    assert verdict(varied=varied, partners=partners, interval=ends, usage=100.0) == expected


def test_without_rows_nothing_is_found() -> None:
    empty: Found = learn(made(SHORT).rows.take(slice(0, 0)), [Unit("c", "", "b")])
    assert empty == ([], [], [])


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
        found = Learned(made(month))
        for resource in range(len(RESOURCES)):
            typical = found.truth(0, resource)
            for one, truth in zip(found.terms(0, resource), TRUE_COSTS[resource], strict=True):
                if truth > 0:
                    held.append(one["low"] <= truth <= one["high"])
                if typical[RATES.index(one["rate"])] > 0.2 * typical.sum():
                    errors.append(abs(one["value"] / truth - 1.0))
    assert len(held) == 17 * MONTHS
    assert 0.85 <= np.mean(held) <= 0.95
    assert np.median(errors) < 0.03
    assert np.quantile(errors, 0.9) < 0.1

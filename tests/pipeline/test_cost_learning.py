"""The estimation as a whole, on months whose truth is known."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cost_months import TRUE_COSTS, Made, Month, made, with_moves
from rows_in_memory import InMemory

from loadmanager.core.rates import MSGS_IN
from loadmanager.core.scores import BANDWIDTH_IN, CPU, MEMORY, RESOURCES
from loadmanager.pipeline.cost_model.learning import Learned, Verdict, learn
from loadmanager.pipeline.cost_model.rows import RATES, Rows

SMALL = Month(brokers=4, bundles=40, days=12, step_minutes=30, moves_per_day=12.0)
SHORT = replace(SMALL, days=8)


def learned(month: Month) -> tuple[Made, Learned]:
    of = made(month)
    return of, learn(InMemory(with_moves(of)), of.class_of)


def values(
    found: Learned, number: int, resource: int
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    terms = {one.rate: one.term.value for one in found.findings[number, resource].terms}
    return np.array([terms[rate] for rate in RATES])


@pytest.fixture(scope="module")
def usual() -> tuple[Made, Learned]:
    return learned(SMALL)


def test_without_errors_costs_are_found_exactly() -> None:
    exact = replace(SHORT, usage_noise=0.0, rate_noise=0.0, wander=0.0, odd=0.0)
    of, found = learned(exact)
    for resource in range(len(RESOURCES)):
        wanted = of.costs[0, resource]
        typical = wanted @ found.statistics.scale[0]
        off = np.abs(values(found, 0, resource) - wanted) * found.statistics.scale[0]
        assert (off < 1e-3 * typical).all()


def test_terms_that_matter_are_near_the_truth(usual: tuple[Made, Learned]) -> None:
    of, found = usual
    for resource in (CPU, MEMORY, BANDWIDTH_IN):
        wanted = of.costs[0, resource] * found.statistics.scale[0]
        got = values(found, 0, resource) * found.statistics.scale[0]
        matter = wanted > 0.15 * wanted.sum()
        np.testing.assert_allclose(got[matter], wanted[matter], rtol=0.15)


def test_most_intervals_hold_the_truth_and_none_is_negative(usual: tuple[Made, Learned]) -> None:
    of, found = usual
    held = []
    for (number, resource), finding in found.findings.items():
        for one in finding.terms:
            truth = of.costs[number, resource, RATES.index(one.rate)]
            assert 0.0 <= one.term.low <= one.term.value <= one.term.high
            held.append(one.term.low <= truth <= one.term.high)
    assert np.mean(held) > 0.75


def test_backgrounds_are_found_with_their_brokers(usual: tuple[Made, Learned]) -> None:
    of, found = usual
    held = [
        one.low <= of.background[unit, resource] <= one.high
        for (unit, resource), one in found.backgrounds.items()
    ]
    assert len(held) == len(of.class_of) * len(RESOURCES)
    assert np.mean(held) > 0.6


def test_held_out_minutes_are_predicted_better_than_by_shares(usual: tuple[Made, Learned]) -> None:
    _, found = usual
    trial = found.trial
    assert (trial.minutes[0] > 300).all()
    assert (trial.error[0] < 0.05).all()
    assert (trial.error[0] < 0.6 * trial.rule_error[0]).all()
    assert (np.abs(trial.within[0] - 0.9) < 0.05).all()


def test_use_after_moves_is_predicted_better_than_by_shares(usual: tuple[Made, Learned]) -> None:
    _, found = usual
    assert (found.trial.changes[0] > 20).all()
    assert (found.trial.change_error[0] < found.trial.rule_change_error[0]).all()
    assert found.trial.change_error[0, CPU] < 0.1


@pytest.mark.parametrize(
    ("changed", "off"),
    [
        pytest.param({"odd": 0.08}, 0.02, id="outliers"),
        pytest.param({"full": 70.0}, 0.04, id="full minutes"),
        pytest.param({"brokers": 3, "class_factors": (1.0, 0.4)}, 0.06, id="two classes"),
    ],
)
def test_what_is_odd_does_not_shift_costs(changed: dict[str, Any], off: float) -> None:
    of, found = learned(replace(SHORT, **changed))
    for number in range(len(set(of.class_of))):
        scale = found.statistics.scale[number]
        wanted = of.costs[number, CPU] @ scale
        assert values(found, number, CPU) @ scale == pytest.approx(wanted, rel=off)
    if "full" in changed:
        assert 0.2 < found.statistics.full[0, CPU] / found.statistics.measured[0, CPU] < 0.6


def test_minutes_in_which_others_fill_the_host_do_not_raise_costs() -> None:
    of = made(replace(SHORT, full=80.0))
    rows = with_moves(of)
    limit, sent = rows.limit[:, CPU], rows.rates[:, MSGS_IN]
    idle = rows.level & (rows.usage[:, CPU] < 0.7 * limit)
    # They come when more than usual is sent.
    drawn = np.random.default_rng(1).random(len(rows)) < 0.2
    others = idle & (sent > np.median(sent[idle])) & drawn
    usage = rows.usage.copy()
    usage[others, CPU] = limit[others]
    plain, spoilt = (
        values(learn(InMemory(replace(rows, usage=each)), of.class_of), 0, CPU)
        for each in (rows.usage, usage)
    )
    typical = of.costs[0, CPU] @ rows.rates[rows.level].mean(axis=0)
    off = (spoilt - plain) * rows.rates[rows.level].mean(axis=0)
    assert others.sum() > 40
    assert np.abs(off).max() < 0.015 * typical


def test_costs_that_change_halfway_are_told() -> None:
    _, found = learned(replace(SMALL, brokers=6, later_factor=1.4))
    drift = found.findings[0, CPU].drift
    assert drift is not None
    assert drift.sure
    assert drift.fraction == pytest.approx(0.4, abs=0.06)


def test_costs_that_stay_are_not_said_to_drift(usual: tuple[Made, Learned]) -> None:
    _, found = usual
    told = [found.findings[0, resource].drift for resource in range(len(RESOURCES))]
    assert [one.sure for one in told if one is not None] == [False] * len(RESOURCES)


@pytest.fixture(scope="module")
def rows() -> Rows:
    return with_moves(made(SMALL))


@pytest.fixture(scope="module")
def spoilt(rows: Rows) -> Learned:
    """Each message goes to one consumer, topics never change, and two resources tell nothing."""
    rates, usage, limit = rows.rates.copy(), rows.usage.copy(), rows.limit.copy()
    rates[:, 1] = rates[:, 0]
    rates[:, RATES.index("topics")] = np.where(rows.level, 100.0, 0.0)
    usage[:, CPU] = rows.level * 20.0 + rates @ TRUE_COSTS[CPU]
    usage[:, CPU] *= 1.0 + 0.02 * np.random.default_rng(1).standard_normal(len(usage))
    usage[:, MEMORY] = np.nan
    limit[rows.level, BANDWIDTH_IN] = usage[rows.level, BANDWIDTH_IN] / 2.0
    return learn(InMemory(replace(rows, rates=rates, usage=usage, limit=limit)), [0] * 4)


def test_rates_that_go_together_exactly_share_their_cost_and_say_so(spoilt: Learned) -> None:
    one, other = spoilt.findings[0, CPU].terms[:2]
    both = TRUE_COSTS[CPU, 0] + TRUE_COSTS[CPU, 1]
    assert one.verdict is other.verdict is Verdict.ENTANGLED
    assert one.partners == (RATES[1],)
    for term in (one.term, other.term):
        assert term.value == pytest.approx(both / 2, rel=0.1)
        assert term.low == 0.0
        assert term.high > 0.95 * both


def test_what_typical_traffic_costs_is_known_where_its_parts_are_not(spoilt: Learned) -> None:
    together = spoilt.findings[0, CPU].typical_error
    assert together is not None
    assert together < 0.05


def test_a_rate_that_never_varies_within_brokers_is_said_to_be_unknown(spoilt: Learned) -> None:
    term = spoilt.findings[0, CPU].terms[RATES.index("topics")]
    assert term.verdict is Verdict.UNVARIED
    assert term.term.value == term.term.low == 0.0
    assert term.term.high > 0.0


def test_a_resource_that_was_never_measured_has_no_costs(spoilt: Learned) -> None:
    assert spoilt.findings[0, MEMORY].refused == "was never measured"
    assert spoilt.findings[0, MEMORY].terms == ()
    assert spoilt.findings[0, CPU].refused is None
    assert not any(resource == MEMORY for _, resource in spoilt.backgrounds)


def test_minutes_that_are_all_full_are_refused(spoilt: Learned) -> None:
    told = spoilt.findings[0, BANDWIDTH_IN].refused
    assert told == "has 0 minutes below 90 % of the limit; expected 240 or more"


def steady(rows: Rows) -> Rows:
    level = rows.take(rows.level)
    wave = 1.0 + 1e-3 * np.sin(np.arange(len(level)))
    return replace(level, rates=level.rates.mean(axis=0) * wave[:, None])


@pytest.mark.parametrize(
    ("less", "told"),
    [
        (
            lambda rows: rows.take(rows.level).take(slice(0, 200)),
            "has 200 minutes below 90 % of the limit; expected 240 or more",
        ),
        (
            lambda rows: replace(rows, block=rows.block // 4),
            "has 6 stretches of time; expected 20 or more",
        ),
        (steady, "traffic varied by 0.07% of its mean within brokers; expected 1% or more"),
    ],
    ids=["few minutes", "few stretches", "steady traffic"],
)
def test_too_little_to_learn_is_told(rows: Rows, less: Callable[[Rows], Rows], told: str) -> None:
    found = learn(InMemory(less(rows.take(rows.unit < 2))), [0, 0])
    assert found.findings[0, CPU].refused == told


def test_batches_of_any_size_give_the_same(rows: Rows) -> None:
    two = rows.take(rows.unit < 2)
    whole, pieces = (learn(InMemory(two, batch=size), [0, 0]) for size in (1 << 16, 97))
    for place, finding in whole.findings.items():
        for one, other in zip(finding.terms, pieces.findings[place].terms, strict=True):
            assert other.term.value == pytest.approx(one.term.value, rel=1e-6, abs=1e-12)
            assert other.term.high == pytest.approx(one.term.high, rel=1e-4, abs=1e-12)

"""The arithmetic that costs are estimated with."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_model.censoring import hazard, pull
from loadmanager.pipeline.cost_model.regression import NonNegative
from loadmanager.pipeline.cost_model.robust import (
    BINS,
    MOST_PULL,
    NORMAL_MEDIAN,
    Phase,
    censored_weights,
    histogram_bins,
    quantile,
    weights,
)


@pytest.mark.parametrize("phase", Phase)
def test_the_slope_is_that_of_the_pull(phase: Phase) -> None:
    off = np.array([-6.0, -3.0, -1.2, 0.0, 0.4, 2.0, 4.0, 9.0])
    step = 1e-5
    pulls = [weights(phase, off + move)[0] * (off + move) for move in (-step, step)]
    _, slope = weights(phase, off)
    np.testing.assert_allclose(slope, (pulls[1] - pulls[0]) / (2 * step), atol=1e-4)


def test_the_bisquare_leaves_out_what_is_far_off() -> None:
    weight, _ = weights(Phase.BISQUARE, np.array([0.0, 2.0, 5.0, -100.0]))
    assert weight[0] == 1.0
    assert 0.5 < weight[1] < 1.0
    assert weight[2] == weight[3] == 0.0


def test_full_minutes_that_the_fit_denies_pull_by_little_and_in_the_end_not_at_all() -> None:
    force = np.array([0.5, 2.0, 6.0, 1e3])
    for phase in (Phase.SQUARES, Phase.HUBER):
        weight, slope = censored_weights(phase, force)
        np.testing.assert_allclose(weight * force, np.minimum(force, MOST_PULL))
        assert (weight == slope).all()
    weight, slope = censored_weights(Phase.BISQUARE, force)
    assert 0.95 < weight[0] < 1.0
    assert 0.6 < weight[1] < 0.7
    assert (weight[2:] == 0.0).all()
    assert (slope[2:] == 0.0).all()


def test_quantiles_of_counted_errors_are_near_those_of_the_errors() -> None:
    errors = np.abs(np.random.default_rng(3).standard_normal(20_000))
    counts = np.bincount(histogram_bins(errors), minlength=BINS).astype(np.float64)
    assert quantile(counts, 0.5) == pytest.approx(NORMAL_MEDIAN, rel=0.03)
    assert quantile(counts, 0.9) == pytest.approx(1.6449, rel=0.03)


def test_there_is_no_quantile_of_nothing() -> None:
    assert np.isnan(quantile(np.zeros((2, BINS)), 0.5)).all()


def test_errors_of_nothing_and_without_bound_are_counted_at_the_ends() -> None:
    assert histogram_bins(np.array([0.0, 1e300])).tolist() == [0, BINS - 1]


def problem(seed: int, terms: int) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((terms + 3, terms))
    return rows.T @ rows + 1e-3 * np.eye(terms), rng.standard_normal((4, terms))


@given(seed=st.integers(0, 2**32 - 1), terms=st.integers(1, 6))
def test_no_step_that_stays_non_negative_leads_lower(seed: int, terms: int) -> None:
    gram, targets = problem(seed, terms)
    lowest = NonNegative(gram)
    for target in targets:
        point, low = lowest.least(target)
        slope = gram @ point - target
        assert (point >= 0.0).all()
        assert (slope >= -1e-7).all()  # where it is 0, only upwards
        assert abs(slope @ point) < 1e-7  # elsewhere, level
        assert abs(point @ gram @ point / 2 - target @ point - low) < 1e-7


def test_without_need_of_the_bound_it_is_the_solution_of_the_equations() -> None:
    gram = np.array([[2.0, 0.5], [0.5, 1.0]])
    found, _ = NonNegative(gram).least(gram @ [3.0, 4.0])
    np.testing.assert_allclose(found, [3.0, 4.0])


@pytest.mark.parametrize("at", [-30.0, -6.0, -1.0, -1e-9, 0.0, 1e-9, 0.5, 2.0, 6.0])
def test_the_hazard_is_the_density_over_what_lies_above(at: float) -> None:
    density = math.exp(-at * at / 2.0) / math.sqrt(2.0 * math.pi)
    above = math.erfc(at / math.sqrt(2.0)) / 2.0
    assert hazard(np.array([at]))[0] == pytest.approx(density / above, rel=1e-12)


def test_the_hazard_far_above_is_the_distance_itself() -> None:
    assert hazard(np.array([50.0, 1e6])) == pytest.approx([50.01998401, 1e6], rel=1e-9)


def test_a_full_minute_whose_fit_is_far_above_the_threshold_pulls_no_more() -> None:
    slope, curvature = pull(np.array([-8.0]))
    assert slope[0] < 1e-12
    assert curvature[0] < 1e-10


def test_a_full_minute_whose_fit_is_far_below_pulls_as_a_measured_one_would() -> None:
    slope, curvature = pull(np.array([9.0]))
    assert slope[0] == pytest.approx(9.1, rel=0.01)
    assert curvature[0] == pytest.approx(1.0, abs=0.03)


def test_the_curvature_is_the_slope_of_the_pull() -> None:
    step = 1e-4
    for at in (-2.0, -0.5, 0.3, 1.7):
        lower, upper = hazard(np.array([at - step, at + step]))
        _, curvature = pull(np.array([at]))
        assert curvature[0] == pytest.approx((upper - lower) / (2 * step), rel=1e-3)

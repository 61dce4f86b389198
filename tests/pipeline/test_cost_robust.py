import numpy as np
import pytest

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

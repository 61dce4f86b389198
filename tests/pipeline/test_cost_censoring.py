import math

import numpy as np
import pytest

from loadmanager.pipeline.cost_model.censoring import hazard, pull


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

"""When capacity gets short, of loads whose trend is known."""

import numpy as np
import pytest
from numpy.typing import NDArray

from loadmanager.pipeline.reporting.capacity_trend import HORIZON_DAYS, SHORT, trend


def loads(days: float, slope: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return hours and loads of a daily rhythm between 0.2 and 0.4, weekends half, growing."""
    hours = np.arange(round(days * 24), dtype=np.int64)
    rhythm = 0.3 + 0.1 * np.sin(hours / 24 * 2 * np.pi)
    weekend = np.where((hours // 24) % 7 >= 5, 0.5, 1.0)
    return hours, rhythm * weekend + slope * hours / 24


@pytest.mark.parametrize(
    ("days", "slope", "more", "period_h", "left"),
    [
        # The rhythm's highest hours are at 0.4; after 28 days all is 0.14 higher.
        pytest.param(28, 0.005, 0.0, 168, (SHORT - 0.54) / 0.005, id="under the week's rhythm"),
        pytest.param(19, 0.0, 0.0, 168, None, id="a weekend is no falling trend"),
        pytest.param(
            4, 0.01, 0.0, 24, (SHORT - 0.44) / 0.01, id="a few days, by the hour of the day"
        ),
        pytest.param(28, 0.0, 0.5, 168, 0.0, id="full"),
        pytest.param(28, 0.1 / HORIZON_DAYS, 0.0, 168, None, id="beyond the horizon"),
    ],
)
def test_a_trend_is_found_with_the_days_that_are_left(
    days: float, slope: float, more: float, period_h: int, left: float | None
) -> None:
    hours, values = loads(days, slope)
    found = trend(hours, values + more)
    assert found is not None
    assert found.period_h == period_h
    assert found.slope_per_day == pytest.approx(slope, abs=1e-9)
    assert found.slope_low - 1e-9 <= slope <= found.slope_high + 1e-9
    assert found.peak == pytest.approx(0.4 + more + slope * days, abs=0.01)
    assert (found.days_left is None) == (left is None)
    assert (found.days_left or 0.0) == pytest.approx(left or 0.0, abs=2.0)
    if found.days_left:
        assert found.days_left == pytest.approx((SHORT - found.peak) / slope)


def test_the_interval_covers_the_true_slope_as_often_as_it_says() -> None:
    inside = 0
    for seed in range(200):
        hours, values = loads(28, 0.002)
        days = np.repeat(np.random.default_rng(seed).normal(0.0, 0.02, 28), 24)
        found = trend(hours, values + days)
        assert found is not None
        inside += found.slope_low <= 0.002 <= found.slope_high
    # 90 % and a little more or less: weeks take some of the freedom that is counted on.
    assert 150 <= inside <= 196


def test_missing_hours_are_left_out_and_too_few_have_no_trend() -> None:
    hours, values = loads(28, 0.005)
    kept = np.random.default_rng(3).random(len(hours)) > 0.3
    found = trend(hours[kept], values[kept])
    assert found is not None
    assert found.slope_per_day == pytest.approx(0.005, rel=0.02)
    assert trend(*loads(2, 0.01)) is None
    assert trend(np.zeros(0, dtype=np.int64), np.zeros(0)) is None

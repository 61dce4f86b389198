"""When capacity gets short, of loads whose trend is known."""

import numpy as np
import pytest
from numpy.typing import NDArray

from loadmanager.pipeline.reporting.capacity_trend import HORIZON_DAYS, SHORT, trend

Floats = NDArray[np.float64]


def loads(
    days: float, slope: float, *, noise: float = 0.0, seed: int = 1
) -> tuple[NDArray[np.int64], Floats]:
    """Return hours and loads of a daily rhythm between 0.2 and 0.4, weekends half, growing."""
    hours = np.arange(round(days * 24), dtype=np.int64)
    rhythm = 0.3 + 0.1 * np.sin(hours / 24 * 2 * np.pi)
    weekend = np.where((hours // 24) % 7 >= 5, 0.5, 1.0)
    drawn = np.random.default_rng(seed).normal(0.0, noise, len(hours))
    return hours, rhythm * weekend + slope * hours / 24 + drawn


def test_a_trend_is_found_under_the_rhythm_of_the_week() -> None:
    hours, values = loads(28, 0.005)
    found = trend(hours, values)
    assert found is not None
    assert found.period_h == 168
    assert found.slope_per_day == pytest.approx(0.005)
    assert found.slope_low <= 0.005 <= found.slope_high
    # The rhythm's highest hours are at 0.4; after 28 days all is 0.14 higher.
    assert found.peak == pytest.approx(0.4 + 0.14, abs=0.01)
    assert found.days_left == pytest.approx((SHORT - found.peak) / 0.005)


def test_a_weekend_is_not_taken_for_a_falling_trend() -> None:
    hours, values = loads(19, 0.0)  # ends on a Friday evening
    found = trend(hours, values)
    assert found is not None
    assert found.slope_per_day == pytest.approx(0.0, abs=1e-9)
    assert found.days_left is None


def test_the_interval_covers_the_true_slope_as_often_as_it_says() -> None:
    inside = 0
    for seed in range(200):
        hours, values = loads(28, 0.002, seed=seed)
        days = np.repeat(np.random.default_rng(seed).normal(0.0, 0.02, 28), 24)
        found = trend(hours, values + days)
        assert found is not None
        inside += found.slope_low <= 0.002 <= found.slope_high
    # 90 % and a little more or less: weeks take some of the freedom that is counted on.
    assert 150 <= inside <= 196


def test_too_little_history_has_no_trend() -> None:
    assert trend(*loads(2, 0.01)) is None
    assert trend(np.zeros(0, dtype=np.int64), np.zeros(0)) is None


def test_a_few_days_are_compared_by_the_hour_of_the_day() -> None:
    hours, values = loads(4, 0.01)
    found = trend(hours, values)
    assert found is not None
    assert found.period_h == 24
    assert found.slope_per_day == pytest.approx(0.01)


def test_a_full_cluster_has_no_days_left() -> None:
    hours, values = loads(28, 0.0)
    found = trend(hours, values + 0.5)
    assert found is not None
    assert found.days_left == 0.0


def test_what_is_beyond_the_horizon_is_not_told() -> None:
    hours, values = loads(28, 0.1 / HORIZON_DAYS)
    found = trend(hours, values)
    assert found is not None
    assert found.slope_per_day > 0
    assert found.days_left is None


def test_missing_hours_are_left_out() -> None:
    hours, values = loads(28, 0.005)
    kept = np.random.default_rng(3).random(len(hours)) > 0.3
    found = trend(hours[kept], values[kept])
    assert found is not None
    assert found.slope_per_day == pytest.approx(0.005, rel=0.02)

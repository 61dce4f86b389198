"""How long the windows before and after a move are."""

import pytest

from loadmanager.pipeline.move_effects.windows import fitting_window_s


@pytest.mark.parametrize(
    ("interval_s", "measured_s", "window_s"),
    [
        (60.0, 5.0, 300.0),
        (20.0, 20.0, 100.0),
        (2.0, 2.0, 10.0),
        (0.5, 1.0, 10.0),
        (5.0, 60.0, 150.0),
        (900.0, 60.0, 300.0),
        (20.0, None, 100.0),
        (None, None, 300.0),
    ],
)
def test_a_window_has_some_reports_and_is_neither_too_short_nor_too_long(
    interval_s: float | None, measured_s: float | None, window_s: float
) -> None:
    assert fitting_window_s(interval_s, measured_s) == window_s

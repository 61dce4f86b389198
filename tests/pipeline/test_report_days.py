"""Which days of history a report believes in, when a broker's clock jumped."""

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.pipeline.reporting.sources import believed_days


def days(*numbers: int) -> list[date]:
    return [date(2026, 1, 1) + timedelta(days=number) for number in numbers]


def told(several: list[int], alone: list[int]) -> tuple[date, date] | None:
    return believed_days(dict.fromkeys(days(*several), True) | dict.fromkeys(days(*alone), False))


@pytest.mark.parametrize(
    ("several", "alone", "believed"),
    [
        pytest.param([0, 1, 2], [27_000, -20_000], (0, 2), id="one clock far ahead, one behind"),
        pytest.param([5, 6], [1, 2, 3, 4, 7, 8, 10], (1, 10), id="before others and after them"),
        pytest.param([0, 60], [30], (0, 60), id="weeks of silence"),
        pytest.param([], [0, 27_000], None, id="the only broker"),
        pytest.param([], [], None, id="nothing"),
    ],
)
def test_days_are_believed_by_who_tells_of_them(
    several: list[int], alone: list[int], believed: tuple[int, int] | None
) -> None:
    assert told(several, alone) == (believed and tuple(days(*believed)))


@given(st.lists(st.integers(0, 1000), min_size=1, unique=True))
def test_where_several_tell_of_each_day_all_are_believed(numbers: list[int]) -> None:
    assert told(numbers, []) == tuple(days(min(numbers), max(numbers)))

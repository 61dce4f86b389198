"""Which days of history a report believes in, when a broker's clock jumped."""

from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from loadmanager.pipeline.reporting.sources import believed_days

FIRST = date(2026, 1, 1)


def days(*numbers: int) -> list[date]:
    return [FIRST + timedelta(days=number) for number in numbers]


def told(several: list[int], alone: list[int]) -> tuple[date, date] | None:
    return believed_days(dict.fromkeys(days(*several), True) | dict.fromkeys(days(*alone), False))


def test_a_day_far_ahead_or_long_ago_that_one_clock_tells_of_is_not_believed() -> None:
    assert told([0, 1, 2], [27_000, -20_000]) == tuple(days(0, 2))


def test_what_one_broker_told_before_others_joined_and_after_they_left_is_believed() -> None:
    assert told([5, 6], [1, 2, 3, 4, 7, 8, 10]) == tuple(days(1, 10))


def test_silence_of_all_brokers_for_weeks_hides_nothing_that_several_told() -> None:
    assert told([0, 60], [30]) == tuple(days(0, 60))


def test_the_only_broker_is_believed_whatever_it_tells() -> None:
    assert told([], [0, 27_000]) is None
    assert told([], []) is None


@given(st.lists(st.integers(0, 1000), min_size=1, unique=True))
def test_where_several_tell_of_each_day_all_are_believed(numbers: list[int]) -> None:
    assert told(numbers, []) == tuple(days(min(numbers), max(numbers)))

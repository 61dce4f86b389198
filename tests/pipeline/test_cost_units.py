"""How the history of all brokers is divided."""

from loadmanager.pipeline.cost_model.units import Unit, Units

DAY = 1440
START = 29_000_000


def unit(number: int, *, first: int = START, last: int = START + 10 * DAY - 1) -> Unit:
    return Unit("c", "plain", f"b{number}:8080", 10 * DAY, first, last)


def test_the_middle_is_that_of_the_time_in_which_all_reported() -> None:
    assert Units.of([unit(1), unit(2)]).middle_minute == START + 5 * DAY


def test_a_clock_that_was_years_ahead_once_moves_neither_middle_nor_end() -> None:
    found = Units.of([unit(1), unit(2), unit(3, last=START + 27_000 * DAY)])
    assert found.middle_minute == START + 5 * DAY
    assert found.end_minute("c") == START + 10 * DAY


def test_the_end_is_that_of_who_reported_last_if_others_fell_silent_the_day_before() -> None:
    found = Units.of([unit(1), unit(2, last=START + 10 * DAY + 600)])
    assert found.end_minute("c") == START + 10 * DAY + 601


def test_a_cluster_without_brokers_ends_at_0() -> None:
    assert Units.of([unit(1)]).end_minute("another") == 0

"""How the history of all brokers is divided."""

from loadmanager.pipeline.cost_model.units import Unit, Units

DAY = 1440
START = 29_000_000


def unit(number: int, *, first: int = START, last: int = START + 10 * DAY - 1) -> Unit:
    return Unit("c", "plain", f"b{number}:8080", 10 * DAY, first, last)


def test_the_middle_is_that_of_the_time_in_which_all_reported() -> None:
    assert Units.of([unit(1), unit(2)]).middle_minute == START + 5 * DAY


def test_a_clock_that_was_years_ahead_once_does_not_move_the_middle() -> None:
    found = Units.of([unit(1), unit(2), unit(3, last=START + 27_000 * DAY)])
    assert found.middle_minute == START + 5 * DAY

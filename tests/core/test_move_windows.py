import pytest

from loadmanager.core.move_windows import InvalidWindow, parse_window

MONDAY, TUESDAY, FRIDAY, SATURDAY, SUNDAY = 0, 1, 4, 5, 6


def at(hours: int, minutes: int = 0) -> int:
    return hours * 60 + minutes


@pytest.mark.parametrize(
    ("text", "day", "minute", "open_then"),
    [
        ("Mon-Fri 02:00-05:00", MONDAY, at(2), True),
        ("Mon-Fri 02:00-05:00", FRIDAY, at(4, 59), True),
        ("Mon-Fri 02:00-05:00", FRIDAY, at(5), False),
        ("Mon-Fri 02:00-05:00", MONDAY, at(1, 59), False),
        ("Mon-Fri 02:00-05:00", SATURDAY, at(3), False),
        ("sat 00:00-24:00", SATURDAY, at(23, 59), True),
        ("sat 00:00-24:00", SUNDAY, at(0), False),
        ("Sat-Mon  10:00-11:00", SUNDAY, at(10), True),
        ("Sat-Mon 10:00-11:00", TUESDAY, at(10), False),
        ("22:00-04:30", MONDAY, at(23), True),
        ("22:00-04:30", MONDAY, at(4, 29), True),
        ("22:00-04:30", MONDAY, at(12), False),
        ("Fri 22:00-04:30", SATURDAY, at(4), True),
        ("Fri 22:00-04:30", FRIDAY, at(4), False),
        ("Sun 22:00-04:30", MONDAY, at(4), True),
        ("06:00-06:00", SUNDAY, at(5, 59), True),
    ],
)
def test_a_window_is_open_from_its_begin_to_before_its_end(
    text: str, day: int, minute: int, open_then: bool
) -> None:
    assert parse_window(text).holds(day, minute) is open_then


@pytest.mark.parametrize(
    "text",
    ["", "Mon", "02:00", "Mon-Fri", "24:00-05:00", "02:00-24:01", "02:60-03:00", "Lun 02:00-03:00"],
)
def test_what_is_no_time_of_the_week_is_refused(text: str) -> None:
    with pytest.raises(InvalidWindow, match="expected a time such as 'Mon-Fri 02:00-05:00'"):
        parse_window(text)

from typing import Any

import pytest

from loadmanager.core.ids import BundleId, Namespace
from loadmanager.core.move_limits import Begun, InvalidWindow, MoveBudget, MoveLimits, parse_window


def bundle(number: int, namespace: str = "t/n") -> BundleId:
    return BundleId(f"{namespace}/0x{number:08x}_0x{number + 1:08x}")


def spent(limits: MoveLimits, begins_s: list[float], namespace: str = "t/n") -> MoveBudget:
    budget = MoveBudget(limits)
    for number, at_s in enumerate(begins_s):
        budget.begin(bundle(number, namespace), at_s)
        budget.end(bundle(number, namespace), at_s)
    return budget


@pytest.mark.parametrize(
    ("limits", "begins_s", "one", "at_s", "said"),
    [
        ({"per_minute": 2}, [0.0, 30.0], "a/b", 59.9, "2 moves a minute"),
        ({"per_minute": 2}, [0.0, 30.0], "a/b", 60.0, ""),
        ({"per_hour": 2}, [0.0, 1800.0], "a/b", 3599.0, "2 moves an hour"),
        ({"per_hour": 2}, [0.0, 1800.0], "a/b", 3600.0, ""),
        ({"per_namespace": 2}, [0.0, 1.0], "a/b", 2.0, "2 moves a minute of a/b"),
        ({"per_namespace": 2}, [0.0, 1.0], "a/c", 2.0, ""),
        ({"per_namespace": 2}, [0.0, 1.0], "a/b", 60.5, ""),
    ],
)
def test_no_more_than_so_many_moves_begin_within(
    limits: dict[str, Any], begins_s: list[float], one: str, at_s: float, said: str
) -> None:
    budget = spent(MoveLimits(**limits), begins_s, "a/b")
    assert budget.exhausted(bundle(9, one), at_s) == said


@pytest.mark.parametrize(("count", "half"), [(2, False), (3, True)])
def test_bundles_without_traffic_leave_half_of_the_moves(count: int, *, half: bool) -> None:
    budget = spent(MoveLimits(per_hour=5), [0.0] * count)
    assert budget.half_used(100.0) is half
    assert not budget.half_used(3700.0)


@pytest.mark.parametrize(
    ("per_hour", "count", "usual", "urgent"),
    [
        (7, 6, "", ""),
        (7, 7, "7 moves an hour", "7 moves an hour"),
        (8, 5, "", ""),
        (8, 6, "6 of 8 moves an hour: 2 are kept for lost and draining brokers", ""),
        (8, 8, "8 moves an hour", "8 moves an hour"),
    ],
)
def test_a_quarter_is_kept_for_urgency(per_hour: int, count: int, usual: str, urgent: str) -> None:
    budget = spent(MoveLimits(per_hour=per_hour), [0.0] * count)
    assert budget.exhausted(bundle(9), 100.0) == usual
    assert budget.exhausted(bundle(9), 100.0, urgent=True) == urgent


def test_unloads_count_and_not_moves() -> None:
    budget = MoveBudget(MoveLimits(per_minute=3))
    for number in (1, 2, 3):
        budget.begin(bundle(number), 0.0)
    assert budget.used_up(1.0) == "3 moves a minute"
    budget.end(bundle(1), 1.0, unsent=True)
    assert budget.used_up(1.0) == ""
    budget.again(bundle(2), 1.0)
    assert budget.used_up(1.0) == "3 moves a minute"
    budget.resume((), 1.0)
    budget.end(bundle(3), 2.0, unsent=True)
    assert budget.begun(2.0) == ()


def test_a_decision_needs_a_sample_begun_after_the_last_move() -> None:
    budget = MoveBudget(MoveLimits())
    assert budget.may_decide_on(0.0)
    budget.begin(bundle(1), 10.0)
    assert not budget.may_decide_on(11.0)
    budget.end(bundle(1), 12.0)
    assert not budget.may_decide_on(11.0)
    assert budget.may_decide_on(12.0)


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        ([], ""),
        (["Mon 02:00-03:00"], ""),
        (["Tue 02:00-03:00", "02:30-02:40"], ""),
        (["Tue 02:00-03:00"], "outside Tue 02:00-03:00"),
        (["Tue 02:00-03:00", "04:00-05:00"], "outside Tue 02:00-03:00 and 04:00-05:00"),
    ],
)
def test_moves_begin_within_a_window_only(windows: list[str], said: str) -> None:
    limits = MoveLimits(windows=tuple(map(parse_window, windows)))
    assert limits.closed(0, 150) == said


def test_another_budget_goes_on_with_the_moves_of_the_last_hour() -> None:
    limits = MoveLimits(per_minute=3, per_hour=6, per_namespace=2)
    begun = spent(limits, [0.0, 3000.5, 3001.0, 3590.2, 3590.8]).begun(3610.0)
    # Of the last minute each second and namespace counts, before that ten seconds together.
    assert begun == (Begun(600.0, Namespace(""), 2), Begun(19.0, Namespace("t/n"), 2))
    budget = MoveBudget(limits)
    budget.resume(begun, 100.0)
    assert budget.exhausted(bundle(9), 100.0) == "2 moves a minute of t/n"
    assert budget.exhausted(bundle(9, "a/b"), 100.0) == ""
    budget.begin(bundle(9, "a/b"), 100.0)
    assert budget.exhausted(bundle(9, "a/c"), 100.0) == "3 moves a minute"
    # What went on is forgotten in its turn: after a minute, and after an hour.
    assert budget.exhausted(bundle(9), 141.5) == ""
    assert [one.count for one in budget.begun(3099.0)] == [2, 2, 1]
    assert [one.count for one in budget.begun(3200.0)] == [2, 1]


def test_moves_that_are_planned_count_as_begun() -> None:
    begun = MoveBudget(MoveLimits()).begun(50.0, [bundle(1), bundle(2), bundle(1, "a/b")])
    assert begun == (Begun(0.0, Namespace("t/n"), 2), Begun(0.0, Namespace("a/b"), 1))


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
def test_a_window_is_open_until_its_end(text: str, day: int, minute: int, open_then: bool) -> None:
    assert parse_window(text).holds(day, minute) is open_then


@pytest.mark.parametrize(
    "text",
    ["", "Mon", "02:00", "Mon-Fri", "24:00-05:00", "02:00-24:01", "02:60-03:00", "Lun 02:00-03:00"],
)
def test_what_is_no_time_of_the_week_is_refused(text: str) -> None:
    with pytest.raises(InvalidWindow, match="expected a time such as 'Mon-Fri 02:00-05:00'"):
        parse_window(text)

"""When something is told of minutes that are over, and that it is told once."""

import json

from loadmanager.core.bounds import MINUTE_MS
from loadmanager.pipeline.streaming.alerts import (
    BEGAN,
    ENDED,
    IMBALANCE,
    SATURATED,
    SILENT,
    Alert,
    Limits,
    Minute,
    Watch,
    watched,
)

LIMITS = Limits(minutes=3, silent_minutes=5)


def above(*minutes: int, kind: str = IMBALANCE, subject: str = "") -> list[Minute]:
    return [
        Minute(at_ms=one * MINUTE_MS, cluster="c", kind=kind, subject=subject, value=float(one))
        for one in minutes
    ]


def present(*minutes: int) -> list[tuple[str, int]]:
    return [("c", one * MINUTE_MS) for one in minutes]


def brief(alerts: list[Alert]) -> list[tuple[str, str, str, int, int, int]]:
    """Return kind, event, subject, first minute, how many, and when it was known."""
    return [
        (
            one.kind,
            one.event,
            one.subject,
            one.since_ms // MINUTE_MS,
            one.minutes,
            one.at_ms // MINUTE_MS,
        )
        for one in alerts
    ]


def test_so_many_minutes_in_a_row_begin_an_alert_and_the_first_below_ends_it() -> None:
    watch, alerts = watched(Watch(), above(1, 2, 3, 4), present(0, 1, 2, 3, 4, 5, 6), LIMITS)
    assert brief(alerts) == [(IMBALANCE, BEGAN, "", 1, 3, 4), (IMBALANCE, ENDED, "", 1, 4, 5)]
    assert [one.value for one in alerts] == [3.0, 4.0]
    assert watch.runs == ()


def test_fewer_minutes_say_nothing() -> None:
    _, alerts = watched(Watch(), above(1, 2, 4, 5), present(0, 1, 2, 3, 4, 5, 6), LIMITS)
    assert alerts == []


def test_a_run_goes_on_in_the_next_batch_and_is_told_once() -> None:
    watch, first = watched(Watch(), above(1, 2), present(1, 2), LIMITS)
    watch = Watch.from_json(json.loads(json.dumps(watch.to_json())))
    watch, second = watched(watch, above(3, 4), present(3, 4), LIMITS)
    _, third = watched(watch, above(5), present(5, 6), LIMITS)
    assert first == []
    assert brief(second) == [(IMBALANCE, BEGAN, "", 1, 3, 4)]
    assert brief(third) == [(IMBALANCE, ENDED, "", 1, 5, 6)]


def test_a_minute_without_reports_breaks_a_run() -> None:
    watch, alerts = watched(Watch(), above(1, 2, 4), present(1, 2, 4), LIMITS)
    assert alerts == []
    assert [(run.since_ms // MINUTE_MS, run.minutes) for run in watch.runs] == [(4, 1)]


def test_each_broker_is_watched_by_itself() -> None:
    minutes = above(1, 2, 3, kind=SATURATED, subject="a:1")
    minutes += above(2, 3, kind=SATURATED, subject="b:1")
    _, alerts = watched(Watch(), minutes, present(1, 2, 3), LIMITS)
    assert brief(alerts) == [(SATURATED, BEGAN, "a:1", 1, 3, 4)]
    assert alerts[0].text() == "c a:1: saturated began: 3 minutes, at most 3.00"


def test_silence_is_told_when_reports_come_again() -> None:
    watch, _ = watched(Watch(), [], present(1, 2), LIMITS)
    _, soon = watched(watch, [], present(7), LIMITS)
    _, late = watched(watch, [], present(8), LIMITS)
    assert soon == []
    assert brief(late) == [(SILENT, ENDED, "", 3, 5, 8)]


def test_the_same_batch_again_tells_the_same() -> None:
    watch, _ = watched(Watch(), above(1, 2), present(1, 2), LIMITS)
    once = watched(watch, above(3), present(3), LIMITS)
    again = watched(watch, above(3), present(3), LIMITS)
    assert once == again

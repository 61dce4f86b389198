from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadmanager.core.bounds import HOUR_MS, TIME_MS
from loadmanager.core.fields import Fields
from loadmanager.core.rates import six_digits


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancePoint:
    """The distance of a cluster from the best possible balance at one time.

    ``largest`` is the largest usage of any broker, ``bound`` a lower bound of it over all
    assignments that the policies allow, and ``gap`` is ``(largest - bound) / bound``.
    """

    at_ms: int
    gap: float
    largest: float
    bound: float


def last_hour(
    points: Sequence[BalancePoint], now_ms: int, most_points: int
) -> tuple[BalancePoint, ...]:
    """Return the points of the last hour, thinned out evenly; the newest is always included."""
    recent = [one for one in points if now_ms - HOUR_MS <= one.at_ms <= now_ms]
    step = max(1, -(-len(recent) // most_points))
    return tuple(recent[::-1][::step][::-1])


def course_to_json(points: Sequence[BalancePoint]) -> dict[str, Any]:
    return {
        "atMs": [one.at_ms for one in points],
        "gap": [six_digits(one.gap) for one in points],
        "largest": [six_digits(one.largest) for one in points],
        "bound": [six_digits(one.bound) for one in points],
    }


def course_from_fields(course: Fields) -> tuple[BalancePoint, ...]:
    """Return no points for an object without fields. Raises `MalformedContent`."""
    if not course.names():
        return ()
    at_ms = course.counts("atMs", bound=TIME_MS)
    gap, largest, bound = (course.rates(name, len(at_ms)) for name in ("gap", "largest", "bound"))
    return tuple(
        BalancePoint(at_ms=at_ms[row], gap=gap[row], largest=largest[row], bound=bound[row])
        for row in range(len(at_ms))
    )

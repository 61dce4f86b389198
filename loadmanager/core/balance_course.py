"""How the balance of a cluster went over the last hour: kept by leaders, shown by the live page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadmanager.core.bounds import TIME_MS
from loadmanager.core.fields import Fields
from loadmanager.core.rates import six_digits

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancePoint:
    """How far a cluster was from the best possible at one time.

    ``largest`` is the largest use of any broker, ``bound`` what no assignment that policies
    allow could be below, ``gap`` how far the first is above the second, over the second.
    """

    at_ms: int
    gap: float
    largest: float
    bound: float


def last_hour(
    points: Sequence[BalancePoint], now_ms: int, most_points: int
) -> tuple[BalancePoint, ...]:
    """Return the points of the last hour, evenly thinned out, the newest among them."""
    recent = [one for one in points if now_ms - HOUR_MS <= one.at_ms <= now_ms]
    step = max(1, -(-len(recent) // most_points))
    return tuple(recent[::-1][::step][::-1])


def course_to_json(points: Sequence[BalancePoint]) -> dict[str, Any]:
    """Return points as they are stored: a list of each figure."""
    return {
        "atMs": [one.at_ms for one in points],
        "gap": [six_digits(one.gap) for one in points],
        "largest": [six_digits(one.largest) for one in points],
        "bound": [six_digits(one.bound) for one in points],
    }


def course_from_fields(course: Fields) -> tuple[BalancePoint, ...]:
    """Return the points that `course_to_json` stored; an object without fields has none.

    Raises:
        MalformedContent: it is of another form.
    """
    if not course.names():
        return ()
    at_ms = course.counts("atMs", bound=TIME_MS)
    gap, largest, bound = (course.rates(name, len(at_ms)) for name in ("gap", "largest", "bound"))
    return tuple(
        BalancePoint(at_ms=at_ms[row], gap=gap[row], largest=largest[row], bound=bound[row])
        for row in range(len(at_ms))
    )

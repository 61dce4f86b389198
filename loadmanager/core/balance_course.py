"""How the balance of a cluster went over the last hour: kept by leaders, shown by the live page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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

"""The physical bounds of every figure read from outside, each declared once.

A figure is checked where it is read. Inside, sums and products of figures within their
bounds overflow nothing: a cluster has fewer than 2^20 bundles, so that a sum of counts
stays below 2^60 and a sum of rates below 1e22.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Bound:
    """The inclusive minimum and maximum of a figure, and its description.

    ``whole`` figures are whole numbers; others may have a fraction. ``expected`` describes the
    accepted values in error messages.
    """

    least: int | float
    most: int | float
    expected: str
    whole: bool = False

    def holds(self, value: object) -> bool:
        if type(value) is int:
            # Arrow and Java store whole numbers in 64 bits, even where the figure may have a
            # fraction.
            return self.least <= value <= min(self.most, MOST_INT64)
        return type(value) is float and not self.whole and self.least <= value <= self.most

    def surely_hold(self, values: list[Any]) -> bool:
        """Return whether all values are certain to be within the bound.

        One check of all values takes a fraction of the time of `holds` for each of them. If it
        returns False, check each value with `holds`.
        """
        kinds = set(map(type, values))
        if not kinds <= ({int} if self.whole else {int, float}):
            return False
        most = min(self.most, MOST_INT64) if int in kinds else self.most
        if not values:
            return True
        least = min(values)
        if len(kinds) == 1 and least >= max(self.least, 0) and sum(values) <= most:
            return True  # No item exceeds a sum of non-negative items.
        # The sum is NaN if any item is.
        return bool(least >= self.least and max(values) <= most and isfinite(sum(values)))


def _whole(least: int, most: int, shown: str) -> Bound:
    return Bound(least, most, f"a whole number from {least} to {shown}", whole=True)


def _number(least: float, most: float, unit: str) -> Bound:
    return Bound(least, most, f"{unit} from {least:g} to {most:g}")


MOST_COUNT: Final = 2**40
MOST_INT64: Final = 2**63 - 1

TIMES_END_MS: Final = 4_102_444_800_000
"""The beginning of the year 2100 in UTC: later times are treated as a clock fault."""

COUNT: Final = _whole(0, MOST_COUNT, "2^40")
"""Counts of topics, producers, consumers, samples or rounds of one bundle, broker or process."""

TOTAL_COUNT: Final = _whole(0, 2**60, "2^60")
"""The sum of a count over bundles."""

SIZE_BYTES: Final = _whole(0, 2**50, "2^50")
"""A size in the memory of a broker: up to a pebibyte."""

EPOCH: Final = _whole(0, MOST_INT64, "2^63 - 1")
"""Epochs, fencing tokens and other 63-bit counters of ZooKeeper."""

PORT: Final = _whole(1, 65_535, "65535")
PROCESS_ID: Final = _whole(1, 2**31 - 1, "2^31 - 1")
PARTITIONS: Final = _whole(0, 2**20, "2^20")
HASH: Final = _whole(0, 2**32, "2^32")
"""A position in the hash range of topics."""

TIME_MS: Final = Bound(
    0,
    TIMES_END_MS - 1,
    "milliseconds since 1970, a whole number before the year 2100",
    whole=True,
)
"""A time on a wall clock."""

TIME_S: Final = _number(-TIMES_END_MS / 1000.0, TIMES_END_MS / 1000.0, "seconds")
"""A time on a clock with an arbitrary origin that successive leaders share."""

DURATION_S: Final = _number(0.0, TIMES_END_MS / 1000.0, "seconds")
"""A duration or an age."""

WINDOW_S: Final = _number(0.001, 86_400.0, "seconds")
"""The window over which rates are averaged."""

CLOCK_S: Final = _number(0.0, 1e12, "seconds")
"""A time on a broker's own monotonic clock."""

RATE: Final = _number(0.0, 1e15, "a finite number")
"""Messages or bytes per second of one bundle or topic."""

TOTAL: Final = _number(0.0, 1e24, "a finite number")
"""A sum of rates over bundles, or any other amount computed from bounded figures."""

USAGE: Final = _number(0.0, 1e15, "a finite number")
"""Usage of a resource: percent of one core, MiB, or kbit/s."""

AMOUNT: Final = _number(-1e15, 1e15, "a finite number")
"""Usage of a resource whose limit is unknown: nothing is computed from it."""

LIMIT: Final = _number(0.001, 1e15, "a finite number, 0 or less if it is unknown, else")
"""Capacity of a resource, if known, in the unit of its usage."""

VARIANCE: Final = _number(0.0, TOTAL.most, "a finite number")
"""Variance of usage: its mean squared deviation."""


MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

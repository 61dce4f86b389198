"""For how long each report stands, minute by minute: what all means over time are weighted by.

A report's rates are means over a few seconds before it, and it was published because
something had changed or its predecessor grew old: so it stands for the time since the
report before. What a broker did that was silent for long is not known: a report
stands for `CAP_S` before it at most, and the rest of the silence belongs to nothing.

How long that is was measured on a monotonic clock, where it lies on the wall clock: a
clock that jumps forward leaves a gap, and one that is set back makes two reports stand for
the same minutes, of which the mean is taken.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.bounds import MINUTE_MS

CAP_S: Final = 300.0
"""Five times the interval of reports of an agent with nothing new to report."""

UNKNOWN_S: Final = 1.0
"""What a report stands for of which neither the interval nor the window is known."""

MINUTE_S: Final = 60.0

_SHORTEST_MS: Final = 1


def stands_s() -> Column:
    """Return for how many seconds before it a report (``interval_s, window_s``) stands."""
    return F.least(F.coalesce("interval_s", "window_s", F.lit(UNKNOWN_S)), F.lit(CAP_S))


def by_minute(reports: DataFrame, kept: Sequence[str]) -> DataFrame:
    """Return one row for each minute that a report stands for any part of.

    In: ``at_ms bigint, interval_s double, window_s double`` and the columns ``kept``.
    Out: the columns ``kept``, ``minute_ms bigint`` (its beginning) and ``seconds double``, the part
    of the minute. The seconds of all rows of a report are what it stands for.
    """
    stands_ms = F.greatest(F.floor(stands_s() * 1000 + 0.5), F.lit(_SHORTEST_MS))
    end = F.col("at_ms")
    begin = F.greatest(end - stands_ms, F.lit(0))
    spans = reports.where(end > 0).select(*kept, begin.alias("_begin"), end.alias("_end"))
    rows = spans.select("*", F.explode(_minutes(F.col("_begin"), F.col("_end"))).alias("minute_ms"))
    return rows.select(*kept, "minute_ms", (_overlap_ms() / 1000.0).alias("seconds"))


def _minutes(begin: Column, end: Column) -> Column:
    first, last = _minute_of(begin), _minute_of(end - 1)
    # Most reports stand for a part of one minute, and a sequence costs as much as a sum.
    several = F.sequence(first, last, F.lit(MINUTE_MS).cast("bigint"))
    return F.when(first == last, F.array(first)).otherwise(several)


def _minute_of(at_ms: Column) -> Column:
    return at_ms - at_ms % MINUTE_MS


def _overlap_ms() -> Column:
    minute = F.col("minute_ms")
    return F.least("_end", minute + MINUTE_MS) - F.greatest("_begin", minute)

"""The time that each report covers, by minutes: the weight of all means over time.

The rates of a report are means over a few seconds before it, and it was published because values
had changed or its predecessor was old: so it covers the time since the previous report. After a
long silence it covers at most `CAP_S` before it, and the rest is not covered by any report.

Durations are measured on a monotonic clock, times on the wall clock: a clock that jumps forward
leaves a gap, and after one that was set back two reports cover the same minutes, with their mean.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.bounds import MINUTE_MS

CAP_S: Final = 300.0
"""Five times the longest interval between reports by default."""

UNKNOWN_S: Final = 1.0
"""The time that a report covers if neither its interval nor its window is known."""

MINUTE_S: Final = 60.0

_SHORTEST_MS: Final = 1


def covered_s() -> Column:
    """Return the seconds before a report (``interval_s, window_s``) that it covers."""
    return F.least(F.coalesce("interval_s", "window_s", F.lit(UNKNOWN_S)), F.lit(CAP_S))


def by_minute(reports: DataFrame, kept: Sequence[str]) -> DataFrame:
    """Return one row for each minute that a report covers any part of.

    In: ``at_ms bigint, interval_s double, window_s double`` and the columns ``kept``.
    Out: the columns ``kept``, ``minute_ms bigint`` (its beginning) and ``seconds double``, the
    covered part of the minute. The seconds of the rows of a report add up to its covered time.
    """
    covered_ms = F.greatest(F.floor(covered_s() * 1000 + 0.5), F.lit(_SHORTEST_MS))
    end = F.col("at_ms")
    begin = F.greatest(end - covered_ms, F.lit(0))
    spans = reports.where(end > 0).select(*kept, begin.alias("_begin"), end.alias("_end"))
    rows = spans.select("*", F.explode(_minutes(F.col("_begin"), F.col("_end"))).alias("minute_ms"))
    return rows.select(*kept, "minute_ms", (_overlap_ms() / 1000.0).alias("seconds"))


def _minutes(begin: Column, end: Column) -> Column:
    first, last = _minute_of(begin), _minute_of(end - 1)
    # Most reports cover a part of one minute, and a sequence takes as long as a sum.
    several = F.sequence(first, last, F.lit(MINUTE_MS).cast("bigint"))
    return F.when(first == last, F.array(first)).otherwise(several)


def _minute_of(at_ms: Column) -> Column:
    return at_ms - at_ms % MINUTE_MS


def _overlap_ms() -> Column:
    minute = F.col("minute_ms")
    return F.least("_end", minute + MINUTE_MS) - F.greatest("_begin", minute)

"""Column expressions and operations on frames that several jobs share."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

_EXACT: Final = timedelta()


def between(
    frame: DataFrame,
    since: datetime | None,
    until: datetime | None,
    *,
    time: str | None = "at",
    margin: timedelta = _EXACT,
) -> DataFrame:
    """Return the rows whose column ``time`` is at or after ``since`` and before ``until``.

    ``margin`` extends the range at both ends. None means no bound. A table without a time column
    is selected by days. A filter on ``date`` lets Spark skip whole partitions.
    """
    dated = "date" in frame.columns
    if since is not None:
        first = since - margin
        frame = frame.where(F.col("date") >= first.date()) if dated else frame
        frame = frame.where(F.col(time) >= first) if time else frame
    if until is not None:
        end = until + margin
        frame = frame.where(F.col("date") <= end.date()) if dated else frame
        frame = frame.where(F.col(time) < end) if time else frame
    return frame


def weighted_mean(value: Column, weight: Column) -> Column:
    """Return an aggregate: the mean of ``value`` by ``weight``, over the rows that have one."""
    known = F.when(value.isNotNull(), weight)
    return F.try_divide(F.sum(value * weight), F.sum(known))


def union(frames: Iterable[DataFrame], *, missing_columns: bool = False) -> DataFrame:
    """Return the rows of all frames; with ``missing_columns`` a column may be missing, as null."""
    return reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=missing_columns), frames
    )

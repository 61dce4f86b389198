"""The rows of the asked-for time, of any table."""

from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import DataFrame
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
    """Return the rows whose column ``time`` is not before ``since``, and before ``until``.

    ``margin`` is what may be needed of before and after. None is no bound, and a table
    without a time has only days. By its ``date``, where it has one, whole folders are left out.
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

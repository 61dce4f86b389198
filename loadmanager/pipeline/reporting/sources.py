"""The input of the report: the tables of one cluster in the requested time range."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.expressions import between
from loadmanager.pipeline.store import Store

Row = dict[str, Any]

INGEST: Final = "ingest"

_TIMES: Final = ("minute", "hour", "at")
"""The possible names of the time column; tables by day only have a date."""

_GAP: Final = timedelta(days=2)
"""The largest gap between days that are believed together."""


@dataclass(frozen=True)
class Tables:
    store: Store
    cluster: str
    since: datetime | None = None
    until: datetime | None = None

    def made(self, job: str) -> bool:
        if job == INGEST:
            return bool(self.store.batches())
        return self.store.facts(job) is not None

    def table(self, name: str) -> DataFrame:
        """Return the rows of a table of the cluster, in the time range if the table has days.

        Raises:
            PipelineError: the job that makes it never ran.
        """
        frame = self.store.table(name)
        if "cluster" in frame.columns:
            frame = frame.where(F.col("cluster") == self.cluster)
        time = next((name for name in _TIMES if name in frame.columns), None)
        return between(frame, self.since, self.until, time=time)

    @cached_property
    def facts(self) -> Row:
        return dict(self.store.facts("moves") or {})


def rows(frame: DataFrame) -> list[Row]:
    """Return all rows as dictionaries, also nested rows; only for few rows."""
    return [row.asDict(recursive=True) for row in frame.collect()]


def one_row(frame: DataFrame) -> Row:
    return rows(frame)[0]


def bounds_ms(frame: DataFrame, time: str) -> tuple[int, int] | None:
    """Return the first and the last time in a column; None without rows."""
    at_ms = F.unix_millis(time)
    found = one_row(frame.agg(F.min(at_ms).alias("first"), F.max(at_ms).alias("last")))
    return None if found["first"] is None else (found["first"], found["last"])


def sound(frame: DataFrame) -> DataFrame:
    """Return the rows without days that are due to the wrong clock of one broker.

    In: ``date``, and ``brokers`` (how many) or ``broker``. One report of the year 2099 would
    compress everything else into one interval of a chart.
    """
    several = (
        F.max("brokers") > 1 if "brokers" in frame.columns else F.min("broker") < F.max("broker")
    )
    found = frame.groupBy("date").agg(several.alias("several"))
    days = believed_days({row["date"]: bool(row["several"]) for row in rows(found)})
    return frame if days is None else frame.where(F.col("date").between(*days))


def believed_days(several: Mapping[date, bool]) -> tuple[date, date] | None:
    """Return the first and the last believed day; None if all are believed.

    ``several`` is whether more than one broker reported on a day. Such days are believed, and days
    that continue them without a gap. With a single broker there is no other clock to compare.
    """
    certain = [day for day, sure in several.items() if sure]
    if not certain:
        return None
    first, last = min(certain), max(certain)
    for day in sorted(several):
        last = day if last < day <= last + _GAP else last
    for day in sorted(several, reverse=True):
        first = day if first > day >= first - _GAP else first
    return first, last


def step_ms(first_ms: int, last_ms: int, finest_ms: int, points: int) -> int:
    """Return the length of intervals, a multiple of ``finest_ms``, for at most ``points``."""
    return finest_ms * max(1, -(-(last_ms - first_ms + finest_ms) // (finest_ms * points)))


def interval(time: str, length_ms: int) -> Column:
    """Return the beginning of the interval of a time, in milliseconds."""
    return F.floor(F.unix_millis(time) / length_ms) * length_ms


def clusters(stores: Iterable[DataFrame]) -> list[str]:
    names = {row["cluster"] for one in stores for row in rows(one.select("cluster").distinct())}
    return sorted(names)

"""The days that a rollup recomputes: those that new batches affect.

Tables by minute, hour and day are partitioned by date. The rows of a day depend on the reports of
that day and of the first minutes of the next. Other days are copied from the former version.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.bounds import MINUTE_MS, TIMES_END_MS
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.store import DATES_END, Store
from loadmanager.pipeline.tables import DUPLICATES

FORMAT: Final = 2
"""Incremented when tables of an older version cannot be continued."""

READ: Final = ("broker_load", "bundle_load", "rounds", "ticks", "bundle_averages")
_DAY: Final = timedelta(days=1)
_MOST_DAYS: Final = 1000
"""Selecting more days than this is slower than computing all."""

_DATE: Final = re.compile(r"date=(\d{4}-\d{2}-\d{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The days to compute; ``days`` None means all from ``since`` to ``until``."""

    days: frozenset[date] | None = None
    since: datetime | None = None
    until: datetime | None = None

    def read(self, reports: DataFrame, days_more: int = 1) -> DataFrame:
        """Return the rows (``date``) of the days and of ``days_more`` around them."""
        if self.days is not None:
            around = {
                day + shift * _DAY
                for day in self.days
                for shift in range(-days_more, days_more + 1)
            }
            reports = reports.where(_is_one(around))
        if self.since is not None:
            reports = reports.where(F.col("date") >= F.lit(self.since.date() - days_more * _DAY))
        if self.until is not None:
            reports = reports.where(F.col("date") <= F.lit(self.until.date() + days_more * _DAY))
        return reports

    def minutes(self, slices: DataFrame) -> DataFrame:
        """Return the rows whose ``minute_ms`` is within the days and bounds."""
        minute = F.timestamp_millis("minute_ms")
        if self.days is not None:
            slices = slices.where(_is_one(self.days, F.to_date(minute)))
        return self.between(slices, minute)

    def between(self, rows: DataFrame, at: Column) -> DataFrame:
        if self.since is not None:
            rows = rows.where(at >= F.lit(self.since))
        if self.until is not None:
            rows = rows.where(at < F.lit(self.until))
        return rows

    def anew(self, rows: DataFrame) -> DataFrame:
        return rows if self.days is None else rows.where(_is_one(self.days))

    def kept(self, rows: DataFrame) -> DataFrame:
        """Return the rows (``date``) of all other days; none if all days are computed."""
        return rows.where(F.lit(self.days is not None) & ~_is_one(self.days or ()))


def _is_one(
    days: "frozenset[date] | set[date] | tuple[date, ...]", day: Column | None = None
) -> Column:
    return (F.col("date") if day is None else day).isin(*(F.lit(one) for one in sorted(days)))


def scope_of(work: Work, former: Mapping[str, Any] | None) -> Scope:
    """Return the days to compute, given the facts of the former rollup."""
    every = Scope(since=work.since, until=work.until)
    if former is None or _bounds(former) != _bounds(facts_of(work)):
        return every
    numbers = {one.number for one in work.store.batches()}
    if former["batches"] not in numbers:
        return every
    touched = _days_of_batches(work.store, former["batches"]) | _days_of_passed_over(
        work.store, former["batches"]
    )
    if len(touched) > _MOST_DAYS:
        return every
    # A report of the first minutes of a day covers the last minutes of the day before.
    days = frozenset(touched | {day - _DAY for day in touched})
    return Scope(days=days, since=work.since, until=work.until)


def facts_of(work: Work) -> dict[str, Any]:
    """Return the facts that a rollup stores for the next one."""
    return {
        "format": FORMAT,
        "batches": max((one.number for one in work.store.batches()), default=0),
        "since_ms": _ms(work.since),
        "until_ms": _ms(work.until),
        "made_at_ms": _ms(datetime.now(UTC)),
    }


def _bounds(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(facts.get(name) for name in ("format", "since_ms", "until_ms"))


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


def _days_of_batches(store: Store, after: int) -> set[date]:
    found = set()
    for batch in store.batches():
        if batch.number > after:
            for table in batch.tables.intersection(READ):
                names = store.files.names(store.place(table, batch.number))
                days = (_DATE.fullmatch(name) for name in names)
                found |= {date.fromisoformat(day[1]) for day in days if day}
    return {day for day in found if day < DATES_END}


def _days_of_passed_over(store: Store, before: int) -> set[date]:
    """Return the days with reports that are excluded now and were not at batch ``before``.

    A second sidecar that runs for days may exclude older reports as well. And excluded reports
    count again if that sidecar turns out to have begun earlier.
    """
    batches = {one.number: one for one in store.batches()}
    last = max(batches)

    def duplicates(number: int) -> DataFrame:
        of_batch = [number] if DUPLICATES.name in batches[number].tables else []
        return store.rows_of(DUPLICATES, of_batch)

    if last == before or DUPLICATES.name not in batches[before].tables | batches[last].tables:
        return set()
    now, then = duplicates(last), duplicates(before)
    changed = now.exceptAll(then).unionByName(then.exceptAll(now))
    spans = changed.select("from_ms", "until_ms").distinct().limit(_MOST_DAYS).collect()
    return {day for span in spans for day in _days_from(span["from_ms"], span["until_ms"])}


def _days_from(from_ms: int, until_ms: int) -> Iterator[date]:
    # A report is written, and gets its date, a little after its sample was taken.
    bounds_ms = (from_ms, until_ms + MINUTE_MS)
    day, last = (
        datetime.fromtimestamp(min(ms, TIMES_END_MS) / 1000, UTC).date() for ms in bounds_ms
    )
    while day <= last:
        yield day
        day += _DAY

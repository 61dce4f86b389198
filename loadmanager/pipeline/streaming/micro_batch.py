"""One batch of the stream: from finished files to complete minutes and alerts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.bounds import DAY_MS, MINUTE_MS
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.ingest.lines import BUNDLES, LINES, READ, read_files
from loadmanager.pipeline.streaming.alerts import (
    IMBALANCE,
    LATE,
    SATURATED,
    SINGLE,
    Alert,
    Limits,
    Minute,
    watched,
)
from loadmanager.pipeline.streaming.memory import SEEN, Memory, Progress
from loadmanager.pipeline.streaming.open_minutes import added, minutes, slices, sums
from loadmanager.pipeline.streaming.stream_tables import STREAM_ALERTS, STREAM_MINUTES
from loadmanager.pipeline.tables import parsed_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN_CHARACTERS: Final = 500
_ENOUGH_TO_DOUBT_ONE: Final = 3
_LINE: Final = ["file", "line"]
_KEY: Final = ["writer", "instance", "seq"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Processes batches in order; ``watermark_s`` is how late a report may be.

    ``at_work`` is held while a batch is processed; once ``over`` is set, no further one is.
    """

    spark: "SparkSession"
    memory: Memory
    watermark_s: float
    limits: Limits
    print_line: Callable[[str], None]
    at_work: Lock = field(default_factory=Lock)
    over: Event = field(default_factory=Event)

    def take(self, files: DataFrame, batch: int) -> None:
        """Count the lines of files (``path``, ``content``), and write the complete minutes."""
        read = files.mapInArrow(read_files, READ)
        with self.at_work:
            if self.over.is_set():
                # If this returned, Spark would record the batch as processed.
                raise PipelineError(f"stream: batch {batch} is left for the next time")
            read.persist()
            try:
                self._take(read, batch)
            except (Py4JJavaError, PySparkException) as error:
                # Spark parses the text of the exception, which is very slow for a long one.
                why = str(error)[:_SHOWN_CHARACTERS]
                raise PipelineError(f"stream: batch {batch}: {why}") from None
            finally:
                read.unpersist()

    def _take(self, read: DataFrame, batch: int) -> None:
        before = self.memory.progress(batch)
        sound = _reports(read)
        seen = self.memory.frame(batch, "seen", SEEN)
        fresh = _once(sound, seen).persist()
        parts = slices(fresh, _samples(read, fresh)).persist()
        after = replace(before, newest_ms=_newest(before, fresh))
        after = replace(after, closed_ms=self._closed_ms(after))
        came_late = parts.where(F.col("minute_ms") < before.closed_ms)
        new = sums(parts.where(F.col("minute_ms") >= before.closed_ms))
        open_sums = added(new, self.memory.frame(batch, "sums", new.schema)).persist()
        over = F.col("minute_ms") < after.closed_ms
        try:
            where = self.memory.batch_folder(STREAM_MINUTES.name, batch)
            closed = STREAM_MINUTES.conform(minutes(open_sums.where(over)))
            closed.coalesce(1).write.mode("overwrite").parquet(where)
            rows_read = self.spark.read.schema(STREAM_MINUTES.schema).parquet(where)
            watch, alerts = self._alerts(before, rows_read)
            alerts += _late(came_late, after)
            self.write_alerts(alerts, batch)
            # A copy of an older line is late and therefore not counted.
            kept = seen.unionByName(fresh.select(*SEEN.names)).where(
                F.col("at_ms") >= after.closed_ms
            )
            frames = {"sums": open_sums.where(~over).coalesce(1), "seen": kept.coalesce(1)}
            self.memory.keep(batch, replace(after, watch=watch), frames)
            self._say(batch, read, fresh, rows_read, alerts)
        finally:
            for frame in (fresh, parts, open_sums):
                frame.unpersist()

    def _closed_ms(self, progress: Progress) -> int:
        """Return the time before which minutes are complete.

        It is determined by the second newest broker, so that one clock in the future does not
        complete the minutes of the others.
        """
        newest = sorted(progress.newest_ms.values())
        if not newest:
            return progress.closed_ms
        high_ms = newest[-2] if len(newest) >= _ENOUGH_TO_DOUBT_ONE else newest[-1]
        closed_ms = high_ms - round(self.watermark_s * 1000)
        return max(progress.closed_ms, closed_ms - closed_ms % MINUTE_MS)

    def _alerts(self, before: Progress, frame: DataFrame) -> tuple[Any, list[Alert]]:
        at_ms = F.unix_millis("minute").alias("at_ms")
        clusters = frame.where(F.col("level") == "cluster").select("cluster", at_ms)
        present = [(row["cluster"], row["at_ms"]) for row in clusters.orderBy("at_ms").collect()]
        above = [
            _above(frame, "cluster", IMBALANCE, "usage_max_over_mean", self.limits.max_over_mean),
            _above(frame, "broker", SATURATED, "usage_mean", self.limits.usage),
        ]
        flagged = [
            Minute(
                at_ms=row["at_ms"],
                cluster=row["cluster"],
                kind=row["kind"],
                subject="" if row["kind"] == IMBALANCE else row["name"],
                value=row["value"],
            )
            for row in above[0].unionByName(above[1]).collect()
        ]
        return watched(before.watch, flagged, present, self.limits)

    def write_alerts(self, alerts: list[Alert], batch: int | str) -> None:
        """Write rows of ``stream_alerts``, over those of an earlier attempt."""
        rows = [
            (
                _moment(one.at_ms),
                *(one.cluster, one.kind, one.event, one.subject),
                _moment(one.since_ms),
                one.minutes,
                one.value,
                one.text(),
            )
            for one in alerts
        ]
        frame = self.spark.createDataFrame(rows, STREAM_ALERTS.schema).coalesce(1)
        where = self.memory.batch_folder(STREAM_ALERTS.name, batch)
        frame.write.mode("overwrite").parquet(where)

    def _say(
        self, batch: int, read: DataFrame, fresh: DataFrame, frame: DataFrame, alerts: list[Alert]
    ) -> None:
        lines = read.where(F.col("part") == LINES)
        bad = lines.where(F.col("content.fault").isNotNull()).count()
        counted = frame.agg(F.countDistinct("minute"), F.max("minute")).first()
        over, last = counted or (0, None)
        until = f", the last {last:%F %H:%M}" if last is not None else ""
        faults = f", {bad} malformed lines: see ingest" if bad else ""
        self.print_line(
            f"batch {batch}: {fresh.count()} reports, {over} minutes over{until}{faults}"
        )
        for one in alerts:
            self.print_line(f"  {one.text()}")


def _reports(read: DataFrame) -> DataFrame:
    """Return the valid reports of a batch, as rows of ``broker_load`` with file and line."""
    text = F.col("content.text")
    parsed = F.from_json(text, parsed_schema("report"), {"mode": "FAILFAST"})
    lines = read.where((F.col("part") == LINES) & (F.col("content.kind") == "report"))
    return lines.select(*_LINE, parsed.alias("report")).select(*_LINE, "report.*")


def _once(reports: DataFrame, seen: DataFrame) -> DataFrame:
    """Return reports without copies of each other and of reports counted before."""
    first = Window.partitionBy(*_KEY).orderBy("file", "line")
    ranked = reports.withColumn("copy", F.row_number().over(first)).where(F.col("copy") == 1)
    return ranked.drop("copy").join(seen.select(*_KEY), _KEY, "left_anti")


def _samples(read: DataFrame, fresh: DataFrame) -> DataFrame:
    """Return the rows of bundles of the counted reports."""
    rows = read.where(F.col("part") == BUNDLES)
    return rows.join(F.broadcast(fresh.select(*_LINE)), _LINE, "left_semi")


def _newest(before: Progress, fresh: DataFrame) -> dict[str, int]:
    """Return the time of the newest report of each broker, without those silent for a day."""
    rows = fresh.groupBy("cluster", "broker").agg(F.max("at_ms").alias("at_ms")).collect()
    newest = dict(before.newest_ms)
    for row in rows:
        name = f"{row['cluster']} {row['broker']}"
        newest[name] = max(newest.get(name, 0), row["at_ms"])
    ordered = sorted(newest.values())
    middle = ordered[len(ordered) // 2] if ordered else 0
    return {name: at_ms for name, at_ms in newest.items() if at_ms > middle - DAY_MS}


def _above(frame: DataFrame, level: str, kind: str, measure: str, limit: float) -> DataFrame:
    rows = frame.where((F.col("level") == level) & (F.col(measure) > limit))
    return rows.select(
        F.unix_millis("minute").alias("at_ms"),
        *("cluster", "name"),
        F.lit(kind).alias("kind"),
        F.col(measure).alias("value"),
    )


def _late(parts: DataFrame, after: Progress) -> Iterator[Alert]:
    """Yield alerts on reports for minutes that were complete; they are counted only here."""
    brokers = (
        parts.where(F.col("level") == "broker")
        .groupBy("cluster", "name")
        .agg(
            F.count("*").alias("parts"),
            F.min("minute_ms").alias("since_ms"),
            F.sum("seconds").alias("seconds"),
        )
    )
    for row in brokers.orderBy("cluster", "name").collect():
        yield Alert(
            at_ms=after.closed_ms,
            cluster=row["cluster"],
            kind=LATE,
            event=SINGLE,
            subject=row["name"],
            since_ms=row["since_ms"],
            minutes=row["parts"],
            value=row["seconds"],
        )


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)

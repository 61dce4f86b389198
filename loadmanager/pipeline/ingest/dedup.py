"""Deduplication: which of several lines with the same number is kept.

The key of a line is its stream, writer, instance and ``seq``. Of lines with the same key, the one
read in an earlier batch is kept, otherwise the first by digest, independently of the order of
files. Lines with the same content are copies; lines with other content are quarantined. Only keys
are compared, never the rows of bundles.

A broker has one sidecar. Where two instances reported on it at overlapping times (a second one was
started with its name, or two runs of a simulation share a directory), its load would count twice.
The instance that began later counts, as in the service, where a starting sidecar takes over. The
reports of the other one between its first and its last report are excluded when tables are read.
Nothing is deleted, and since all batches are considered, the order of ingestion does not matter.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.history.schema import KINDS
from loadmanager.pipeline.tables import KEYS, QUARANTINE

_BROKER: Final = ["cluster", "broker"]
_WHO: Final = [*_BROKER, "writer", "instance"]


def spans_of(reports: DataFrame) -> DataFrame:
    """Return the time span of the reports of each instance on a broker (`SPANS`)."""
    at_ms = F.col("reported_at_ms")
    return reports.groupBy(*_WHO).agg(
        F.min("started_at_ms").alias("started_at_ms"),
        F.min(at_ms).alias("first_ms"),
        F.max(at_ms).alias("last_ms"),
    )


def duplicate_reports(spans: DataFrame) -> DataFrame:
    """Return the time spans of excluded reports (`DUPLICATES`), given the spans of all batches."""
    whole = spans.groupBy(*_WHO).agg(
        F.min("started_at_ms").alias("started_at_ms"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
    )
    stands = whole.select(
        *_BROKER, *(F.col(name).alias(f"_{name}") for name in whole.columns if name not in _BROKER)
    )
    began = F.struct("started_at_ms", "writer", "instance")
    began_later = F.struct("_started_at_ms", "_writer", "_instance") > began
    overlap = (F.col("first_ms") <= F.col("_last_ms")) & (F.col("_first_ms") <= F.col("last_ms"))
    return (
        whole.join(stands, _BROKER)
        .where(began_later & overlap)
        .select(
            *_WHO,
            F.col("_instance").alias("for_instance"),
            F.greatest("first_ms", "_first_ms").alias("from_ms"),
            F.least("last_ms", "_last_ms").alias("until_ms"),
        )
    )


def counting_reports(reports: DataFrame, passed_over: DataFrame) -> DataFrame:
    """Return rows of reports without the excluded ones (``passed_over``: `DUPLICATES`)."""
    passed = passed_over.select(*_WHO, "from_ms", "until_ms").alias("passed")
    rows = reports.alias("rows")
    same = [F.col(f"rows.{name}").eqNullSafe(F.col(f"passed.{name}")) for name in _WHO]
    within = F.col("rows.reported_at_ms").between(F.col("passed.from_ms"), F.col("passed.until_ms"))
    condition = within
    for one in same:
        condition &= one
    return rows.join(F.broadcast(passed), condition, "left_anti")


DUPLICATE: Final = "duplicate"
CONTRADICTION: Final = "contradiction"

_KEY: Final = ["stream", "writer", "instance", "seq"]


def keys_of(lines: DataFrame) -> DataFrame:
    kind = F.col("content.kind")
    stream = F.coalesce(
        *(F.when(kind == name, F.lit(one.stream.value)) for name, one in KINDS.items())
    )
    sound = lines.where(F.col("content.fault").isNull())
    return sound.select(
        stream.alias("stream"),
        "writer",
        "instance",
        "seq",
        kind.alias("kind"),
        F.col("content.digest").alias("digest"),
        "file",
        "line",
    )


def losers(lines: DataFrame, before: DataFrame) -> DataFrame:
    """Return the valid lines that are not kept: file, line, key and verdict.

    ``before`` are the keys of earlier batches. Only those in the range of numbers of the new files
    are compared, which are next to none of a year.
    """
    here = keys_of(lines)
    which = _KEY[:-1]
    numbers = here.groupBy(*which).agg(F.min("seq").alias("first"), F.max("seq").alias("last"))
    near = before.join(F.broadcast(numbers), which).where(
        F.col("seq").between(F.col("first"), F.col("last"))
    )
    every = here.withColumn("earlier", F.lit(0)).unionByName(
        near.select(*KEYS.schema.names).withColumn("earlier", F.lit(1))
    )
    same = Window.partitionBy(*_KEY).orderBy(F.desc("earlier"), "digest", "file", "line")
    ranked = every.withColumns(
        {"place": F.row_number().over(same), "first_digest": F.first("digest").over(same)}
    )
    verdict = F.when(F.col("digest") == F.col("first_digest"), DUPLICATE).otherwise(CONTRADICTION)
    lost = ranked.where((F.col("place") > 1) & (F.col("earlier") == 0))
    return lost.select("file", "line", "seq", "writer", "instance", verdict.alias("verdict"))


def kept_lines(lines: DataFrame, lost: DataFrame | None) -> DataFrame:
    sound = lines.where(F.col("content.fault").isNull())
    return sound if lost is None else sound.join(lost, ["file", "line"], "left_anti")


def refused(lines: DataFrame, lost: DataFrame | None) -> DataFrame:
    """Return the lines to quarantine: malformed ones, and those that contradict a kept line."""
    faulty = lines.where(F.col("content.fault").isNotNull())
    bad = faulty.select("file", "line", F.col("content.fault").alias("reason"), "content.text")
    if lost is None:
        return bad
    against = lost.where(F.col("verdict") == CONTRADICTION)
    reason = F.format_string(
        "seq = %d; expected a number of its own: another line of %s, instance %s, has it",
        "seq",
        "writer",
        "instance",
    )
    refusals = lines.select("file", "line", "content.text").join(
        against.select("file", "line", reason.alias("reason")), ["file", "line"]
    )
    return bad.unionByName(refusals.select(*QUARANTINE.schema.names))

"""Deduplication: which of several lines with the same number is kept.

The key of a line is its stream, writer, instance and ``seq``. Of lines with the same key, the one
read in an earlier batch is kept, otherwise the first by digest, independently of the order of
files. Lines with the same content are copies; lines with other content are quarantined. Only keys
are compared, never the rows of bundles.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.history.kinds import KINDS
from loadmanager.pipeline.tables import KEYS, QUARANTINE

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

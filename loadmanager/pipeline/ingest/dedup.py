"""Each line once: which of several with the same number is taken.

A line is known by its stream, writer, instance and ``seq``. Of lines with the same one that
was read in an earlier batch is kept, else the first by digest, whatever the order of files.
Others with the same content are copies; with another content they are refused. Only keys are
compared, never the rows of bundles.
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
    """Return what sound lines are known by (`KEYS`)."""
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
    """Return the sound lines that are not taken: file, line, verdict, and what they have of `KEYS`.

    ``before`` are the keys of earlier batches. Of a year of them next to none is of the numbers
    that new files have, and only those are compared.
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
    """Return the lines that are taken."""
    sound = lines.where(F.col("content.fault").isNull())
    return sound if lost is None else sound.join(lost, ["file", "line"], "left_anti")


def refused(lines: DataFrame, lost: DataFrame | None) -> DataFrame:
    """Return the lines for the quarantine: those with a fault, and those that contradict."""
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

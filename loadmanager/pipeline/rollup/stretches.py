"""The stretches between base rounds, and which reports count at which ticks."""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.expressions import union

TERM: Final = ("cluster", "writer", "instance", "epoch")
STRETCH: Final = (*TERM, "round")
"""The key of a stretch: the base round at its beginning."""


def stretches(rounds: DataFrame, ticks: DataFrame) -> DataFrame:
    """Return one row for each base round: the stretch to the next one, or to the last tick.

    Out: `STRETCH`, ``seq``, ``tick`` (after which it begins), ``next_round`` and ``next_at`` (null
    for the last of a term), ``until_tick``, ``at``, ``until_at`` of its last tick or the next
    base, ``bundles_known`` and ``brokers``. Simulations write no ticks: both are null.
    """
    in_order = Window.partitionBy(*TERM).orderBy("round")
    last = ticks.groupBy(*TERM).agg(
        F.max("tick").alias("last_tick"), F.max_by("at", "tick").alias("last_at")
    )
    bases = rounds.where("base").select(
        *STRETCH,
        *("seq", "tick", "at", "bundles_known", "brokers"),
        F.lead("round").over(in_order).alias("next_round"),
        F.lead("at").over(in_order).alias("next_at"),
        F.lead("tick").over(in_order).alias("next_tick"),
    )
    until = F.coalesce("next_tick", F.greatest("last_tick", "tick"))
    until_at = F.coalesce("next_at", F.when(F.col("last_tick") > F.col("tick"), F.col("last_at")))
    return bases.join(last, list(TERM), "left").select(
        *(*STRETCH, "seq", "tick", "at", "bundles_known", "brokers", "next_round", "next_at"),
        until.alias("until_tick"),
        F.coalesce(until_at, "at").alias("until_at"),
    )


def counting_reports(stretches_: DataFrame, ticks: DataFrame) -> DataFrame:
    """Return which report of each broker counts at which ticks of each stretch.

    Out: `STRETCH`, ``broker``, ``reported_at_ms``, ``from_tick``, ``until_tick``; ``line`` and
    ``item`` are the order in which the leader processed them. A report recorded before a base
    round without a sample counts from the next sample on.
    """
    began = stretches_.where(F.col("tick").isNotNull())
    first = began.select(
        *STRETCH,
        "until_tick",
        (F.col("tick") + 1).alias("from_tick"),
        F.lit(0).cast("bigint").alias("line"),
        F.posexplode("brokers").alias("item", "seen"),
    )
    changes = union(
        [
            _change(first, "seen.broker", "seen.reported_at_ms"),
            *_changes(_within_stretches(began, ticks)),
        ]
    )
    one_broker = Window.partitionBy(*STRETCH, "broker").orderBy("from_tick", "line", "item")
    until = F.least(
        F.coalesce(F.lead("from_tick").over(one_broker) - 1, "until_tick"), "until_tick"
    )
    spans = changes.withColumn("until_tick", until)
    return spans.where(
        F.col("reported_at_ms").isNotNull() & (F.col("from_tick") <= F.col("until_tick"))
    ).select(
        *STRETCH,
        *("broker", "reported_at_ms", "from_tick", "until_tick", "line", "item"),
    )


def _within_stretches(began: DataFrame, ticks: DataFrame) -> DataFrame:
    """Return the lines of ticks with their stretch."""
    counts_from = F.col("tick") + F.when(F.col("sampled"), F.lit(0)).otherwise(F.lit(1))
    lines = ticks.select(
        *TERM, "seq", "taken", "left", counts_from.alias("from_tick"), F.lit(1).alias("order")
    )
    marks = began.select(
        *TERM,
        (F.col("tick") + 1).alias("from_tick"),
        F.lit(0).alias("order"),
        "round",
        "until_tick",
    )
    mixed = lines.unionByName(marks, allowMissingColumns=True)
    in_order = Window.partitionBy(*TERM).orderBy("from_tick", "order", "round", "seq")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    found = mixed.withColumns(
        {name: F.last(name, ignorenulls=True).over(so_far) for name in ("round", "until_tick")}
    )
    return found.where((F.col("order") == 1) & F.col("round").isNotNull())


def _changes(lines: DataFrame) -> list[DataFrame]:
    """Return the reports taken and the brokers that left; not those that left and came back."""
    lines = lines.withColumn("line", F.col("seq"))
    kept = [*STRETCH, "until_tick", "from_tick", "line"]
    taken = lines.select(*kept, F.posexplode("taken").alias("item", "seen"))
    back = F.transform("taken", lambda one: one["broker"])
    gone = lines.select(
        *kept, F.posexplode(F.array_except("left", back)).alias("item", "broker")
    ).withColumn("seen", F.lit(None).cast("bigint"))
    return [_change(taken, "seen.broker", "seen.reported_at_ms"), _change(gone, "broker", "seen")]


def _change(rows: DataFrame, broker: str, reported_at_ms: str) -> DataFrame:
    return rows.select(
        *STRETCH,
        *("until_tick", "from_tick", "line", "item"),
        F.col(broker).alias("broker"),
        F.col(reported_at_ms).alias("reported_at_ms"),
    )


def cut_within(stretches_: DataFrame, cuts: DataFrame) -> DataFrame:
    """Return the bundles that were split, merged or created by these in each stretch.

    Their averages were divided or added, which no report shows. This may happen after the averages
    of a base were recorded and before the round was, so it counts for the next stretch as well.
    """
    marks = stretches_.select(*STRETCH, "seq")
    names = cuts.select(
        *TERM, "seq", F.explode(F.concat("parts", F.array("whole"))).alias("bundle")
    )
    mixed = names.unionByName(marks, allowMissingColumns=True)
    in_order = Window.partitionBy(*TERM).orderBy("seq")
    before = F.last("round", ignorenulls=True).over(
        in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    after = F.first("round", ignorenulls=True).over(
        in_order.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    )
    both = mixed.withColumn("around", F.array_compact(F.array(before, after)))
    found = both.where(F.col("bundle").isNotNull())
    return found.select(*TERM, F.explode("around").alias("round"), "bundle").distinct()

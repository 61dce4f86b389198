"""Assigns hand-overs to the moves that caused them, and finds bundles that returned."""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

KEY: Final = ("cluster", "writer", "instance", "seq")
"""The key of the line of a move."""

_SLACK_MS: Final = 5000
"""An order may be recorded this much before its decision: two clocks are involved."""

_OF_HAND_OVER: Final = ("ordered_at_ms", "released_at_ms", "acquired_at_ms", "took_s", "pause_s")

_ORDERED: Final = ("moved", "placed")


def with_hand_overs(moves: DataFrame, hand_overs: DataFrame) -> DataFrame:
    """Return ``moves`` with their hand-overs.

    A hand-over belongs to the last move of its bundle to its target that was decided before it was
    ordered. Out: the columns of ``moves`` and ``ended`` (outcome of the hand-over, null if none is
    recorded), ``ordered_at_ms`` (time of the decision if none is recorded),
    ``released_at_ms, acquired_at_ms, took_s, pause_s``.
    """
    place = ("cluster", "bundle", "target")
    key = F.struct(*KEY)
    decided = moves.where(F.col("outcome").isin(*_ORDERED)).select(
        *place, (F.col("at_ms") - _SLACK_MS).alias("order_ms"), F.lit(0).alias("what"),
        key.alias("key"), F.lit(None).alias("hand_over"),
    )  # fmt: skip
    task = F.struct(*_OF_HAND_OVER, F.col("outcome").alias("ended"))
    ended = hand_overs.select(
        *place, F.col("ordered_at_ms").alias("order_ms"), F.lit(1).alias("what"),
        F.lit(None).alias("key"), task.alias("hand_over"),
    )  # fmt: skip
    in_order = Window.partitionBy(*place).orderBy("order_ms", "what")
    latest = F.last("key", ignorenulls=True).over(in_order)
    matched = decided.unionByName(ended).withColumn("key", latest).where("what = 1")
    first = (
        matched.where("key IS NOT NULL")
        .groupBy("key")
        .agg(F.min_by("hand_over", "order_ms").alias("hand_over"))
    )
    found = first.select("key.*", "hand_over.*").withColumnRenamed("ordered_at_ms", "written_ms")
    joined = moves.join(found, list(KEY), "left")
    return joined.withColumn("ordered_at_ms", F.coalesce("written_ms", "at_ms")).drop("written_ms")


def with_returns(orders: DataFrame, within_s: float) -> DataFrame:
    """Return ``orders`` with ``back_after_s``: null unless the move returns its bundle.

    It does if the bundle was moved away from the target within ``within_s`` before. Only ordered
    moves count.
    """
    time = F.col("ordered_at_ms")
    before = (
        Window.partitionBy("cluster", "bundle", "was_ordered")
        .orderBy("ordered_at_ms")
        .rangeBetween(-round(within_s * 1000), -1)
    )
    left = F.collect_list(
        F.when(F.col("source").isNotNull(), F.struct("source", "ordered_at_ms"))
    ).over(before)
    home = F.filter(left, lambda one: one["source"] == F.col("target"))
    since_ms = F.array_max(F.transform(home, lambda one: one["ordered_at_ms"]))
    back = F.when(F.col("was_ordered") & F.col("source").isNotNull(), (time - since_ms) / 1000)
    return (
        orders.withColumn("was_ordered", F.col("outcome").isin(*_ORDERED))
        .withColumn("back_after_s", back)
        .drop("was_ordered")
    )


def ping_pong(effects: DataFrame) -> DataFrame:
    """Return the bundles that returned, those with most returns first.

    In: the columns of the table ``move_effects``. Out: those of the table ``ping_pong``.
    """
    ordered = effects.where(F.col("outcome").isin(*_ORDERED))
    returned = F.col("back_after_s").isNotNull()
    found = ordered.groupBy("cluster", "bundle", "namespace").agg(
        F.count_if(returned).alias("returns"),
        F.count_if(returned & F.col("for_balance")).alias("returns_for_balance"),
        F.count("*").alias("moves"),
        F.size(F.array_union(F.collect_set("source"), F.collect_set("target"))).alias("brokers"),
        F.min("back_after_s").alias("shortest_back_s"),
        F.median("back_after_s").alias("median_back_s"),
        F.coalesce(F.sum("pause_s"), F.lit(0.0)).alias("pause_s"),
        F.coalesce(F.sum("messages_delayed"), F.lit(0.0)).alias("messages_delayed"),
        F.mode("cause").alias("usual_cause"),
        F.min("ordered_at").alias("first_at"),
        F.max("ordered_at").alias("last_at"),
    )
    rank = Window.partitionBy("cluster").orderBy(
        F.desc("returns"), F.desc("messages_delayed"), "bundle"
    )
    return found.where("returns > 0").withColumn("rank", F.row_number().over(rank))

"""Moves as natural experiments: changes of usage and rates when bundles moved, in Spark.

A move changes the traffic of two brokers at one time, so the change of their usage is due to the
change of their rates. Time is divided into slots of five minutes: three before and three after the
slot of the move, which is left out. The mean change of brokers of the same class without moves is
subtracted (difference in differences). Rates are measured on both sides, so several simultaneous
moves are as good an experiment as one.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.bounds import MINUTE_MS
from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.cost_model.censoring import THRESHOLD
from loadmanager.pipeline.cost_model.rows import RATES
from loadmanager.pipeline.cost_model.spark_rows import (
    LIMIT_COLUMNS,
    UNIT,
    USAGE_COLUMNS,
)

SLOT_MINUTES: Final = 5
BESIDE: Final = 3
"""The number of slots before and after a move."""

_SLOTS: Final = 2 * BESIDE + 1
_CHANGED: Final = (*RATES, *USAGE_COLUMNS)


def changes(of_minutes: DataFrame, hand_overs: DataFrame) -> DataFrame:
    """Return one row for each broker and slot in which it gained or lost bundles.

    In: `spark_rows.minutes` and the table ``hand_overs``. Out: the columns of the minutes,
    with the differences of rates and usage between after and before; limits are the usage after.
    A broker that did not report in each of the seven slots is left out.
    """
    touched = _touched(hand_overs)
    slots = _slots(of_minutes).join(touched, ["cluster", "broker", "slot"], "left")
    beside = slots.join(F.broadcast(_windows(touched)), ["cluster", "slot"])
    compared = _compared(beside)
    alike = Window.partitionBy("cluster", "broker_class", "event")
    control = {
        name: F.avg(F.when(~F.col("disturbed"), F.col(name))).over(alike) for name in _CHANGED
    }
    freed = {
        name: F.col(name) - F.coalesce(everybody, F.lit(0.0)) for name, everybody in control.items()
    }
    return (
        compared.withColumns(freed)
        .where("moved")
        .withColumn("minute", F.col("event") * SLOT_MINUTES)
        .select(*UNIT, "minute", *_CHANGED, *LIMIT_COLUMNS)
    )


def _touched(hand_overs: DataFrame) -> DataFrame:
    """Return ``cluster, broker, slot, touched``: when brokers gained or lost bundles."""
    done = hand_overs.where("acquired_at_ms is not null")
    slot = F.floor(F.col("acquired_at_ms") / (SLOT_MINUTES * MINUTE_MS)).alias("slot")
    both = F.explode(F.array("source", "target")).alias("broker")
    known = done.select("cluster", both, slot).where("broker is not null").distinct()
    return known.withColumn("touched", F.lit(True))  # noqa: FBT003 - a value


def _windows(touched: DataFrame) -> DataFrame:
    """Return ``cluster, event, slot, after``: the slots around each slot with moves.

    ``after`` is -1 before the slot of the moves, 0 in it and 1 after it.
    """
    beside = [F.lit(offset) for offset in range(-BESIDE, BESIDE + 1)]
    events = touched.select("cluster", F.col("slot").alias("event")).distinct()
    return events.withColumn("offset", F.explode(F.array(*beside))).select(
        "cluster",
        "event",
        (F.col("event") + F.col("offset")).alias("slot"),
        F.sign("offset").alias("after"),
    )


def _slots(of_minutes: DataFrame) -> DataFrame:
    """Return means of slots; the usage of a full broker is null, because it is censored."""
    slot = F.floor(F.col("minute") / SLOT_MINUTES).alias("slot")
    full = {
        resource: F.max(F.col(f"{resource}_usage") / F.col(f"{resource}_limit")) >= THRESHOLD
        for resource in RESOURCES
    }
    means = [F.avg(name).alias(name) for name in RATES]
    usage = [
        F.when(~full[resource], F.avg(f"{resource}_usage")).alias(f"{resource}_usage")
        for resource in RESOURCES
    ]
    return of_minutes.groupBy(*UNIT, slot).agg(*means, *usage)


def _compared(beside: DataFrame) -> DataFrame:
    """Return the change of every broker across every slot with moves, if no slot is missing."""

    def whole(name: str, amount: Column) -> Column:
        return F.when(F.count(name) == _SLOTS, F.sum(amount) / BESIDE)

    touched = F.coalesce("touched", F.lit(False))  # noqa: FBT003 - a value
    changed = [whole(name, F.col(name) * F.col("after")).alias(name) for name in _CHANGED]
    later = [
        whole(usage, F.when(F.col("after") > 0, F.col(usage))).alias(limit)
        for usage, limit in zip(USAGE_COLUMNS, LIMIT_COLUMNS, strict=True)
    ]
    flags = [
        F.max(touched & (F.col("after") == 0)).alias("moved"),
        F.max(touched).alias("disturbed"),
    ]
    found = beside.groupBy(*UNIT, "event").agg(
        F.count("*").alias("slots"), *changed, *later, *flags
    )
    return found.where(F.col("slots") == _SLOTS)

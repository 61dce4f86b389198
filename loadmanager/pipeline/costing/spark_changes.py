"""Moves as natural experiments: what changed on a broker when its bundles did, in Spark.

A move changes what two brokers do at once, and nothing else does: the difference of their
usage across it is owed to the difference of their rates. Time is in slots of five minutes:
three before and three after the slot of the move, which is left out itself. What happened
to everybody meanwhile is taken off: the mean change of the brokers of the same class that
no move touched (a difference in differences). Rates are measured on both sides, so several
moves at once are as good an experiment as one.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.core.cost.document import RATES
from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.costing.censoring import THRESHOLD
from loadmanager.pipeline.costing.spark_rows import (
    LIMIT_COLUMNS,
    MINUTE_MS,
    UNIT,
    USAGE_COLUMNS,
)

SLOT_MINUTES: Final = 5
BESIDE: Final = 3
"""Slots before and after that are compared."""

_OF_CLASS: Final = ("cluster", "broker_class")
_CHANGED: Final = (*RATES, *USAGE_COLUMNS)


def changes(of_minutes: DataFrame, hand_overs: DataFrame) -> DataFrame:
    """Return one row for each broker and slot in which bundles came to it or left it.

    In: `spark_rows.minutes` and the table ``hand_overs``. Out: as the minutes, amounts of
    rates and usage being those after less those before; the limits are the usage after.
    """
    touched = _touched(hand_overs)
    windows = _windows(touched)
    compared = _compared(_slots(of_minutes), windows)
    disturbed = touched.join(windows, ["cluster", "slot"]).select("cluster", "broker", "event")
    calm = compared.join(disturbed.distinct(), ["cluster", "broker", "event"], "left_anti")
    control = calm.groupBy(*_OF_CLASS, "event").agg(
        *(F.avg(name).alias(f"control_{name}") for name in _CHANGED)
    )
    moved = compared.join(
        touched.withColumnRenamed("slot", "event"), ["cluster", "broker", "event"]
    )
    return moved.join(control, [*_OF_CLASS, "event"], "left").select(
        *UNIT,
        (F.col("event") * SLOT_MINUTES).alias("minute"),
        *(
            (F.col(name) - F.coalesce(f"control_{name}", F.lit(0.0))).alias(name)
            for name in _CHANGED
        ),
        *LIMIT_COLUMNS,
    )


def _touched(hand_overs: DataFrame) -> DataFrame:
    """Return ``cluster, broker, slot``: who got or lost bundles when."""
    done = hand_overs.where("acquired_at_ms is not null")
    slot = F.floor(F.col("acquired_at_ms") / (SLOT_MINUTES * MINUTE_MS)).alias("slot")
    both = F.explode(F.array("source", "target")).alias("broker")
    return done.select("cluster", both, slot).where("broker is not null").distinct()


def _windows(touched: DataFrame) -> DataFrame:
    """Return ``cluster, event, slot, after``: the slots that tell of each slot with moves."""
    beside = [F.lit(offset) for offset in range(-BESIDE, BESIDE + 1)]
    events = touched.select("cluster", F.col("slot").alias("event")).distinct()
    return (
        events.withColumn("offset", F.explode(F.array(*beside)))
        .withColumn("slot", F.col("event") + F.col("offset"))
        .withColumn("after", F.sign("offset"))
        .select("cluster", "event", "slot", "after")
    )


def _slots(of_minutes: DataFrame) -> DataFrame:
    """Return means of five minutes; usage of a full broker is null, for it tells too little."""
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


def _compared(slots: DataFrame, windows: DataFrame) -> DataFrame:
    """Return the change of every broker across every slot with moves, if its slots are whole."""
    beside = windows.where("after <> 0")
    joined = slots.join(F.broadcast(beside), ["cluster", "slot"])
    before, after = F.col("after") < 0, F.col("after") > 0

    def whole(name: str) -> tuple[Column, Column]:
        known = F.count(name) == 2 * BESIDE
        earlier = F.sum(F.when(before, F.col(name))) / BESIDE
        later = F.sum(F.when(after, F.col(name))) / BESIDE
        return F.when(known, later - earlier), F.when(known, later)

    changed = [whole(name)[0].alias(name) for name in _CHANGED]
    later = [
        whole(usage)[1].alias(limit)
        for usage, limit in zip(USAGE_COLUMNS, LIMIT_COLUMNS, strict=True)
    ]
    found = joined.groupBy(*UNIT, "event").agg(*changed, *later)
    return found.where(F.col(RATES[0]).isNotNull())

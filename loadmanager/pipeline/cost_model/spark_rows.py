"""Rows of the regression from tables: minutes of brokers, in Spark.

A row is a minute of a broker: the mean of the reports in it, each weighted by the seconds that it
covers. Rates and usage of a report are of the same window, so a minute with one report is as valid
as one with twelve. Minutes without a report are left out.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.bounds import MINUTE_MS
from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.cost_model.rows import RATES
from loadmanager.pipeline.expressions import weighted_mean

HOLD_OUT_EVERY: Final = 5
_MOST_SECONDS: Final = 60.0
_TIMES_USUAL: Final = 20.0
_TIMES_LIMIT: Final = 10.0

RATE_COLUMNS: Final = RATES
USAGE_COLUMNS: Final = tuple(f"{resource}_usage" for resource in RESOURCES)
LIMIT_COLUMNS: Final = tuple(f"{resource}_limit" for resource in RESOURCES)
AMOUNTS: Final = (*RATE_COLUMNS, *USAGE_COLUMNS, *LIMIT_COLUMNS)
UNIT: Final = ("cluster", "broker_class", "broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """The division of time into blocks of ``block_minutes`` and halves at ``middle_minute``."""

    block_minutes: int
    middle_minute: int


def minutes(broker_load: DataFrame) -> DataFrame:
    """Return one row for each minute of each broker in which it reported.

    In: the table ``broker_load``. Out: `UNIT`, ``minute`` (since 1970, by the broker's
    clock) and `AMOUNTS`; a resource that was not measured is null. Reports of unhealthy
    brokers are left out, and reports without the window of their rates.
    """
    known = broker_load.where("healthy and window_s > 0")
    seconds = F.least(F.coalesce("interval_s", "window_s"), F.lit(_MOST_SECONDS))
    weighted = known.select(
        *UNIT,
        F.floor(F.col("reported_at_ms") / MINUTE_MS).alias("minute"),
        F.greatest(seconds, F.lit(1e-3)).alias("seconds"),
        *(F.col(name) for name in RATES if name != "connections"),
        (F.col("producers") + F.col("consumers")).alias("connections"),
        *(
            F.when(F.col(f"{resource}_limit") > 0, F.col(f"{resource}_{amount}")).alias(
                f"{resource}_{amount}"
            )
            for amount in ("usage", "limit")
            for resource in RESOURCES
        ),
    )
    # A report in which a resource was not measured takes no part in that resource's mean.
    means = [weighted_mean(F.col(name), F.col("seconds")).alias(name) for name in AMOUNTS]
    return weighted.groupBy(*UNIT, "minute").agg(*means)


def plausible(of_minutes: DataFrame) -> DataFrame:
    """Return minutes without impossible values.

    A jump of a counter has more leverage than a month of valid minutes, and no residual shows it.
    Minutes with a rate above twenty times the 99th percentile of the class are left out; usage
    above ten times the limit counts as not measured.
    """
    of_class = of_minutes.groupBy("cluster", "broker_class").agg(
        *(F.percentile_approx(name, 0.99, 1000).alias(f"most_{name}") for name in RATES)
    )
    believed = [
        (F.col(f"most_{name}") <= 0) | (F.col(name) <= _TIMES_USUAL * F.col(f"most_{name}"))
        for name in RATES
    ]
    usage = {
        f"{one}_usage": F.when(
            F.col(f"{one}_usage") <= _TIMES_LIMIT * F.col(f"{one}_limit"), F.col(f"{one}_usage")
        )
        for one in RESOURCES
    }
    joined = of_minutes.join(F.broadcast(of_class), ["cluster", "broker_class"])
    sound = joined.where(reduce(Column.__and__, believed))
    return sound.select(*of_minutes.columns).withColumns(usage)


def rows(
    of_minutes: DataFrame, of_changes: DataFrame, units: DataFrame, stretches: Stretches
) -> DataFrame:
    """Return minutes and changes as rows with ``unit``, ``block`` and the masks of `Rows`.

    In: `minutes`, `spark_changes.changes`, and `UNIT` with the number ``unit``, which is broadcast.
    """
    both = of_minutes.withColumn("level", F.lit(True)).unionByName(  # noqa: FBT003 - a value
        of_changes.withColumn("level", F.lit(False))  # noqa: FBT003 - a value
    )
    block = F.floor(F.col("minute") / stretches.block_minutes)
    return both.join(F.broadcast(units), list(UNIT)).select(
        F.col("unit").cast("bigint").alias("unit"),
        block.cast("bigint").alias("block"),
        "level",
        (F.pmod(block, F.lit(HOLD_OUT_EVERY)) == HOLD_OUT_EVERY - 1).alias("held_out"),
        (F.col("minute") >= stretches.middle_minute).alias("late"),
        *(F.col(name).cast("double") for name in AMOUNTS),
    )

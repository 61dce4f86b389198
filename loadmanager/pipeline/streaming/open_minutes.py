"""Sums of open minutes, to which reports are added until the minute is complete.

Sums do not depend on the division into batches, so a minute of the stream equals that of a rollup
of the same reports.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.expressions import union
from loadmanager.pipeline.rollup.imbalance import unevenness, usage
from loadmanager.pipeline.rollup.measures import RATES
from loadmanager.pipeline.rollup.minutes import broker_slices, bundle_slices
from loadmanager.pipeline.rollup.weights import MINUTE_S
from loadmanager.pipeline.streaming.stream_tables import USAGES
from loadmanager.pipeline.tables import namespace_of

KEYS: Final = ("level", "cluster", "name", "minute_ms")


def slices(reports: DataFrame, samples: DataFrame) -> DataFrame:
    """Return rows of ``broker_load`` and ``bundle_load``, divided into the minutes they cover."""
    brokers = (
        broker_slices(reports)
        .withColumn("name", F.col("broker"))
        .select(
            *(
                F.lit("broker").alias("level"),
                "cluster",
                "name",
                "minute_ms",
                "seconds",
                "draining",
            ),
            *(*RATES, *USAGES),
        )
    )
    bundles = (
        bundle_slices(samples)
        .withColumn("name", F.col("bundle"))
        .select(F.lit("bundle").alias("level"), "cluster", "name", "minute_ms", "seconds", *RATES)
    )
    return brokers.unionByName(bundles, allowMissingColumns=True)


def sums(parts: DataFrame) -> DataFrame:
    """Return the sums of `slices` for each of `KEYS`."""
    seconds = F.col("seconds")
    return parts.groupBy(*KEYS).agg(
        F.count("*").alias("reports"),
        F.sum(seconds).alias("stood_s"),
        F.sum(F.when(F.col("draining"), seconds)).alias("draining_s"),
        *[F.sum(F.col(one) * seconds).alias(f"{one}_sum") for one in (*RATES, *USAGES)],
        *[F.max(one).alias(f"{one}_max") for one in RATES],
        *[F.sum(F.when(F.col(one).isNotNull(), seconds)).alias(f"{one}_stood_s") for one in USAGES],
    )


def added(one: DataFrame, other: DataFrame) -> DataFrame:
    """Return the sum of two frames of `sums`."""
    every = one.unionByName(other.select(*one.columns))
    names = [name for name in one.columns if name not in KEYS]
    return every.groupBy(*KEYS).agg(
        *[(F.max(name) if name.endswith("_max") else F.sum(name)).alias(name) for name in names]
    )


def minutes(closed: DataFrame) -> DataFrame:
    """Return the rows of ``stream_minutes`` for `sums` of complete minutes."""
    minute = F.timestamp_millis("minute_ms")
    known = closed.select(
        *("level", "cluster", "name"),
        minute.alias("minute"),
        F.to_date(minute).alias("date"),
        "reports",
        F.least("stood_s", F.lit(MINUTE_S)).alias("seconds"),
        *[(F.col(f"{one}_sum") / F.col("stood_s")).alias(f"{one}_mean") for one in RATES],
        *[f"{one}_max" for one in RATES],
        *[F.try_divide(f"{one}_sum", f"{one}_stood_s").alias(f"{one}_mean") for one in USAGES],
        "draining_s",
    ).withColumn("usage_mean", usage())
    brokers = known.where(F.col("level") == "broker")
    namespaces = known.where(F.col("level") == "bundle").withColumn("name", namespace_of("name"))
    clusters = brokers.withColumn("name", F.col("cluster"))
    # Draining brokers are not meant to be even.
    compared = F.when(F.col("draining_s").isNull(), F.col("usage_mean"))
    wholes = [
        _together(namespaces, "namespace"),
        _together(clusters.withColumn("usage", compared), "cluster", *_usage()),
    ]
    return union([known, *wholes], missing_columns=True)


def _usage() -> list[Column]:
    *some, _spread = unevenness("usage")
    return some


def _together(rows: DataFrame, level: str, *more: Column) -> DataFrame:
    longest = F.max("seconds")
    return (
        rows.groupBy("cluster", "name", "minute", "date")
        .agg(
            F.sum("reports").alias("reports"),
            longest.alias("seconds"),
            *[
                (F.sum(F.col(f"{one}_mean") * F.col("seconds")) / longest).alias(f"{one}_mean")
                for one in RATES
            ],
            *more,
        )
        .withColumn("level", F.lit(level))
    )

"""Loads per minute: of bundles and brokers from reports, of namespaces and classes from those.

A rate in a minute is the mean over the part of the minute that reports cover (``seconds``), so rate
times seconds is an amount: the amounts of the bundles of a broker add up to that of the broker.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.expressions import weighted_mean
from loadmanager.pipeline.rollup.hashed_names import KEY, keys_of, names_in, with_names
from loadmanager.pipeline.rollup.measures import FRACTIONS, RATES, percentiles
from loadmanager.pipeline.rollup.weights import MINUTE_S, by_minute
from loadmanager.pipeline.tables import namespace_of

COUNTS: Final = ("topics", "producers", "consumers")
USAGES: Final = tuple(f"{resource}_usage" for resource in RESOURCES)
LIMITS: Final = tuple(f"{resource}_limit" for resource in RESOURCES)

BUNDLE: Final = ("cluster", "bundle")
"""The key of a bundle."""


def bundle_names(samples: DataFrame) -> DataFrame:
    """Return all bundles in ``samples``, with their `KEY`, cluster and namespace."""
    return names_in(samples, BUNDLE).withColumn("namespace", namespace_of("bundle"))


def bundle_slices(samples: DataFrame) -> DataFrame:
    """Return the rows of ``bundle_load``, divided into the minutes that they cover."""
    known = samples.select("at_ms", "interval_s", "window_s", *BUNDLE, *keys_of(BUNDLE), *RATES)
    return by_minute(known, [*BUNDLE, *KEY, *RATES])


def bundle_minutes(slices: DataFrame, named: DataFrame | None = None) -> DataFrame:
    """Return one row for each bundle and minute, of `bundle_slices`: mean and maximum of its rates.

    ``named`` are the `bundle_names` of the rows that ``slices`` were made of, which are quicker to
    read than the slices.

    A bundle is reported a few times a minute at most, so percentiles of a minute would add nothing
    to the maximum; hours and days have them.

    While a bundle moves, two brokers may report it for the same seconds: then the mean is over
    both, and the minute still has at most 60 seconds.
    """
    means = [F.sum(F.col(rate) * F.col("seconds")).alias(f"{rate}_sum") for rate in RATES]
    highest = [F.max(rate).alias(f"{rate}_max") for rate in RATES]
    sums = slices.groupBy(*KEY, "minute_ms").agg(
        F.sum("seconds").alias("stood_s"), F.count("*").alias("reports"), *means, *highest
    )
    return with_names(sums, bundle_names(slices) if named is None else named).select(
        *BUNDLE,
        "namespace",
        *_time(),
        "reports",
        F.least("stood_s", F.lit(MINUTE_S)).alias("seconds"),
        *_in_turn(
            [(F.col(f"{rate}_sum") / F.col("stood_s")).alias(f"{rate}_mean") for rate in RATES],
            [F.col(f"{rate}_max") for rate in RATES],
        ),
    )


def broker_slices(reports: DataFrame) -> DataFrame:
    """Return the rows of ``broker_load``, divided into the minutes that they cover."""
    fractions = [
        F.when(F.col(limit) > 0, F.col(usage) / F.col(limit)).alias(fraction)
        for fraction, usage, limit in zip(FRACTIONS, USAGES, LIMITS, strict=True)
    ]
    kept = ["cluster", "broker", "broker_class", "draining", *RATES, *COUNTS, *USAGES, *LIMITS]
    known = reports.select("at_ms", "interval_s", "window_s", *kept, *fractions)
    return by_minute(known, [*kept, *FRACTIONS])


def broker_minutes(slices: DataFrame) -> DataFrame:
    """Return one row for each broker and minute, of `broker_slices`.

    Percentiles of a minute are over the reports that cover a part of it. Usage is in the units of
    history; its mean is null if the resource was not measured.
    """
    seconds = F.col("seconds")
    measured = [
        F.when(F.col(limit) > 0, F.col(usage)) for usage, limit in zip(USAGES, LIMITS, strict=True)
    ]
    sums = slices.groupBy("cluster", "broker", "minute_ms").agg(
        F.max("broker_class").alias("broker_class"),
        F.bool_or("draining").alias("draining"),
        F.count("*").alias("reports"),
        F.least(F.sum(seconds), F.lit(MINUTE_S)).alias("seconds"),
        *[one for measure in (*RATES, *FRACTIONS) for one in _statistics(measure)],
        *[weighted_mean(F.col(name), seconds).alias(f"{name}_mean") for name in COUNTS],
        *[
            weighted_mean(value, seconds).alias(f"{name}_mean")
            for name, value in zip(USAGES, measured, strict=True)
        ],
        *[F.max(name).alias(name) for name in LIMITS],
    )
    return sums.select("*", *_time()).drop("minute_ms")


def _statistics(measure: str) -> list[Column]:
    value = F.col(measure)
    return [
        weighted_mean(value, F.col("seconds")).alias(f"{measure}_mean"),
        *percentiles(value, measure),
        F.max(value).alias(f"{measure}_max"),
    ]


def namespace_minutes(bundles: DataFrame) -> DataFrame:
    """Return one row for each namespace and minute, of `bundle_minutes`: its bundles together."""
    return together(bundles, ["cluster", "namespace"], F.count("*").alias("bundles"))


def class_minutes(brokers: DataFrame) -> DataFrame:
    """Return one row for each class of brokers and minute, of `broker_minutes`.

    The usage of a class is the sum of the usage of its brokers over the sum of their limits.
    """
    used = [
        _used(fraction, usage, limit)
        for fraction, usage, limit in zip(FRACTIONS, USAGES, LIMITS, strict=True)
    ]
    return together(
        brokers, ["cluster", "broker_class"], F.countDistinct("broker").alias("brokers"), *used
    )


def _used(fraction: str, usage: str, limit: str) -> Column:
    usage_mean = F.col(f"{usage}_mean")
    capacity = F.when(usage_mean.isNotNull(), F.col(limit))
    return F.try_divide(F.sum(usage_mean), F.sum(capacity)).alias(f"{fraction}_mean")


def together(minutes: DataFrame, keys: Sequence[str], *more: Column) -> DataFrame:
    """Return the sums of the rates of the rows of each minute by ``keys``.

    They are over the longest part of the minute that any row covers: a row that covers less counts
    proportionally less.
    """
    rates = [
        (F.sum(F.col(f"{rate}_mean") * F.col("seconds")) / F.max("seconds")).alias(f"{rate}_mean")
        for rate in RATES
    ]
    return minutes.groupBy(*keys, "minute", "date").agg(
        F.max("seconds").alias("seconds"), *more, *rates
    )


def _time() -> list[Column]:
    minute = F.timestamp_millis("minute_ms")
    return [minute.alias("minute"), F.to_date(minute).alias("date")]


def _in_turn(means: list[Column], highest: list[Column]) -> list[Column]:
    return [one for pair in zip(means, highest, strict=True) for one in pair]

"""Loads per minute of bundles and brokers from reports, and per hour and day from minutes.

A rate in a minute is the mean over the part of the minute that reports cover (``seconds``), so rate
times seconds is an amount: the amounts of the bundles of a broker add up to that of the broker.

The rates of a report are means over a few seconds before it, and it was published because values
had changed or its predecessor was old: so it covers the time since the previous report, which is
the weight of all means over time. After a long silence it covers at most `CAP_S` before it.

Two hashes of 64 bits stand in place of the name of a bundle (50 characters or more) while minutes
are grouped and shuffled. The probability that two of a million names have the same 128 bits is
about 10^-27 (half the square of their number over 2^128). The hashes do not resist an adversary: a
client that can choose names of bundles to corrupt tables can also send wrong loads.

Durations are measured on a monotonic clock, times on the wall clock: a clock that jumps forward
leaves a gap, and after one that was set back two reports cover the same minutes, with their mean.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DoubleType, StructField

from loadmanager.core.bounds import MINUTE_MS
from loadmanager.core.history.schema import TRAFFIC
from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.contract import column
from loadmanager.pipeline.expressions import weighted_mean
from loadmanager.pipeline.tables import namespace_of

KEY: Final = ("key_1", "key_2")
RATES: Final = tuple(one.name for one in TRAFFIC)
FRACTIONS: Final = tuple(f"{resource}_fraction" for resource in RESOURCES)
"""Usage over limit of each resource; null if it was not measured."""

_UNITS: Final = {
    **{one.name: one.meaning.rstrip(".") for one in TRAFFIC},
    **{
        name: f"Part of the {name.removesuffix('_fraction').replace('_', ' ')} that is used, of 1"
        for name in FRACTIONS
    },
}
_STATISTICS: Final = {"mean": "mean, weighted by time", "max": "highest"}


def statistics(measures: Sequence[str], kept: Sequence[str]) -> list[StructField]:
    """Return the columns of measures, for the statistics in ``kept`` (``mean``, ``max``)."""
    return [
        column(f"{measure}_{one}", DoubleType(), f"{_UNITS[measure]}: {_STATISTICS[one]}.")
        for measure in measures
        for one in kept
    ]


_SEEDS: Final = (1, 2)


def keys_of(names: Sequence[str]) -> list[Column]:
    """Return the columns `KEY` for the columns ``names``, none of which may be null."""
    return [
        F.xxhash64(F.lit(seed), *names).alias(key) for key, seed in zip(KEY, _SEEDS, strict=True)
    ]


def names_in(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the distinct ``names`` in ``rows`` with their `KEY`."""
    return rows.select(*names).distinct().select(*keys_of(names), *names)


def with_names(rows: DataFrame, named: DataFrame) -> DataFrame:
    """Return ``rows`` with their names (`names_in`) in place of their `KEY`.

    All names are broadcast to the executors, about 200 bytes for each.
    """
    return rows.join(F.broadcast(named), list(KEY)).drop(*KEY)


CAP_S: Final = 300.0
"""Five times the longest interval between reports by default."""

UNKNOWN_S: Final = 1.0
"""The time that a report covers if neither its interval nor its window is known."""

MINUTE_S: Final = 60.0

_SHORTEST_MS: Final = 1


def covered_s() -> Column:
    """Return the seconds before a report (``interval_s, window_s``) that it covers."""
    return F.least(F.coalesce("interval_s", "window_s", F.lit(UNKNOWN_S)), F.lit(CAP_S))


def by_minute(reports: DataFrame, kept: Sequence[str]) -> DataFrame:
    """Return one row for each minute that a report covers any part of.

    In: ``at_ms bigint, interval_s double, window_s double`` and the columns ``kept``.
    Out: the columns ``kept``, ``minute_ms bigint`` (its beginning) and ``seconds double``, the
    covered part of the minute. The seconds of the rows of a report add up to its covered time.
    """
    covered_ms = F.greatest(F.floor(covered_s() * 1000 + 0.5), F.lit(_SHORTEST_MS))
    end = F.col("at_ms")
    begin = F.greatest(end - covered_ms, F.lit(0))
    spans = reports.where(end > 0).select(*kept, begin.alias("_begin"), end.alias("_end"))
    rows = spans.select("*", F.explode(_minutes(F.col("_begin"), F.col("_end"))).alias("minute_ms"))
    return rows.select(*kept, "minute_ms", (_overlap_ms() / 1000.0).alias("seconds"))


def _minutes(begin: Column, end: Column) -> Column:
    first, last = _minute_of(begin), _minute_of(end - 1)
    # Most reports cover a part of one minute, and a sequence takes as long as a sum.
    several = F.sequence(first, last, F.lit(MINUTE_MS).cast("bigint"))
    return F.when(first == last, F.array(first)).otherwise(several)


def _minute_of(at_ms: Column) -> Column:
    return at_ms - at_ms % MINUTE_MS


def _overlap_ms() -> Column:
    minute = F.col("minute_ms")
    return F.least("_end", minute + MINUTE_MS) - F.greatest("_begin", minute)


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

    Usage is in the units of history; its mean is null if the resource was not measured.
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
        F.max(value).alias(f"{measure}_max"),
    ]


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


def periods(
    minutes: DataFrame, keys: Sequence[str], measures: Sequence[str], time: str
) -> DataFrame:
    """Return one row for each of ``keys`` and each hour or day (``time`` is hour or date).

    Means are weighted by time, and a minute in which a measure is null takes no part in its mean.
    ``msgs_per_s_std`` and ``bytes_per_s_std`` are standard deviations over minutes, in and out
    together.
    """
    seconds = F.col("seconds")
    aggregates = [F.sum(seconds).alias("seconds"), F.count("*").alias("minutes")]
    for name in measures:
        aggregates.append(weighted_mean(F.col(f"{name}_mean"), seconds).alias(f"{name}_mean"))
        aggregates.append(F.max(f"{name}_max").alias(f"{name}_max"))
    for what in ("msgs", "bytes"):
        both = F.col(f"{what}_in_per_s_mean") + F.col(f"{what}_out_per_s_mean")
        mean, square = weighted_mean(both, seconds), weighted_mean(both * both, seconds)
        off = F.sqrt(F.greatest(square - mean * mean, F.lit(0.0)))
        aggregates.append(off.alias(f"{what}_per_s_std"))
    by = [*keys, "date", *(["hour"] if time == "hour" else [])]
    timed = minutes.withColumn("hour", F.date_trunc("hour", "minute"))
    return timed.groupBy(*by).agg(*aggregates)


def _time() -> list[Column]:
    minute = F.timestamp_millis("minute_ms")
    return [minute.alias("minute"), F.to_date(minute).alias("date")]


def _in_turn(means: list[Column], highest: list[Column]) -> list[Column]:
    return [one for pair in zip(means, highest, strict=True) for one in pair]

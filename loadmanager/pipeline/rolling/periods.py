"""From minutes to hours and days.

Means of hours are exact: those of minutes, weighted by their seconds. Percentiles are over
the means of the minutes, each of which counts once. Days are made of minutes, too, for the
percentile of percentiles is nothing.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.pipeline.rolling.measures import percentiles, weighted_mean


def hours(minutes: DataFrame, keys: Sequence[str], measures: Sequence[str]) -> DataFrame:
    """Return one row for each of ``keys`` and hour: ``hour``, ``date``, and statistics."""
    hour = F.date_trunc("hour", "minute").alias("hour")
    return _over(minutes.withColumn("hour", hour), [*keys, "hour", "date"], measures)


def days(minutes: DataFrame, keys: Sequence[str], measures: Sequence[str]) -> DataFrame:
    """Return one row for each of ``keys`` and day: ``date``, and statistics."""
    return _over(minutes, [*keys, "date"], measures)


def _over(minutes: DataFrame, by: Sequence[str], measures: Sequence[str]) -> DataFrame:
    """Return statistics; the highest is of reports where minutes have one, else of minutes.

    ``msgs_per_s_std`` and ``bytes_per_s_std`` say how far minutes' rates, in and out
    together, are from their mean: the root of the mean square, weighted by time.
    """
    seconds = F.col("seconds")
    return minutes.groupBy(*by).agg(
        F.sum(seconds).alias("seconds"),
        F.count("*").alias("minutes"),
        *[
            one
            for measure in measures
            for one in _statistics(measure, told_max=f"{measure}_max" in minutes.columns)
        ],
        _std(F.col("msgs_in_per_s_mean") + F.col("msgs_out_per_s_mean"), "msgs_per_s"),
        _std(F.col("bytes_in_per_s_mean") + F.col("bytes_out_per_s_mean"), "bytes_per_s"),
    )


def _statistics(measure: str, *, told_max: bool) -> list[Column]:
    mean = F.col(f"{measure}_mean")
    return [
        weighted_mean(mean, F.col("seconds")).alias(f"{measure}_mean"),
        *percentiles(mean, measure),
        F.max(F.col(f"{measure}_max") if told_max else mean).alias(f"{measure}_max"),
    ]


def _std(value: Column, measure: str) -> Column:
    mean = weighted_mean(value, F.col("seconds"))
    square = weighted_mean(value * value, F.col("seconds"))
    return F.sqrt(F.greatest(square - mean * mean, F.lit(0.0))).alias(f"{measure}_std")

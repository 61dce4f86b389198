"""Profiles of bundles by hour of the week, and rankings by traffic and volatility."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.expressions import weighted_mean
from loadmanager.pipeline.rollup.measures import RATES

RANKED: Final = 100
"""The number of bundles of each cluster in a ranking."""

_KEYS: Final = ("cluster", "bundle", "namespace")


def bundle_profiles(hours: DataFrame) -> DataFrame:
    """Return one row for each bundle and reported hour of the week, of ``bundle_hours``.

    ``hour_of_week`` is 0 from Monday 0:00 UTC on. ``weeks`` is the number of weeks with the hour.
    Means are weighted by time; ``_p95`` is the mean of the 95th percentiles of the hours, so that
    one unusual week does not decide it alone.
    """
    hour = F.col("hour")
    # dayofweek counts from 1 on Sunday.
    of_week = (F.dayofweek(hour) + 5) % 7 * 24 + F.hour(hour)
    seconds = F.col("seconds")
    return hours.groupBy(*_KEYS, of_week.cast("int").alias("hour_of_week")).agg(
        F.countDistinct(F.date_trunc("week", hour)).alias("weeks"),
        F.sum(seconds).alias("seconds"),
        *[
            weighted_mean(F.col(f"{rate}_{one}"), seconds).alias(f"{rate}_{one}")
            for rate in RATES
            for one in ("mean", "p95")
        ],
    )


def bundle_ranking(days: DataFrame) -> DataFrame:
    """Return the first `RANKED` bundles of each cluster twice, of ``bundle_days``.

    ``hottest``: by ``share``, the larger of its shares of all messages and of all bytes of the
    cluster (in and out). ``most_volatile``: by ``msgs_per_s_std``, the standard deviation over
    minutes in messages per second, since that is the effect on a broker; ``msgs_std_over_mean``
    relates it to the bundle itself.
    """
    totals = _totals(days)
    hottest = _ranked(totals, "hottest", F.col("share"))
    volatile = _ranked(totals, "most_volatile", F.col("msgs_per_s_std"))
    return hottest.unionByName(volatile)


def _totals(days: DataFrame) -> DataFrame:
    seconds = F.col("seconds")
    msgs = F.col("msgs_in_per_s_mean") + F.col("msgs_out_per_s_mean")
    bytes_ = F.col("bytes_in_per_s_mean") + F.col("bytes_out_per_s_mean")
    square = weighted_mean(msgs * msgs + F.col("msgs_per_s_std") * F.col("msgs_per_s_std"), seconds)
    mean = weighted_mean(msgs, seconds)
    bundles = days.groupBy(*_KEYS).agg(
        F.sum(seconds).alias("seconds"),
        F.sum(msgs * seconds).alias("messages"),
        F.sum(bytes_ * seconds).alias("bytes"),
        mean.alias("msgs_per_s_mean"),
        weighted_mean(bytes_, seconds).alias("bytes_per_s_mean"),
        F.sqrt(F.greatest(square - mean * mean, F.lit(0.0))).alias("msgs_per_s_std"),
    )
    clusters = bundles.groupBy("cluster").agg(
        F.sum("messages").alias("all_messages"), F.sum("bytes").alias("all_bytes")
    )
    return bundles.join(F.broadcast(clusters), "cluster").withColumns(
        {
            "share": F.greatest(_part("messages"), _part("bytes")),
            "msgs_std_over_mean": F.try_divide("msgs_per_s_std", "msgs_per_s_mean"),
        }
    )


def _part(name: str) -> Column:
    return F.coalesce(F.try_divide(F.col(name), F.col(f"all_{name}")), F.lit(0.0))


def _ranked(totals: DataFrame, ranking: str, measure: Column) -> DataFrame:
    in_order = Window.partitionBy("cluster").orderBy(measure.desc(), "bundle")
    ranked = totals.withColumn("rank", F.row_number().over(in_order))
    return ranked.where(F.col("rank") <= RANKED).withColumn("ranking", F.lit(ranking))

"""The imbalance of the brokers of a cluster in each minute.

Four measures of a broker are compared: its score as the leader computed it in rounds; its usage
(the highest of CPU and both bandwidths, which is the default score), its CPU, and its messages.
Draining brokers are left out: they are not meant to be even.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.rollup.minutes import together

COMPARED: Final = ("score", "usage", "cpu", "msgs")

_BY: Final = ["cluster", "minute", "date"]


def cluster_minutes(brokers: DataFrame, rounds: DataFrame) -> DataFrame:
    """Return one row for each cluster and minute, of ``broker_minutes`` and ``rounds``.

    For each of `COMPARED`: ``_mean``; ``_std_over_mean``, the standard deviation of the
    brokers over their mean; ``_max_over_mean``; ``_spread``, the highest less the lowest. A
    ratio is null where the mean is 0. Rates are sums over all brokers.
    """
    loads = (
        brokers.where(~F.col("draining"))
        .withColumns(
            {
                "usage": usage(),
                "cpu": F.col("cpu_fraction_mean"),
                "msgs": F.col("msgs_in_per_s_mean") + F.col("msgs_out_per_s_mean"),
            }
        )
        .groupBy(*_BY)
        .agg(*[one for name in COMPARED[1:] for one in unevenness(name)])
    )
    count = F.countDistinct("broker").alias("brokers")
    capacity = F.when(F.col("cpu_usage_mean").isNotNull(), F.col("cpu_limit"))
    used = F.try_divide(F.sum("cpu_usage_mean"), F.sum(capacity)).alias("cpu_fraction_mean")
    every = together(brokers, ["cluster"], count, used)
    scores = broker_scores(rounds).groupBy(*_BY).agg(*unevenness("score"))
    return every.join(loads, _BY, "left").join(scores, _BY, "left")


def usage() -> Column:
    """Return the usage of a broker in a minute; null if no resource was measured."""
    return F.greatest(
        "cpu_fraction_mean", "bandwidth_in_fraction_mean", "bandwidth_out_fraction_mean"
    )


def broker_scores(rounds: DataFrame) -> DataFrame:
    """Return the mean score of each broker in the rounds of each minute: cluster, minute, score."""
    seen = rounds.select(
        "cluster", F.date_trunc("minute", "at").alias("minute"), F.explode("brokers").alias("seen")
    )
    return (
        seen.where(~F.col("seen.draining"))
        .groupBy("cluster", "minute", F.col("seen.broker").alias("broker"))
        .agg(F.avg("seen.score").alias("score"))
        .withColumn("date", F.to_date("minute"))
    )


def unevenness(name: str) -> list[Column]:
    """Return aggregates over brokers: mean, deviation and maximum over the mean, and spread."""
    mean, highest = F.avg(name), F.max(name)
    positive = F.when(mean > 0, mean)
    return [
        mean.alias(f"{name}_mean"),
        (F.stddev_pop(name) / positive).alias(f"{name}_std_over_mean"),
        (highest / positive).alias(f"{name}_max_over_mean"),
        (highest - F.min(name)).alias(f"{name}_spread"),
    ]

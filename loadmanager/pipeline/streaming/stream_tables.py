"""The tables that the stream makes."""

from typing import Final

from pyspark.sql.types import (
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from loadmanager.pipeline.contract import Table, column
from loadmanager.pipeline.rollup.measures import RATES, statistics

USAGES: Final = ("cpu_fraction", "bandwidth_in_fraction", "bandwidth_out_fraction")
"""What a broker's usage is the highest of."""

STREAM_MINUTES: Final = Table(
    name="stream_minutes",
    job="stream",
    meaning="A broker, bundle, namespace or cluster in a minute that is over.",
    schema=StructType(
        [
            column("level", StringType(), "broker, bundle, namespace or cluster."),
            column("cluster", StringType(), "Name of the cluster."),
            column("name", StringType(), "Of the broker, bundle, namespace or cluster."),
            column("minute", TimestampType(), "Beginning of the minute, UTC."),
            column("date", DateType(), "Day in UTC."),
            column("reports", LongType(), "Reports that stand for a part of it."),
            column("seconds", DoubleType(), "How much of the time reports stand for."),
            *statistics(RATES, ("mean", "max")),
            *statistics(USAGES, ("mean",)),
            column("usage_mean", DoubleType(), "Highest usage of a broker; mean of a cluster's."),
            column("usage_std_over_mean", DoubleType(), "Of a cluster's brokers."),
            column("usage_max_over_mean", DoubleType(), "Of a cluster's brokers."),
        ]
    ),
)
STREAM_ALERTS: Final = Table(
    name="stream_alerts",
    job="stream",
    meaning="Alerts about minutes, and about lines that came too late for theirs.",
    schema=StructType(
        [
            column("at", TimestampType(), "When it was known, by the reports' clock."),
            column("cluster", StringType(), "Name of the cluster."),
            column("kind", StringType(), "imbalance, saturated, silent or late."),
            column("event", StringType(), "began, ended, or told."),
            column("subject", StringType(), "Broker, or empty for the cluster."),
            column("since", TimestampType(), "The first minute of it."),
            column("minutes", LongType(), "How many minutes in a row; late: reports."),
            column("value", DoubleType(), "The highest of the minutes, or null."),
            column("text", StringType(), "The line that was printed."),
        ]
    ),
)

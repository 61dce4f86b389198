"""The tables of the job ``stream``."""

from typing import Final

from loadmanager.pipeline.contract import Table, columns
from loadmanager.pipeline.rollup.measures import RATES, statistics

USAGES: Final = ("cpu_fraction", "bandwidth_in_fraction", "bandwidth_out_fraction")
"""The usage of a broker is the highest of these."""

STREAM_MINUTES: Final = Table(
    name="stream_minutes",
    job="stream",
    meaning="A broker, bundle, namespace or cluster in a minute that is over.",
    schema=columns(
        """
        level string broker, bundle, namespace or cluster.
        cluster string Name of the cluster.
        name string Of the broker, bundle, namespace or cluster.
        minute timestamp Beginning of the minute, UTC.
        date date Day in UTC.
        reports bigint Reports that stand for a part of it.
        seconds double How much of the time reports stand for.
        """,
        statistics(RATES, ("mean", "max")),
        statistics(USAGES, ("mean",)),
        """
        usage_mean double Highest usage of a broker; mean of a cluster's.
        usage_std_over_mean double Of a cluster's brokers.
        usage_max_over_mean double Of a cluster's brokers.
        """,
    ),
)
STREAM_ALERTS: Final = Table(
    name="stream_alerts",
    job="stream",
    meaning="Alerts about minutes, and about lines that came too late for theirs.",
    schema=columns(
        """
        at timestamp When it was known, by the reports' clock.
        cluster string Name of the cluster.
        kind string imbalance, saturated, silent or late.
        event string began, ended, or told.
        subject string Broker, or empty for the cluster.
        since timestamp The first minute of it.
        minutes bigint How many minutes in a row; late: reports.
        value double The highest of the minutes, or null.
        text string The line that was printed.
        """
    ),
)

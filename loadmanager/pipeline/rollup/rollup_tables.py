"""The tables that rollup makes: what each row is, and what its columns mean."""

from collections.abc import Iterable
from typing import Final

from pyspark.sql.types import (
    BooleanType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from loadmanager.core.history.schema import SHORT_AND_LONG
from loadmanager.pipeline.contract import Table, column
from loadmanager.pipeline.rollup.imbalance import COMPARED
from loadmanager.pipeline.rollup.measures import FRACTIONS, RATES, statistics
from loadmanager.pipeline.rollup.minutes import COUNTS, LIMITS, USAGES

_CLUSTER: Final = column("cluster", StringType(), "Name of the cluster.")
_BUNDLE: Final = column("bundle", StringType(), "tenant/namespace/0xLLLLLLLL_0xUUUUUUUU")
_NAMESPACE: Final = column("namespace", StringType(), "tenant/namespace")
_BROKER: Final = column("broker", StringType(), "Broker.")
_CLASS: Final = column("broker_class", StringType(), "Class of the broker, empty if not set.")
_MINUTE: Final = column("minute", TimestampType(), "Beginning of the minute, UTC.")
_HOUR: Final = column("hour", TimestampType(), "Beginning of the hour, UTC.")
_DATE: Final = column("date", DateType(), "Day in UTC.")
_REPORTS: Final = column("reports", LongType(), "Reports that stand for a part of it.")
_MINUTES: Final = column("minutes", LongType(), "Minutes of which anything is known.")
_SECONDS: Final = column("seconds", DoubleType(), "How much of the time reports stand for.")
_BROKERS: Final = column("brokers", LongType(), "Number of brokers.")
_BUNDLES: Final = column("bundles", LongType(), "Number of bundles.")
_STDS: Final = (
    column("msgs_per_s_std", DoubleType(), "Deviation of minutes' messages, in and out together."),
    column("bytes_per_s_std", DoubleType(), "Deviation of minutes' bytes, in and out together."),
)
_ALL: Final = ("mean", "p50", "p95", "p99", "max")


def _table(name: str, meaning: str, fields: Iterable[StructField], *, dated: bool = True) -> Table:
    by = ("date",) if dated else ()
    return Table(name=name, job="rollup", meaning=meaning, schema=StructType(list(fields)), by=by)


def _doubles(*columns: tuple[str, str]) -> list[StructField]:
    return [column(name, DoubleType(), meaning) for name, meaning in columns]


BROKER_MINUTES: Final = _table(
    "broker_minutes",
    "A broker in a minute; percentiles are over its reports.",
    [
        *(_CLUSTER, _BROKER, _CLASS, _MINUTE, _DATE, _REPORTS, _SECONDS),
        column("draining", BooleanType(), "Whether it was being emptied for any part of it."),
        *statistics((*RATES, *FRACTIONS), _ALL),
        *_doubles(*((f"{name}_mean", f"Mean number of {name}.") for name in COUNTS)),
        *_doubles(*((f"{name}_mean", "Mean use; null: not measured.") for name in USAGES)),
        *_doubles(*((name, "How much there is. 0: not measured.") for name in LIMITS)),
    ],
)
BUNDLE_MINUTES: Final = _table(
    "bundle_minutes",
    "A bundle in a minute.",
    [
        *(_CLUSTER, _BUNDLE, _NAMESPACE, _MINUTE, _DATE, _REPORTS, _SECONDS),
        *statistics(RATES, ("mean", "max")),
    ],
)
NAMESPACE_MINUTES: Final = _table(
    "namespace_minutes",
    "A namespace in a minute: its bundles together.",
    [_CLUSTER, _NAMESPACE, _MINUTE, _DATE, _SECONDS, _BUNDLES, *statistics(RATES, ("mean",))],
)
CLASS_MINUTES: Final = _table(
    "class_minutes",
    "All brokers of one class in a minute, together.",
    [
        *(_CLUSTER, _CLASS, _MINUTE, _DATE, _SECONDS, _BROKERS),
        *statistics((*RATES, *FRACTIONS), ("mean",)),
    ],
)
CLUSTER_MINUTES: Final = _table(
    "cluster_minutes",
    "A cluster in a minute: its traffic, and how unevenly its brokers are loaded.",
    [
        *(_CLUSTER, _MINUTE, _DATE, _SECONDS, _BROKERS),
        *statistics((*RATES, "cpu_fraction"), ("mean",)),
        *_doubles(
            *(
                (f"{name}_{what}", f"Brokers' {name}: {meaning}.")
                for name in COMPARED
                for what, meaning in (
                    ("mean", "mean"),
                    ("std_over_mean", "standard deviation over mean"),
                    ("max_over_mean", "highest over mean"),
                    ("spread", "highest less lowest"),
                )
            )
        ),
    ],
)


def _periods(subject: str, keys: tuple[StructField, ...], measures: tuple[str, ...]) -> list[Table]:
    meanings = [_SECONDS, _MINUTES, *statistics(measures, _ALL), *_STDS]
    of = "Percentiles are over the means of its minutes."
    return [
        _table(
            f"{subject}_hours", f"A {subject} in an hour. {of}", [*keys, _HOUR, _DATE, *meanings]
        ),
        _table(f"{subject}_days", f"A {subject} in a day. {of}", [*keys, _DATE, *meanings]),
    ]


BROKER_HOURS, BROKER_DAYS = _periods("broker", (_CLUSTER, _BROKER, _CLASS), (*RATES, *FRACTIONS))
BUNDLE_HOURS, BUNDLE_DAYS = _periods("bundle", (_CLUSTER, _BUNDLE, _NAMESPACE), RATES)
NAMESPACE_HOURS, NAMESPACE_DAYS = _periods("namespace", (_CLUSTER, _NAMESPACE), RATES)
CLASS_HOURS, CLASS_DAYS = _periods("class", (_CLUSTER, _CLASS), (*RATES, *FRACTIONS))

BUNDLE_PROFILES: Final = _table(
    "bundle_profiles",
    "A bundle in an hour of the week, over all weeks.",
    [
        *(_CLUSTER, _BUNDLE, _NAMESPACE),
        column("hour_of_week", IntegerType(), "0 to 167, from Monday 0:00 UTC on."),
        column("weeks", LongType(), "In how many weeks it was seen."),
        _SECONDS,
        *statistics(RATES, ("mean", "p95")),
    ],
    dated=False,
)
BUNDLE_RANKING: Final = _table(
    "bundle_ranking",
    "The first hundred bundles by their part of the traffic, and by how much they vary.",
    [
        _CLUSTER,
        column("ranking", StringType(), "hottest (by share) or most_volatile (by msgs_per_s_std)."),
        column("rank", IntegerType(), "From 1."),
        *(_BUNDLE, _NAMESPACE, _SECONDS),
        *_doubles(
            ("share", "The larger of its parts of all messages and of all bytes, of 1."),
            ("msgs_per_s_mean", "Messages, in and out together: mean by time."),
            ("bytes_per_s_mean", "Bytes, in and out together: mean by time."),
            ("msgs_per_s_std", "Deviation of minutes' messages from their mean."),
            ("msgs_std_over_mean", "The same over the mean; null where that is 0."),
        ),
    ],
    dated=False,
)
_AT_BASE: Final = (
    _CLUSTER,
    column("writer", StringType(), "The leader's broker."),
    column("epoch", LongType(), "Epoch of its term."),
)
AVERAGES: Final = _table(
    "averages",
    "A bundle's short- and long-term averages as the leader had them at the end of the history.",
    [
        *_AT_BASE,
        *(_BUNDLE, _NAMESPACE),
        column("at", TimestampType(), "When the leader took the last sample of all, or decided."),
        column("ticks", LongType(), "Samples taken after they were recorded last; 0: as recorded."),
        *(column(one.name, DoubleType(), one.meaning) for one in SHORT_AND_LONG),
        column("short_samples", IntegerType(), "Samples in the short-term average, at most 10."),
        column("long_samples", IntegerType(), "Samples in the long-term average, at most 1000."),
        column("topics", LongType(), "Topics at the last sample."),
    ],
    dated=False,
)
AVERAGE_CHECKS: Final = _table(
    "average_checks",
    "Averages that were recorded, beside those computed from the record before, reports and ticks.",
    [
        *_AT_BASE,
        column("round", LongType(), "The base round that recorded them."),
        column("at", TimestampType(), "When it was decided."),
        _DATE,
        column("ticks", LongType(), "Samples since the base round before."),
        column("bundles", LongType(), "Bundles that are recorded, cut ones left out."),
        column("equal", LongType(), "Of those, whose averages and counts are the same to the bit."),
        column("cut", LongType(), "Bundles left out: they were split or merged in between."),
        column("missing_reports", LongType(), "Reports the leader had that history lacks."),
        column("largest_difference", DoubleType(), "Of any rate, relative to the recorded one."),
    ],
)

ROLLUP: Final = (
    *(BROKER_MINUTES, BROKER_HOURS, BROKER_DAYS),
    *(BUNDLE_MINUTES, BUNDLE_HOURS, BUNDLE_DAYS),
    *(NAMESPACE_MINUTES, NAMESPACE_HOURS, NAMESPACE_DAYS),
    *(CLASS_MINUTES, CLASS_HOURS, CLASS_DAYS),
    *(CLUSTER_MINUTES, BUNDLE_PROFILES, BUNDLE_RANKING, AVERAGES, AVERAGE_CHECKS),
)
"""All of them."""

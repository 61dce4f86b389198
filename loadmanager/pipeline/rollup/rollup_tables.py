"""The tables of the job ``rollup``."""

from typing import Final

from pyspark.sql.types import StructField

from loadmanager.core.history.schema import SHORT_AND_LONG
from loadmanager.pipeline.contract import Declared, Table, columns
from loadmanager.pipeline.rollup.imbalance import COMPARED
from loadmanager.pipeline.rollup.measures import FRACTIONS, RATES, statistics
from loadmanager.pipeline.rollup.minutes import COUNTS, LIMITS, USAGES
from loadmanager.pipeline.tables import plain

_COMMON: Final = {
    one.name: one
    for one in columns(
        """
        cluster string Name of the cluster.
        bundle string tenant/namespace/0xLLLLLLLL_0xUUUUUUUU
        namespace string tenant/namespace
        broker string Broker.
        broker_class string Class of the broker, empty if not set.
        minute timestamp Beginning of the minute, UTC.
        hour timestamp Beginning of the hour, UTC.
        date date Day in UTC.
        reports bigint Reports that stand for a part of it.
        minutes bigint Minutes of which anything is known.
        seconds double How much of the time reports stand for.
        brokers bigint Number of brokers.
        bundles bigint Number of bundles.
        msgs_per_s_std double Deviation of minutes' messages, in and out together.
        bytes_per_s_std double Deviation of minutes' bytes, in and out together.
        writer string The leader's broker.
        epoch bigint Epoch of its term.
        """
    )
}
_ALL: Final = ("mean", "p50", "p95", "p99", "max")


def _table(name: str, meaning: str, common: str, *more: Declared) -> Table:
    """Return a table with some of the `_COMMON` columns, and ``more``."""
    shared = [_COMMON[one] for one in common.split()]
    schema = columns(shared, *more)
    by = ("date",) if "date" in schema.names else ()
    return Table(name=name, job="rollup", meaning=meaning, schema=schema, by=by)


def _doubles(*declared: tuple[str, str]) -> list[StructField]:
    return list(columns("\n".join(f"{name} double {meaning}" for name, meaning in declared)))


BROKER_MINUTES: Final = _table(
    "broker_minutes",
    "A broker in a minute; percentiles are over its reports.",
    "cluster broker broker_class minute date reports seconds",
    "draining boolean Whether it was being emptied for any part of it.",
    statistics((*RATES, *FRACTIONS), _ALL),
    _doubles(
        *((f"{name}_mean", f"Mean number of {name}.") for name in COUNTS),
        *((f"{name}_mean", "Mean use; null: not measured.") for name in USAGES),
        *((name, "How much there is. 0: not measured.") for name in LIMITS),
    ),
)
BUNDLE_MINUTES: Final = _table(
    "bundle_minutes",
    "A bundle in a minute.",
    "cluster bundle namespace minute date reports seconds",
    statistics(RATES, ("mean", "max")),
)
NAMESPACE_MINUTES: Final = _table(
    "namespace_minutes",
    "A namespace in a minute: its bundles together.",
    "cluster namespace minute date seconds bundles",
    statistics(RATES, ("mean",)),
)
CLUSTER_MINUTES: Final = _table(
    "cluster_minutes",
    "A cluster in a minute: its traffic, and how unevenly its brokers are loaded.",
    "cluster minute date seconds brokers",
    statistics((*RATES, "cpu_fraction"), ("mean",)),
    _doubles(
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
)


def _periods(subject: str, keys: str, measures: tuple[str, ...]) -> list[Table]:
    deviations = [_COMMON["msgs_per_s_std"], _COMMON["bytes_per_s_std"]]
    return [
        _table(
            f"{subject}_{length}s",
            f"A {subject} in {a} {length}. Percentiles are over the means of its minutes.",
            f"{keys} {time} seconds minutes",
            statistics(measures, _ALL),
            deviations,
        )
        for a, length, time in (("an", "hour", "hour date"), ("a", "day", "date"))
    ]


BROKER_HOURS, BROKER_DAYS = _periods("broker", "cluster broker broker_class", (*RATES, *FRACTIONS))
BUNDLE_HOURS, BUNDLE_DAYS = _periods("bundle", "cluster bundle namespace", RATES)
NAMESPACE_HOURS, NAMESPACE_DAYS = _periods("namespace", "cluster namespace", RATES)

BUNDLE_PROFILES: Final = _table(
    "bundle_profiles",
    "A bundle in an hour of the week, over all weeks.",
    "cluster bundle namespace",
    """
    hour_of_week int 0 to 167, from Monday 0:00 UTC on.
    weeks bigint In how many weeks it was seen.
    """,
    _COMMON["seconds"],
    statistics(RATES, ("mean", "p95")),
)
BUNDLE_RANKING: Final = _table(
    "bundle_ranking",
    "The first hundred bundles by their part of the traffic, and by how much they vary.",
    "cluster",
    """
    ranking string hottest (by share) or most_volatile (by msgs_per_s_std).
    rank int From 1.
    """,
    [_COMMON[one] for one in ("bundle", "namespace", "seconds")],
    """
    share double The larger of its parts of all messages and of all bytes, of 1.
    msgs_per_s_mean double Messages, in and out together: mean by time.
    bytes_per_s_mean double Bytes, in and out together: mean by time.
    msgs_per_s_std double Deviation of minutes' messages from their mean.
    msgs_std_over_mean double The same over the mean; null where that is 0.
    """,
)
AVERAGES: Final = _table(
    "averages",
    "A bundle's short- and long-term averages as the leader had them at the end of the history.",
    "cluster writer epoch bundle namespace",
    """
    at timestamp When the leader took the last sample of all, or decided.
    ticks bigint Samples taken after they were recorded last; 0: as recorded.
    """,
    plain(SHORT_AND_LONG),
    """
    short_samples int Samples in the short-term average, at most 10.
    long_samples int Samples in the long-term average, at most 1000.
    topics bigint Topics at the last sample.
    """,
)

ROLLUP: Final = (
    *(BROKER_MINUTES, BROKER_HOURS, BROKER_DAYS),
    *(BUNDLE_MINUTES, BUNDLE_HOURS, BUNDLE_DAYS),
    *(NAMESPACE_MINUTES, NAMESPACE_HOURS, NAMESPACE_DAYS),
    *(CLUSTER_MINUTES, BUNDLE_PROFILES, BUNDLE_RANKING, AVERAGES),
)
"""All of them."""

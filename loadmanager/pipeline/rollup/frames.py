"""The frames of all tables of a rollup, in the order in which they are written.

For the imbalance of a cluster in a minute four measures of a broker are compared: its score as the
leader computed it in rounds; its usage (the highest of CPU and both bandwidths, which is the
default score), its CPU, and its messages. Draining brokers are left out: they are not meant to be
even.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructField

from loadmanager.core.history.schema import SHORT_AND_LONG
from loadmanager.pipeline.contract import Declared, Table, columns
from loadmanager.pipeline.expressions import weighted_mean
from loadmanager.pipeline.rollup.leader_averages import latest_averages
from loadmanager.pipeline.rollup.minutes import (
    BUNDLE,
    COUNTS,
    FRACTIONS,
    LIMITS,
    RATES,
    USAGES,
    broker_minutes,
    broker_slices,
    bundle_minutes,
    bundle_names,
    bundle_slices,
    periods,
    statistics,
    together,
)
from loadmanager.pipeline.rollup.scope import Scope
from loadmanager.pipeline.store import Made, Store
from loadmanager.pipeline.tables import namespace_of, plain

RANKED: Final = 100
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
        msgs_per_s_std double Deviation of minutes' messages, in and out together.
        bytes_per_s_std double Deviation of minutes' bytes, in and out together.
        writer string The leader's broker.
        epoch bigint Epoch of its term.
        """
    )
}
_BOTH: Final = ("mean", "max")
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
    "A broker in a minute.",
    "cluster broker broker_class minute date reports seconds",
    "draining boolean Whether it was being emptied for any part of it.",
    statistics((*RATES, *FRACTIONS), _BOTH),
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
            f"A {subject} in {a} {length}.",
            f"{keys} {time} seconds minutes",
            statistics(measures, _BOTH),
            deviations,
        )
        for a, length, time in (("an", "hour", "hour date"), ("a", "day", "date"))
    ]


BROKER_HOURS, BROKER_DAYS = _periods("broker", "cluster broker broker_class", (*RATES, *FRACTIONS))
BUNDLE_HOURS, BUNDLE_DAYS = _periods("bundle", "cluster bundle namespace", RATES)

BUNDLE_PROFILES: Final = _table(
    "bundle_profiles",
    "A bundle in an hour of the week, over all weeks.",
    "cluster bundle namespace",
    """
    hour_of_week int 0 to 167, from Monday 0:00 UTC on.
    weeks bigint In how many weeks it was seen.
    """,
    _COMMON["seconds"],
    statistics(RATES, ("mean",)),
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
    *(CLUSTER_MINUTES, BUNDLE_PROFILES, BUNDLE_RANKING, AVERAGES),
)
"""All of them."""


"""The number of bundles of each cluster in a ranking."""

_KEYS: Final = ("cluster", "bundle", "namespace")


def bundle_profiles(hours: DataFrame) -> DataFrame:
    """Return one row for each bundle and reported hour of the week, of ``bundle_hours``.

    ``hour_of_week`` is 0 from Monday 0:00 UTC on. ``weeks`` is the number of weeks with the hour.
    Means are weighted by time.
    """
    hour = F.col("hour")
    # dayofweek counts from 1 on Sunday.
    of_week = (F.dayofweek(hour) + 5) % 7 * 24 + F.hour(hour)
    seconds = F.col("seconds")
    return hours.groupBy(*_KEYS, of_week.cast("int").alias("hour_of_week")).agg(
        F.countDistinct(F.date_trunc("week", hour)).alias("weeks"),
        F.sum(seconds).alias("seconds"),
        *[weighted_mean(F.col(f"{rate}_mean"), seconds).alias(f"{rate}_mean") for rate in RATES],
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


Read = Callable[[str], DataFrame]

_SUBJECTS = (
    ("broker", ("cluster", "broker", "broker_class"), (*RATES, *FRACTIONS)),
    ("bundle", BUNDLE, RATES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Makes the frames of the days of ``scope``, and adds other days from the former version."""

    store: Store
    scope: Scope
    _made: dict[Table, Made] = field(default_factory=dict)
    _kept: dict[str, DataFrame] = field(default_factory=dict)

    def every(self) -> dict[Table, Made]:
        """Return the maker of each table of `ROLLUP`; it can read tables written before."""
        by_name = {one.name: one for one in ROLLUP}
        self._add(BROKER_MINUTES, lambda _: self._broker_minutes())
        self._add(BUNDLE_MINUTES, lambda _: self._bundle_minutes())
        self._add(CLUSTER_MINUTES, self._cluster_minutes)
        for subject, keys, measures in _SUBJECTS:
            for length, time in (("hours", "hour"), ("days", "date")):
                make = partial(self._periods, subject, keys, measures, time)
                self._add(by_name[f"{subject}_{length}"], make)
        self._made[BUNDLE_PROFILES] = lambda read: bundle_profiles(read("bundle_hours"))
        self._made[BUNDLE_RANKING] = lambda read: bundle_ranking(read("bundle_days"))
        self._made[AVERAGES] = lambda _: self._latest_averages()
        return self._made

    def close(self) -> None:
        """Release the frames that were persisted while tables were written."""
        for frame in self._kept.values():
            frame.unpersist()
        self._kept.clear()

    def _once(self, what: str, make: Callable[[], DataFrame]) -> DataFrame:
        """Return a frame that is made once and persisted until `close`."""
        if what not in self._kept:
            self._kept[what] = make().persist(StorageLevel.DISK_ONLY)
        return self._kept[what]

    def _add(self, table: Table, make: Made) -> None:
        """Add a table that is partitioned by date: some days are computed, the others copied."""

        def both(read: Read) -> DataFrame:
            fresh = table.conform(make(read))
            if self.scope.days is None:
                return fresh
            return fresh.unionByName(self.scope.kept(self.store.table(table.name)))

        self._made[table] = both

    def _to_recompute(self, read: Read, subject: str) -> DataFrame:
        return self.scope.anew(read(f"{subject}_minutes"))

    def _periods(
        self, subject: str, keys: tuple[str, ...], measures: tuple[str, ...], time: str, read: Read
    ) -> DataFrame:
        found = periods(self._to_recompute(read, subject), keys, measures, time)
        return found.withColumn("namespace", namespace_of("bundle")) if keys == BUNDLE else found

    def _broker_minutes(self) -> DataFrame:
        reports = self.scope.read(self.store.table("broker_load"))
        return broker_minutes(self.scope.minutes(broker_slices(reports)))

    def _bundle_minutes(self) -> DataFrame:
        slices = self.scope.minutes(bundle_slices(self._samples()))
        return bundle_minutes(slices, self._bundle_names())

    def _bundle_names(self) -> DataFrame:
        return self._once("names of bundles", lambda: bundle_names(self._samples()))

    def _samples(self) -> DataFrame:
        return self.scope.read(self.store.table("bundle_load"))

    def _cluster_minutes(self, read: Read) -> DataFrame:
        rounds = self.scope.anew(self.store.table("rounds"))
        return cluster_minutes(self._to_recompute(read, "broker"), rounds)

    def _latest_averages(self) -> DataFrame:
        def table(name: str) -> DataFrame:
            found = self.store.table(name)
            reported = name in {"broker_load", "bundle_load"}
            return found if reported else self.scope.between(found, F.col("at"))

        return latest_averages(table)

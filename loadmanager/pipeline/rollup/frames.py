"""The frames of all tables of a rollup, in the order in which they are written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.bounds import DAY_MS, HOUR_MS
from loadmanager.pipeline.contract import Table
from loadmanager.pipeline.rollup import rollup_tables as t
from loadmanager.pipeline.rollup.hashed_names import KEY, keys_of, names_in, with_names
from loadmanager.pipeline.rollup.imbalance import cluster_minutes
from loadmanager.pipeline.rollup.leader_averages import LeaderHistory, latest_averages
from loadmanager.pipeline.rollup.measures import FRACTIONS, RATES
from loadmanager.pipeline.rollup.minutes import (
    BUNDLE,
    broker_minutes,
    broker_slices,
    bundle_minutes,
    bundle_names,
    bundle_slices,
    namespace_minutes,
)
from loadmanager.pipeline.rollup.period_rows import DAY, periods_of
from loadmanager.pipeline.rollup.profiles import bundle_profiles, bundle_ranking
from loadmanager.pipeline.rollup.scope import Scope
from loadmanager.pipeline.store import Made, Store


def longer(
    minutes: DataFrame,
    keys: Sequence[str],
    measures: Sequence[str],
    named: DataFrame | None = None,
) -> DataFrame:
    """Return one row for each of ``keys`` and each hour and day, from which both are selected.

    ``named`` (`names_in`) has the names of all ``keys``, and columns that depend on them; without
    it the names are taken from the minutes.

    The minutes are sorted once for both. A caller that uses both should persist the result, which
    has about a sixtieth of the rows.
    """
    periods = periods_of(measures, minutes.columns)
    numbered = minutes.select(
        *keys_of(keys), F.unix_millis("minute").alias("minute_ms"), *periods.read
    )
    # A worker gets all minutes of a key and day together and need not buffer others. Spark sorts by
    # one number without comparing rows.
    day = F.xxhash64(*KEY, F.floor(F.col("minute_ms") / DAY_MS))
    by_day = numbered.withColumn(DAY, day).repartition(DAY).sortWithinPartitions(DAY)
    found = by_day.mapInArrow(periods.computed, periods.schema)
    return with_names(found, names_in(minutes, keys) if named is None else named)


def hours(periods: DataFrame) -> DataFrame:
    """Return one row for each key and hour of `longer`: ``hour``, ``date``, and statistics."""
    return _of_length(periods, HOUR_MS).withColumnRenamed("period", "hour")


def days(periods: DataFrame) -> DataFrame:
    """Return one row for each key and day of `longer`: ``date``, and statistics."""
    return _of_length(periods, DAY_MS).drop("period")


def _of_length(periods: DataFrame, length_ms: int) -> DataFrame:
    period = F.timestamp_millis("period_ms")
    those = periods.where(F.col("length_ms") == length_ms).drop("length_ms")
    return those.withColumns({"period": period, "date": F.to_date(period)}).drop("period_ms")


Read = Callable[[str], DataFrame]

_SUBJECTS = (
    ("broker", ("cluster", "broker", "broker_class"), (*RATES, *FRACTIONS)),
    ("bundle", BUNDLE, RATES),
    ("namespace", ("cluster", "namespace"), RATES),
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
        by_name = {one.name: one for one in t.ROLLUP}
        self._add(t.BROKER_MINUTES, lambda _: self._broker_minutes())
        self._add(t.BUNDLE_MINUTES, lambda _: self._bundle_minutes())
        self._add(
            t.NAMESPACE_MINUTES, lambda read: namespace_minutes(self._to_recompute(read, "bundle"))
        )
        self._add(t.CLUSTER_MINUTES, self._cluster_minutes)
        for subject, keys, measures in _SUBJECTS:
            periods = partial(self._periods, subject, keys, measures)
            for length, chosen in (("hours", hours), ("days", days)):
                self._add(by_name[f"{subject}_{length}"], partial(_chosen, chosen, periods))
        self._made[t.BUNDLE_PROFILES] = lambda read: bundle_profiles(read("bundle_hours"))
        self._made[t.BUNDLE_RANKING] = lambda read: bundle_ranking(read("bundle_days"))
        self._made[t.AVERAGES] = lambda _: self._latest_averages()
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
        self, subject: str, keys: tuple[str, ...], measures: tuple[str, ...], read: Read
    ) -> DataFrame:
        """Return hours and days of a subject, computed once and persisted until `close`."""
        named = self._bundle_names() if subject == "bundle" else None
        return self._once(
            subject, lambda: longer(self._to_recompute(read, subject), keys, measures, named)
        )

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
        at = F.col("at")
        tables = {
            name: self.scope.between(self.store.table(name), at)
            for name in ("rounds", "ticks", "bundle_averages")
        }
        load = self.store.table("bundle_load")
        return latest_averages(LeaderHistory(**tables, bundle_load=load))


def _chosen(chosen: Callable[[DataFrame], DataFrame], periods: Made, read: Read) -> DataFrame:
    return chosen(periods(read))

"""Rollup as a job: only what new batches touch is computed, and it comes to the same as all."""

import gzip
import io
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from load_rows import FIRST, NOON_MS, SECOND, report, reports, sample, samples
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.core.ids import BundleId
from loadmanager.core.seed import read_seed
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.rollup import job as rollup
from loadmanager.pipeline.rollup.frames import (
    BROKER_MINUTES,
    BUNDLE_DAYS,
    BUNDLE_MINUTES,
    ROLLUP,
    Frames,
)
from loadmanager.pipeline.rollup.minutes import bundle_minutes, bundle_slices
from loadmanager.pipeline.rollup.scope import Scope, facts_of, scope_of
from loadmanager.pipeline.store import Store
from loadmanager.pipeline.tables import DUPLICATES, INGESTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
SOME = (BROKER_MINUTES, BUNDLE_MINUTES, BUNDLE_DAYS)
DAY_S = 86_400.0
# From noon of the 5th on: the last but one a minute after midnight, which stands for the last
# minute of the day before, too.
AT_S = (60.0, 120.0, DAY_S + 60.0, 1.5 * DAY_S + 60.0, 2.6 * DAY_S)
LATE_S = (1.4 * DAY_S, 1.5 * DAY_S + 180.0)


def put(spark: "SparkSession", store: Store, batch: int, *at_s: float) -> None:
    bundles = [
        sample(at, at % 977 if bundle == FIRST else 1.0, bundle=bundle, interval_s=120.0)
        for at in at_s
        for bundle in (FIRST, SECOND)
    ]
    brokers = [report(at, at % 977 + 1.0, interval_s=120.0) for at in at_s]
    frames = {"bundle_load": samples(spark, bundles), "broker_load": reports(spark, brokers)}
    for name, frame in frames.items():
        store.put(INGESTED[name], batch, frame)
    store.commit(batch, {"tables": list(frames), "files": {}, "totals": {}})


def roll_up_some(spark: "SparkSession", store: Store) -> Scope:
    """Make some of the tables, as the job does; return what was computed anew."""
    work = Work(spark=spark, store=store)
    facts, scope = facts_of(work), scope_of(work, store.facts("rollup"))
    every = Frames(store=store, scope=scope).every()
    store.replace("rollup", {table: every[table] for table in SOME}, facts)
    return scope


def rows_of(store: Store, name: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, store.table(name).collect()), key=str)


@pytest.fixture(scope="module")
def at_once(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> tuple[Store, list[str]]:
    """Return a store that was rolled up by the job when it had everything, and what was told."""
    store = Store(spark, str(tmp_path_factory.mktemp("at_once")))
    put(spark, store, 1, *AT_S)
    put(spark, store, 2, *LATE_S)
    return store, rollup.run(Work(spark=spark, store=store))


def test_what_a_late_batch_touches_is_computed_anew_and_comes_to_what_all_at_once_does(
    spark: "SparkSession", at_once: tuple[Store, list[str]], tmp_path: Path
) -> None:
    store = Store(spark, str(tmp_path))
    put(spark, store, 1, *AT_S)
    assert roll_up_some(spark, store).days is None
    put(spark, store, 2, *LATE_S)
    # The batch has reports of the 6th and the 7th; those of a midnight reach back to the 5th.
    assert roll_up_some(spark, store).days == frozenset(date(2026, 1, day) for day in (5, 6, 7))
    for table in SOME:
        assert rows_of(store, table.name) == rows_of(at_once[0], table.name), table.name
    assert {row[0] for row in store.table("bundle_days").select("date").collect()} == {
        date(2026, 1, day) for day in (5, 6, 7, 8)
    }


def test_without_a_new_batch_nothing_is_done(
    spark: "SparkSession", at_once: tuple[Store, list[str]]
) -> None:
    store, told = at_once
    before = store.facts("rollup")
    again = rollup.run(Work(spark=spark, store=store))
    assert again == ["rollup: nothing new was ingested since the last one"]
    assert store.facts("rollup") == before
    # As if the process had been killed between the tables and the seed.
    seed = f"{store.out}/{rollup.SEED}"
    packed = store.files.read_bytes(seed)
    for left in (seed, f"{store.out}/jobs/seeds"):
        store.files.delete(left)
    again = rollup.run(Work(spark=spark, store=store))
    assert again[1:] == [f"seed for leaders of c: {seed}"]
    assert store.files.read_bytes(seed) == packed
    assert told[0] == "rollup: all days computed; a report stands for at most 300 s"
    assert {table.name for table in ROLLUP} == {
        table.name for table in ROLLUP if store.files.exists(f"{store.out}/{table.name}")
    }


def test_leaders_can_read_the_seed(at_once: tuple[Store, list[str]]) -> None:
    store, _ = at_once
    packed = store.files.read_bytes(f"{store.out}/{rollup.SEED}")
    with gzip.open(io.BytesIO(packed)) as lines:
        seed = read_seed("seed", (line.rstrip(b"\n") for line in lines), hour=12)
    assert seed.head.cluster == "c"
    assert seed.head.until_ms - seed.head.since_ms == 4 * DAY_S * 1000
    assert seed.bundles.keys() == {BundleId(FIRST), BundleId(SECOND)}
    assert seed.bundles[BundleId(SECOND)].now.msgs_in_per_s == pytest.approx(1.0)


def test_days_of_other_reports_are_computed_anew(spark: "SparkSession", tmp_path: Path) -> None:
    store = Store(spark, str(tmp_path))
    put(spark, store, 1, *AT_S)
    day_ms = round(DAY_S * 1000)
    begin = ("c", "b", "w", "old", "new", NOON_MS)
    for batch, until_ms in ((2, NOON_MS + day_ms), (3, NOON_MS + 2 * day_ms)):
        store.put(DUPLICATES, batch, spark.createDataFrame([(*begin, until_ms)], DUPLICATES.schema))
        store.commit(batch, {"tables": [DUPLICATES.name], "files": {}, "lines": {}})
    work = Work(spark=spark, store=store)

    def days_after(batch: int) -> frozenset[date] | None:
        return scope_of(work, {**facts_of(work), "batches": batch}).days

    # Each reaches back to the day before.
    touched = frozenset(date(2026, 1, day) for day in (4, 5, 6, 7))
    assert (days_after(1), days_after(2)) == (touched, touched)
    assert days_after(3) == frozenset()


def test_bounds_keep_the_minutes_within(spark: "SparkSession") -> None:
    noon = datetime.fromtimestamp(NOON_MS / 1000, UTC)
    minute = timedelta(minutes=1)
    rows = [sample(60.0 * place, float(place), interval_s=60.0) for place in range(1, 8)]
    load = samples(spark, rows)

    def within(scope: Scope) -> list[int]:
        slices: DataFrame = scope.minutes(bundle_slices(scope.read(load)))
        found = bundle_minutes(slices).select(F.unix_millis("minute").alias("at_ms"))
        return sorted((row["at_ms"] - NOON_MS) // 60_000 for row in found.collect())

    assert within(Scope(since=noon + 2 * minute, until=noon + 5 * minute)) == [2, 3, 4]
    assert within(Scope(since=noon + 5 * minute)) == [5, 6]
    assert within(Scope(until=noon - timedelta(days=2))) == []

"""Rollup as a job: only what new batches touch is reckoned, and it comes to the same as all."""

import gzip
import io
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from load_rows import FIRST, NOON_MS, SECOND, report, reports, sample, samples
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.core.ids import BundleId
from loadmanager.core.seed import read_seed
from loadmanager.pipeline import rollup
from loadmanager.pipeline.contract import PipelineError
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.rolling.minutes import bundle_minutes, bundle_slices
from loadmanager.pipeline.rolling.scope import Scope
from loadmanager.pipeline.rolling.tables import ROLLUP
from loadmanager.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DAY_S = 86_400.0
# The last is one minute after midnight: it stands for the last minutes of the day before, too.
AT_S = (60.0, 120.0, DAY_S + 60.0, 2 * DAY_S - 43_200.0 + 60.0)
LATE_S = (2 * DAY_S - 43_200.0 + 120.0, 2 * DAY_S + 60.0)


def put(spark: "SparkSession", store: Store, batch: int, *at_s: float) -> None:
    """Give a store a batch of reports of one broker with two bundles."""
    bundles = [
        sample(at, at % 977 if bundle == FIRST else 1.0, bundle=bundle, interval_s=120.0)
        for at in at_s
        for bundle in (FIRST, SECOND)
    ]
    brokers = [report(at, at % 977 + 1.0, interval_s=120.0) for at in at_s]
    frames = {"bundle_load": samples(spark, bundles), "broker_load": reports(spark, brokers)}
    for name, frame in frames.items():
        store.put(store_tables()[name], batch, frame)
    store.commit(batch, {"tables": list(frames), "files": {}, "totals": {}})


def store_tables() -> Mapping[str, Any]:
    from loadmanager.pipeline.tables import INGESTED  # noqa: PLC0415 - only here

    return INGESTED


def roll_up(spark: "SparkSession", store: Store) -> list[str]:
    return rollup.run(Work(spark=spark, store=store))


def rows_of(store: Store, name: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, store.table(name).collect()), key=str)


@pytest.fixture(scope="module")
def twice(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> tuple[Store, list[str]]:
    """Return a store that was rolled up, got more, and was rolled up again; and what was told."""
    store = Store(spark, str(tmp_path_factory.mktemp("twice")))
    put(spark, store, 1, *AT_S)
    roll_up(spark, store)
    put(spark, store, 2, *LATE_S)
    return store, roll_up(spark, store)


@pytest.fixture(scope="module")
def at_once(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store that was rolled up when it had everything."""
    store = Store(spark, str(tmp_path_factory.mktemp("at_once")))
    put(spark, store, 1, *AT_S)
    put(spark, store, 2, *LATE_S)
    roll_up(spark, store)
    return store


def test_late_batches_come_to_what_all_at_once_comes_to(
    twice: tuple[Store, list[str]], at_once: Store
) -> None:
    for table in ROLLUP:
        assert rows_of(twice[0], table.name) == rows_of(at_once, table.name), table.name
    assert len(rows_of(at_once, "bundle_days")) == 2 * 4


def test_only_days_that_a_batch_touches_are_reckoned_anew(twice: tuple[Store, list[str]]) -> None:
    # 7 January at midnight and noon, and the day before the first.
    assert twice[1][0].startswith("rollup: 2 days that new batches touch reckoned")


def test_without_a_new_batch_nothing_is_done(
    spark: "SparkSession", twice: tuple[Store, list[str]]
) -> None:
    before = twice[0].facts("rollup")
    assert roll_up(spark, twice[0]) == ["rollup: nothing new was ingested since the last one"]
    assert twice[0].facts("rollup") == before


def test_leaders_can_read_the_seed(at_once: Store) -> None:
    packed = at_once.files.read_bytes(f"{at_once.out}/{rollup.SEED}")
    with gzip.open(io.BytesIO(packed)) as lines:
        seed = read_seed("seed", (line.rstrip(b"\n") for line in lines), hour=12)
    assert seed.head.cluster == "c"
    assert seed.head.until_ms - seed.head.since_ms == 4 * DAY_S * 1000
    assert seed.bundles.keys() == {BundleId(FIRST), BundleId(SECOND)}
    assert seed.bundles[BundleId(SECOND)].now.msgs_in_per_s == pytest.approx(1.0)


def test_no_rollup_without_an_ingest(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="ingest"):
        roll_up(spark, Store(spark, str(tmp_path)))


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

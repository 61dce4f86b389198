"""One Spark for all tests of a run: starting it takes longer than most of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: make test-tools")

from live_history import write_live_history
from small_history import REPLAYED, write_history

from loadmanager.pipeline.ingest import job as ingest
from loadmanager.pipeline.jobs import JOBS, Work
from loadmanager.pipeline.running import run_job
from loadmanager.pipeline.session import SessionSettings, SparkUnavailable, spark_session
from loadmanager.pipeline.store import Store

if TYPE_CHECKING:
    from history_sinks import Archive
    from pyspark.sql import SparkSession

SETTINGS = SessionSettings(
    master="local[2]",
    driver_memory="1g",
    more={
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        # Each plan runs once: compiling it well costs more than it saves. With this compiler alone
        # Java has 48 MB for its code and ends once it finds no place in them.
        "spark.driver.extraJavaOptions": (
            "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
        ),
    },
)


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    try:
        with spark_session(SETTINGS, "tests") as session:
            yield session
    except SparkUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def small_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the history of `small_history.SCENARIO`, which nobody may change."""
    directory = tmp_path_factory.mktemp("history")
    write_history(directory)
    return directory


@pytest.fixture(scope="session")
def ingested(
    spark: "SparkSession", small_history: Path, tmp_path_factory: pytest.TempPathFactory
) -> Store:
    """Return a store that has taken in `small_history`; derive nothing in it."""
    store = Store(spark, str(tmp_path_factory.mktemp("tables")))
    ingest.run(Work(spark=spark, store=store, history=str(small_history)))
    return store


@pytest.fixture(scope="session")
def worked(
    spark: "SparkSession", ingested: Store, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Store, dict[str, list[str]]]:
    """Return a store with the tables of every job of `small_history`, and what each job said."""
    folder = tmp_path_factory.mktemp("worked")
    for each in Path(ingested.out).iterdir():
        (folder / each.name).symlink_to(each)
    store = Store(spark, str(folder))
    work = Work(spark=spark, store=store, options=REPLAYED)
    return store, {job: run_job(job, work) for job in JOBS if job != "ingest"}


@pytest.fixture(scope="session")
def live_ingested(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> tuple["Archive", Store]:
    """Return what real sidecars told, and a store that has taken it in; derive nothing in it."""
    directory = tmp_path_factory.mktemp("live")
    archive = write_live_history(directory)
    store = Store(spark, str(tmp_path_factory.mktemp("live_tables")))
    ingest.run(Work(spark=spark, store=store, history=str(directory)))
    return archive, store

"""An ingest whose process is killed while it writes: the next one makes all of it good."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from waiting import eventually

from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.running import run_job
from loadmanager.pipeline.store import Store
from loadmanager.pipeline.tables import INGESTED

_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
_WITHIN_S = 300.0


def killed_at(moment: Callable[[], object], folder: Path, *arguments: str) -> bool:
    """Run ``loadmanager pipeline ARGUMENTS`` until ``moment()`` is true, and kill it and its Java.

    ``folder`` gets what it says and what it leaves behind. Return False if it ended by itself.
    """
    folder.mkdir()
    java = f"{_QUICK_JAVA} -Djava.io.tmpdir={folder}"
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "loadmanager", "pipeline", *arguments),
                *("--master", "local[2]", "--driver-memory", "600m"),
                *("--conf", "spark.sql.shuffle.partitions=1"),
            ],
            env={**os.environ, "JAVA_TOOL_OPTIONS": java, "TMPDIR": str(folder)},
            stdout=said,
            stderr=subprocess.STDOUT,
            # A group of its own: Java is to be killed, too.
            start_new_session=True,
        )
    try:
        wanted = asyncio.run(_first(moment, process))
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return wanted


async def _first(moment: Callable[[], object], process: "subprocess.Popen[bytes]") -> bool:
    await eventually(lambda: moment() or process.poll() is not None, within_s=_WITHIN_S)
    return process.returncode is None


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.thorough, pytest.mark.spark, pytest.mark.timeout(600)]

TRIES: Final = 3
Digests = dict[str, tuple[int, int]]


def parts(out: Path) -> list[Path]:
    """Return the files of tables that are whole, of which nobody knows yet."""
    found = out.glob("*/batch=000001/**/*.parquet")
    return [one for one in found if "_temporary" not in one.parts]


def committed(out: Path) -> bool:
    return (out / "batches" / "000001.json").exists()


def killed_before_its_commit(history: Path, folder: Path) -> Path:
    """Return where an ingest was killed after the first part of a table was on disk."""
    for attempt in range(TRIES):
        out = folder / f"tables-{attempt}"
        ingest = ("ingest", "--history", str(history), "--out", str(out))
        killed_at(partial(parts, out), folder / f"process-{attempt}", *ingest)
        if not committed(out):
            assert parts(out), (folder / f"process-{attempt}" / "said").read_text()
            return out
    raise AssertionError(f"{TRIES} times the whole batch was committed before the kill")


def digests(store: Store) -> Digests:
    """Return for each ingested table how many rows it has, and a sum over all their content."""
    one = F.xxhash64(F.to_json(F.struct("*"))).cast("decimal(38,0)")
    summed = (F.count("*").alias("rows"), F.coalesce(F.sum(one), F.lit(0)).alias("content"))
    each = [store.table(name).agg(F.lit(name).alias("name"), *summed) for name in INGESTED]
    rows = reduce(DataFrame.unionAll, each).collect()
    return {row["name"]: (row["rows"], int(row["content"])) for row in rows}


def test_an_ingest_killed_between_writing_and_committing_is_made_good_by_the_next(
    spark: "SparkSession", small_history: Path, ingested: Store, tmp_path: Path
) -> None:
    out = killed_before_its_commit(small_history, tmp_path)
    store = Store(spark, str(out))
    work = Work(spark=spark, store=store, history=str(small_history))
    told = run_job("ingest", work)

    expected = digests(ingested)
    assert expected["broker_load"][0] > 0
    assert digests(store) == expected, "every row is there, once"
    (batch,) = store.batches()
    lines = batch.manifest["lines"]
    assert lines == ingested.batches()[0].manifest["lines"]
    assert lines["read"] == lines["kept"] > 0
    assert told[0] == f"files: {len(store.files_read())} to be read, 0 read before"
    assert list(out.rglob("*_temporary*")) == []
    assert list(out.glob("drafts/*")) == []

    again = run_job("ingest", work)
    assert again[-1] == "lines: 0 read = 0 kept + 0 quarantined + 0 duplicate"

"""Jobs of the pipeline in processes of their own with a Spark each: what each takes, as JSON.

``ingest HISTORY OUT HEAP [UNTIL_S]``, ``replay TABLES CORES HOURS SETTING...``, or
``rollup SAMPLES OUT HEAP`` of what ``samples DIR ROWS`` writes.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark import StorageLevel

from loadmanager.pipeline.ingest import job as ingest_job
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.replay import job as replay_job
from loadmanager.pipeline.rollup.frames import BUNDLE_DAYS, BUNDLE_HOURS, BUNDLE_MINUTES
from loadmanager.pipeline.rollup.minutes import (
    BUNDLE,
    RATES,
    bundle_minutes,
    bundle_names,
    bundle_slices,
    periods,
)
from loadmanager.pipeline.session import SessionSettings, spark_session
from loadmanager.pipeline.store import Store, write_rows
from loadmanager.pipeline.tables import namespace_of
from loadmanager.simulator.recording import MONDAY_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIB: Final = 2**20
_WARMING: Final = 200_000
BROKERS: Final = 100
BUNDLES: Final = 100
INTERVAL_MS: Final = 10_000
_HOUR: Final = 3_600_000 // INTERVAL_MS
_SCHEMA: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("bundle", pa.string()),
        ("at_ms", pa.int64()),
        ("interval_s", pa.float64()),
        ("window_s", pa.float64()),
        *((rate, pa.float64()) for rate in RATES),
    ]
)
_REPEATED: Final = [name for name in _SCHEMA.names if name not in RATES]
"""Columns with a dictionary; measured rates have none, as ingest writes them."""


def run(*arguments: object) -> Any:
    command = [sys.executable, __file__, *map(str, arguments)]
    return json.loads(subprocess.check_output(command))


def peak_bytes(process: int | str) -> int:
    """Return the most memory that a process ever had; what it shares with others counts, too."""
    lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return next(int(line[1]) * 1024 for line in lines if line[0] == "VmHWM:")


def _java_peak_bytes(spark: "SparkSession") -> int:
    jvm: Any = spark._jvm
    return peak_bytes(int(jvm.java.lang.ProcessHandle.current().pid()))


def _live_heap_bytes(spark: "SparkSession") -> int:
    """Return what Java's heap holds that cannot be collected: what the driver keeps of its work."""
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()
    return int(
        jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
    )


def ingest(history: str, out: str, heap: str, until_s: str = "") -> dict[str, Any]:
    until = datetime.fromtimestamp(float(until_s), UTC) if until_s else None
    with spark_session(SessionSettings(master="local[2]", driver_memory=heap), "bench") as spark:
        store = Store(spark, out)
        began_s = time.perf_counter()
        told = ingest_job.run(Work(spark=spark, store=store, history=history, until=until))
        took_s = time.perf_counter() - began_s
        heap_bytes = _live_heap_bytes(spark)
        return {
            "samples": store.table("bundle_load").count(),
            "took_s": took_s,
            "live_heap_bytes": heap_bytes,
            "java_peak_bytes": _java_peak_bytes(spark),
            "python_peak_bytes": peak_bytes("self"),
            "told": told,
        }


def replay(tables: str, cores: str, hours: str, *settings: str) -> dict[str, Any]:
    """Return the seconds and the peaks of memory of a replay of the first ``hours``.

    Java and Python get ``cores`` processors together: with one task at a time alone, Java would
    hand over rows and compile on another.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    session = SessionSettings(master=f"local[{cores}]", driver_memory="1g")
    with spark_session(session, "replay") as spark:
        # What Spark does once, whatever the job, is not the job's.
        spark.range(1000).selectExpr("sum(id)").collect()
        store = Store(spark, tables)
        until = datetime.fromtimestamp(MONDAY_MS / 1000, tz=UTC) + timedelta(hours=float(hours))
        options = {"setting": settings, "segment_h": 1.0}
        began_s = time.perf_counter()
        replay_job.run(Work(spark=spark, store=store, until=until, options=options))
        took_s = time.perf_counter() - began_s
        facts = store.facts("replay") or {}
        return {
            "took_s": took_s,
            "decisions": facts["replayed"] * (facts["combinations"] + 1),
            "driver_peak_bytes": peak_bytes("self"),
            "jvm_peak_bytes": _java_peak_bytes(spark),
        }


def rollup(source: str, out: str, heap: str) -> dict[str, Any]:
    folder = Path(out)
    with spark_session(SessionSettings(master="local[2]", driver_memory=heap), "bench") as spark:
        _rolled_up(spark, source, folder / "warm", _WARMING)
        shutil.rmtree(folder / "warm")
        took_s = _rolled_up(spark, source, folder)
        peak_mib = _java_peak_bytes(spark) / _MIB
        started = psutil.Process().children(recursive=True)
        workers = [one.pid for one in started if "python" in one.name()]
        workers_mib = sum(map(peak_bytes, workers)) / _MIB
    own_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"took_s": took_s, "peak_mib": peak_mib, "python_peak_mib": own_mib + workers_mib}


def _rolled_up(spark: "SparkSession", source: str, out: Path, most: int | None = None) -> float:
    """Write the tables, of the first samples or of all, and return how long it took.

    From Parquet to Parquet: minutes from samples, then hours and days from the minutes that were
    written.
    """
    began_s = time.perf_counter()
    load = spark.read.parquet(source)
    read = load if most is None else load.limit(most)
    names = bundle_names(read).persist(StorageLevel.DISK_ONLY)
    made = bundle_minutes(bundle_slices(read), names)
    written = str(out / BUNDLE_MINUTES.name)
    write_rows(BUNDLE_MINUTES.conform(made), written, ("date",))
    minutes = spark.read.parquet(written)
    for table, time_of in ((BUNDLE_HOURS, "hour"), (BUNDLE_DAYS, "date")):
        made = periods(minutes, BUNDLE, RATES, time_of).withColumn(
            "namespace", namespace_of("bundle")
        )
        write_rows(table.conform(made), str(out / table.name), ("date",))
    names.unpersist()
    return time.perf_counter() - began_s


def samples(directory: str, rows: str) -> None:
    """Write samples as ingest lays them out: a broker's hour after another, several files."""
    rng = np.random.default_rng(1)
    reports = int(rows) // (BROKERS * BUNDLES)
    folder = Path(directory) / "date=2026-01-05"
    folder.mkdir(parents=True)
    for number, first in enumerate(range(0, reports, _HOUR)):
        times = np.arange(first, min(reports, first + _HOUR))
        file = folder / f"{number:03d}.parquet"
        with pq.ParquetWriter(file, _SCHEMA, compression="zstd", use_dictionary=_REPEATED) as to:
            for broker in range(BROKERS):
                to.write_table(_reports(broker, times, rng))


def _reports(broker: int, times: NDArray[np.int64], rng: np.random.Generator) -> pa.Table:
    """Return the reports of a broker with the numbers ``times``, one row for each bundle."""
    at_ms = MONDAY_MS + broker * 37 + 11 * (times % 7) + (times + 1) * INTERVAL_MS
    size = len(times) * BUNDLES
    rates = rng.lognormal(5.0, 1.0, (size, 4)).round(3)
    names = pa.array([_name(broker * BUNDLES + place) for place in range(BUNDLES)])
    columns = {
        "cluster": pa.repeat(pa.scalar("bench"), size),
        "bundle": names.take(pa.array(np.tile(np.arange(BUNDLES), len(times)))),
        "at_ms": np.repeat(at_ms, BUNDLES),
        "interval_s": np.full(size, INTERVAL_MS / 1000),
        "window_s": np.full(size, 5.0),
        **dict(zip(RATES, rates.T, strict=True)),
    }
    return pa.table(columns, schema=_SCHEMA)


def _name(number: int) -> str:
    first, last = number * 400_000, (number + 1) * 400_000
    return f"tenant-{number % 7}/orders-{number % 40}/0x{first:08x}_0x{last:08x}"


if __name__ == "__main__":
    measures: dict[str, Callable[..., Any]] = {
        "ingest": ingest,
        "replay": replay,
        "rollup": rollup,
        "samples": samples,
    }
    sys.stdout.write(json.dumps(measures[sys.argv[1]](*sys.argv[2:])))

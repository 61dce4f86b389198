"""Bundles rolled up by what the job rollup is made of, to be measured: SAMPLES OUT HEAP.

From Parquet to Parquet: minutes from samples, then hours and days from the minutes that were
written. Prints JSON.
"""

import json
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
from peaks import java_of, peak_bytes
from pyspark import StorageLevel

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
from loadmanager.pipeline.store import write_rows
from loadmanager.pipeline.tables import namespace_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIB: Final = 2**20
_WARMING: Final = 200_000


def rolled_up(spark: "SparkSession", samples: Path, out: Path, most: int | None = None) -> float:
    """Write the tables, of the first samples or of all, and return how long it took."""
    began_s = time.perf_counter()
    load = spark.read.parquet(str(samples))
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


def measured(samples: Path, out: Path, heap: str) -> dict[str, Any]:
    settings = SessionSettings(master="local[2]", driver_memory=heap)
    with spark_session(settings, "bench") as spark:
        rolled_up(spark, samples, out / "warm", _WARMING)
        shutil.rmtree(out / "warm")
        took_s = rolled_up(spark, samples, out)
        peak_mib = peak_bytes(java_of(spark)) / _MIB
        started = psutil.Process().children(recursive=True)
        workers = [one.pid for one in started if "python" in one.name()]
        workers_mib = sum(map(peak_bytes, workers)) / _MIB
    own_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"took_s": took_s, "peak_mib": peak_mib, "python_peak_mib": own_mib + workers_mib}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])) + "\n")

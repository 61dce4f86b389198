"""Costs learned by Spark from minutes of brokers, to be measured: FOLDER BROKERS DAYS.

The minutes are made first, and are no part of the time. Prints JSON.
"""

import json
import resource
import shutil
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from given_store import GivenStore

from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.cost_model import job as costs
from loadmanager.pipeline.cost_model.rows import RATES
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.session import SessionSettings, spark_session
from loadmanager.pipeline.tables import INGESTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = SessionSettings(master="local[2]", driver_memory="1g")
_MINUTES_PER_DAY: Final = 1440
_FIRST_MINUTE: Final = 20_000 * _MINUTES_PER_DAY
_COSTS: Final = np.array([2e-3, 1.5e-3, 3e-7, 2e-7, 0.1, 0.03])


def _learn(spark: "SparkSession", out: Path, given: Path) -> None:
    load, moves = (INGESTED[name].schema for name in ("broker_load", "hand_overs"))
    tables = {
        "broker_load": spark.read.schema(load).parquet(str(given)),
        "hand_overs": spark.createDataFrame([], moves),
    }
    costs.run(Work(spark=spark, store=GivenStore(spark, str(out), tables)))


def write_minutes(folder: Path, brokers: int, days: int) -> None:
    """Write a report each minute of each broker, a file for each broker."""
    folder.mkdir(parents=True)
    for broker in range(brokers):
        rng = np.random.default_rng(broker)
        count = days * _MINUTES_PER_DAY
        minute = _FIRST_MINUTE + np.arange(count)
        day = 1.0 + 0.5 * np.sin(minute[:, None] * 2 * np.pi / _MINUTES_PER_DAY + rng.random(6) * 6)
        wander = np.repeat(np.exp(0.3 * rng.standard_normal((count // 60, 6))), 60, axis=0)
        typical = np.array([8000.0, 12000.0, 8e6, 1e7, 300.0, 900.0]) * rng.uniform(0.5, 1.5, 6)
        rates = np.floor(typical * day * wander)
        usage = 20.0 + rates @ _COSTS * (1.0 + 0.02 * rng.standard_normal(count))
        amounts = dict(zip(RATES, rates.T, strict=True))
        sessions = amounts.pop("connections").astype(np.int64)
        columns: dict[str, Any] = {
            **amounts,
            "topics": amounts["topics"].astype(np.int64),
            "producers": sessions // 2,
            "consumers": sessions - sessions // 2,
            "reported_at_ms": minute * 60_000,
            **{f"{one}_usage": usage for one in RESOURCES},
            **{f"{one}_limit": np.full(count, 800.0) for one in RESOURCES},
            "interval_s": np.full(count, 60.0),
            "window_s": np.full(count, 60.0),
            "healthy": np.full(count, fill_value=True),
            **{
                name: pa.array([value] * count)
                for name, value in (
                    ("cluster", "bench"),
                    ("broker_class", ""),
                    ("broker", f"b-{broker}:8080"),
                )
            },
        }
        pq.write_table(pa.table(columns), folder / f"{broker:05d}.parquet")


def measured(folder: Path, brokers: int, days: int) -> dict[str, Any]:
    """Learn costs, after a little that compiles what is to run."""
    for name, *given in (("few", 2, 2), ("all", brokers, days)):
        # By a process of its own: what it takes is no part of the memory either.
        writer = get_context("spawn").Process(target=write_minutes, args=(folder / name, *given))
        writer.start()
        writer.join()
    with spark_session(_SETTINGS, "bench") as spark:
        _learn(spark, folder / "warm", folder / "few")
        began_s = time.perf_counter()
        _learn(spark, folder / "out", folder / "all")
        took_s = time.perf_counter() - began_s
        jvm: Any = spark._jvm
        status = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/status")
        lines = (line.split() for line in status.read_text().splitlines())
        peak_mib = next(int(line[1]) / 1024 for line in lines if line[0] == "VmHWM:")
    own_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    shutil.rmtree(folder)
    return {"took_s": took_s, "peak_mib": peak_mib, "python_peak_mib": own_mib}


if __name__ == "__main__":
    told = measured(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(json.dumps(told) + "\n")

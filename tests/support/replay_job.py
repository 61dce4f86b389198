"""A replay in a Spark of its own: what it takes, as JSON on standard output."""

import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from peaks import java_of, peak_bytes

from loadmanager.pipeline.ingest import job as ingest
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.replay import job as replay
from loadmanager.pipeline.session import SessionSettings, spark_session
from loadmanager.pipeline.store import Store
from loadmanager.simulator.recording import MONDAY_MS


def measure(tables: str, cores: int, hours: float, settings: tuple[str, ...]) -> dict[str, Any]:
    """Return the seconds and the peaks of memory of a replay of the first ``hours``.

    Java and Python get ``cores`` processors together: with one task at a time alone, Java would
    hand over rows and compile on another.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    with spark_session(_settings(cores), "replay") as spark:
        # What Spark does once, whatever the job, is not the job's.
        spark.range(1000).selectExpr("sum(id)").collect()
        store = Store(spark, tables)
        until = datetime.fromtimestamp(MONDAY_MS / 1000, tz=UTC) + timedelta(hours=hours)
        options = {"setting": settings, "segment_h": 1.0}
        began_s = time.perf_counter()
        replay.run(Work(spark=spark, store=store, until=until, options=options))
        took_s = time.perf_counter() - began_s
        facts = store.facts("replay") or {}
        return {
            "took_s": took_s,
            "decisions": facts["replayed"] * (facts["combinations"] + 1),
            "driver_peak_bytes": peak_bytes(os.getpid()),
            "jvm_peak_bytes": peak_bytes(java_of(spark)),
        }


def take_in(history: str, tables: str) -> None:
    with spark_session(_settings(os.cpu_count() or 1), "ingest") as spark:
        ingest.run(Work(spark=spark, store=Store(spark, tables), history=history))


def _settings(cores: int) -> SessionSettings:
    return SessionSettings(master=f"local[{cores}]", driver_memory="1g")


if __name__ == "__main__":
    if sys.argv[1] == "ingest":
        take_in(sys.argv[2], sys.argv[3])
    else:
        found = measure(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), tuple(sys.argv[5:]))
        sys.stdout.write(json.dumps(found))

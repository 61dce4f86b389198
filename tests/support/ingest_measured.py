"""An ingest in processes of its own, with a small heap: how fast it is and what it takes."""

import json
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from peaks import java_of, peak_bytes

from loadmanager.pipeline.ingest import job as ingest
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.session import SessionSettings, spark_session
from loadmanager.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAP = "1g"
"""For driver and executor in one, whatever the size."""


def live_heap_bytes(spark: "SparkSession") -> int:
    """Return what Java's heap holds that cannot be collected: what the driver keeps of its work."""
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()
    return int(
        jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
    )


def measure(history: str, out: str, until: datetime | None) -> dict[str, object]:
    settings = SessionSettings(master="local[2]", driver_memory=HEAP)
    with spark_session(settings, "bench") as spark:
        store = Store(spark, out)
        began_s = time.perf_counter()
        told = ingest.run(Work(spark=spark, store=store, history=history, until=until))
        took_s = time.perf_counter() - began_s
        heap_bytes = live_heap_bytes(spark)
        return {
            "samples": store.table("bundle_load").count(),
            "took_s": took_s,
            "live_heap_bytes": heap_bytes,
            "java_peak_bytes": peak_bytes(java_of(spark)),
            "python_peak_bytes": peak_bytes("self"),
            "told": told,
        }


if __name__ == "__main__":
    bound = datetime.fromtimestamp(float(sys.argv[3]), UTC) if len(sys.argv) > 3 else None
    sys.stdout.write(json.dumps(measure(sys.argv[1], sys.argv[2], bound)))

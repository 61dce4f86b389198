"""An ingest in processes of its own, with a small heap: how fast it is and what it takes."""

import json
import re
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from loadmanager.pipeline import ingest
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.session import SessionSettings, spark_session
from loadmanager.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAP = "1g"
"""For driver and executor in one, whatever the size."""

_POLL_S = 0.5
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def peak_bytes(process: int | str) -> int:
    """Return the most memory that a process had at a time."""
    found = _PEAK.search(Path(f"/proc/{process}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024


class LiveHeap:
    """Looks, as long as it is entered, at what is left in Java's heap after a collection."""

    def __init__(self, spark: "SparkSession") -> None:
        jvm: Any = spark._jvm
        factory = jvm.java.lang.management.ManagementFactory
        self._pools = [
            pool for pool in factory.getMemoryPoolMXBeans() if pool.getCollectionUsage() is not None
        ]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_POLL_S):
            live = sum(int(pool.getCollectionUsage().getUsed()) for pool in self._pools)
            self.peak_bytes = max(self.peak_bytes, live)


def measure(history: str, out: str, until: datetime | None) -> dict[str, object]:
    """Return what the ingest of a history took, up to a time."""
    settings = SessionSettings(master="local[2]", driver_memory=HEAP)
    with spark_session(settings, "bench") as spark:
        store = Store(spark, out)
        java = str(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr] # of a local Spark
        with LiveHeap(spark) as heap:
            began_s = time.perf_counter()
            told = ingest.run(Work(spark=spark, store=store, history=history, until=until))
            took_s = time.perf_counter() - began_s
        return {
            "samples": store.table("bundle_load").count(),
            "took_s": took_s,
            "live_heap_bytes": heap.peak_bytes,
            "java_peak_bytes": peak_bytes(java),
            "python_peak_bytes": peak_bytes("self"),
            "told": told,
        }


if __name__ == "__main__":
    bound = datetime.fromtimestamp(float(sys.argv[3]), UTC) if len(sys.argv) > 3 else None
    sys.stdout.write(json.dumps(measure(sys.argv[1], sys.argv[2], bound)))

"""Computes minutes and alerts while the history directory is being written.

Spark's Structured Streaming finds finished files (a file gets its name when it is finished) and
assigns them to batches. Each batch counts once, even if it was interrupted. A minute is reported
once, when no more reports are expected for it.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.session import settings_of
from loadmanager.pipeline.streaming.alerts import BEGAN, Limits, silence
from loadmanager.pipeline.streaming.memory import Memory
from loadmanager.pipeline.streaming.micro_batch import Batches
from loadmanager.pipeline.streaming.stream_tables import STREAM_ALERTS, STREAM_MINUTES

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

WATERMARK_S: Final = 1500.0
"""A file is finished within 15 minutes, a report covers at most five; five more as reserve."""

FILES_AT_ONCE: Final = 2000
FILES_REMEMBERED: Final = "30d"
"""A file that is older than the newest by more than this is ignored."""

_FILE: Final = StructType(
    [
        StructField("path", StringType()),
        StructField("modificationTime", TimestampType()),
        StructField("length", LongType()),
        StructField("content", BinaryType()),
    ]
)
_SETTINGS: Final = {
    # Files are read as a whole: Python receives one at a time.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.streaming.metricsEnabled": "false",
}
_LIMITS: Final = {
    "imbalance": "max_over_mean",
    "saturation": "usage",
    "alert_minutes": "minutes",
    "silent_minutes": "silent_minutes",
}
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.25
_LOOK_S: Final = 20.0
_EVERY: Final = "5 seconds"


def run(work: Work) -> list[str]:
    """Follow ``work.history`` until interrupted, for ``for_s`` seconds, or, ``once``, to its end.

    All options may be missing: ``once``, ``for_s``, ``watermark_s``, and for `Limits`
    ``imbalance``, ``saturation``, ``alert_minutes``, ``silent_minutes``.

    Raises:
        PipelineError: no history is given, or a batch failed.
    """
    if work.history is None:
        raise PipelineError("stream: no history is given; expected --history DIR")
    options = {name: value for name, value in work.options.items() if value is not None}
    memory = Memory(work.spark, work.store.files, work.store.out)
    memory.begin()
    work.store.adopt("stream", (STREAM_MINUTES, STREAM_ALERTS))
    batches = Batches(
        spark=work.spark,
        memory=memory,
        watermark_s=options.get("watermark_s", WATERMARK_S),
        limits=_limits(options),
        print_line=work.print_line,
    )
    with settings_of(work.spark, _SETTINGS), _interrupts():
        query = _started(work, batches, once=bool(options.get("once")))
        try:
            _follow(query, _Following(work, batches), options)
        except KeyboardInterrupt:
            work.print_line("stream: stopping after the batch under way")
        finally:
            _stop(query, batches)
    return [_progress_line(memory)]


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Let Ctrl-C interrupt only this thread: PySpark would cancel the current batch."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stop(query: "StreamingQuery", batches: Batches) -> None:
    """Stop between two batches; one that takes too long is cancelled and repeated later."""
    batches.over.set()
    deadline_s = time.monotonic() + _PATIENCE_S
    if batches.at_work.acquire(timeout=_PATIENCE_S):
        batches.at_work.release()
    # Spark still has to record that the batch is complete: otherwise it would be repeated.
    pause = threading.Event()
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
        pause.wait(_PAUSE_S)
    query.stop()


def _limits(options: Mapping[str, Any]) -> Limits:
    given = {name: options[option] for option, name in _LIMITS.items() if option in options}
    return Limits(**given)


def _started(work: Work, batches: Batches, *, once: bool) -> "StreamingQuery":
    files = (
        work.spark.readStream.format("binaryFile")
        .schema(_FILE)
        .option("pathGlobFilter", "reports-*.jsonl.gz")
        .option("recursiveFileLookup", "true")
        .option("maxFilesPerTrigger", str(FILES_AT_ONCE))
        .option("maxFileAge", FILES_REMEMBERED)
        .load(work.history)
        .select("path", "content")
    )
    writer = files.writeStream.foreachBatch(batches.take).option(
        "checkpointLocation", batches.memory.checkpoint
    )
    how: dict[str, Any] = {"availableNow": True} if once else {"processingTime": _EVERY}
    return writer.trigger(**how).start()


class _Following:
    """Raises the alert that no history arrives, which no batch can show."""

    def __init__(self, work: Work, batches: Batches) -> None:
        self._work = work
        self._batches = batches
        self._last_ms = 0
        self._since_s = time.monotonic()
        self._warned = False

    def look(self) -> None:
        """Raise an alert once if nothing arrived for too long."""
        last_ms = self._batches.memory.latest().last_ms
        now_s = time.monotonic()
        if last_ms != self._last_ms:
            self._last_ms, self._since_s, self._warned = last_ms, now_s, False
        silent_s = now_s - self._since_s
        # Files become visible when they are finished.
        allowed_s = self._batches.watermark_s + 60.0 * self._batches.limits.silent_minutes
        if silent_s >= allowed_s and last_ms and not self._warned:
            self._warned = True
            for cluster in sorted(self._batches.memory.latest().watch.last_ms):
                alert = silence(cluster, last_ms, int(silent_s // 60), BEGAN)
                self._batches.write_alerts([alert], f"silent-since-{last_ms}")
                self._work.print_line(f"  {alert.text()}")


def _follow(query: "StreamingQuery", following: _Following, options: Mapping[str, Any]) -> None:
    deadline_s = time.monotonic() + options.get("for_s", float("inf"))
    pause, look_s = threading.Event(), time.monotonic()
    while query.isActive and time.monotonic() < deadline_s:
        pause.wait(_PAUSE_S)
        if not options.get("once") and time.monotonic() >= look_s:
            look_s = time.monotonic() + _LOOK_S
            following.look()
    if not query.isActive:
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise PipelineError(f"stream: a batch failed: {error}; it is done again") from error


def _progress_line(memory: Memory) -> str:
    progress = memory.latest()
    if not progress.closed_ms:
        return "stream: no minute is over yet"
    return f"stream: minutes before {progress.closed:%F %H:%M} are over and reported"

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from loadmanager.adapters.history.storage import (
    Disk,
    HistoryUnavailable,
    RemoteStorage,
    Storage,
    expired,
    recover,
)
from loadmanager.adapters.history.stream_writer import StreamWriter
from loadmanager.config.sections import HistorySettings
from loadmanager.core.history.files import writer_word
from loadmanager.core.history.records import Origin, Record, record_of
from loadmanager.core.history.schema import KINDS, Stream
from loadmanager.telemetry.metrics import HistoryMetrics

log = structlog.get_logger()

Make = Callable[[], Iterable[Record]]

_LARGEST_BACKLOG_BYTES: Final = 16 << 20
_TIDY_EVERY_S: Final = 600.0
_LOOK_AGAIN_S: Final = 0.5
_CLOSE_S: Final = 600.0
_NEW_DISK: Final = Disk()


@dataclass(frozen=True, slots=True)
class _Offer:
    stream: Stream
    at_ms: int
    make: Make


@dataclass(slots=True)
class _Loss:
    records: int
    why: str
    first_at_ms: int
    last_at_ms: int


class ThreadedHistory:
    """The `HistorySink` that writes files on a separate thread, not started yet.

    ``settings.dir`` is set. With ``wait`` an offer waits for room in the queue, as simulations do,
    and raises `HistoryUnavailable` if nothing can be written; else it is dropped. Raises
    `HistoryUnavailable`: the address needs a package that is not installed, or is invalid.

    While the disk is slow, full or missing, offered records wait in a queue. Those that do not fit
    are counted, and a separate line reports their number as soon as lines can be written again.
    """

    def __init__(
        self,
        settings: HistorySettings,
        origin: Origin,
        metrics: HistoryMetrics,
        *,
        wait: bool = False,
        disk: Disk = _NEW_DISK,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        top = Path(settings.spool_dir if settings.is_remote else settings.dir)
        writer = writer_word(origin.writer)
        self._writers = {
            stream: StreamWriter(stream, origin, top, disk, settings, monotonic_s=monotonic_s)
            for stream in Stream
            if settings.write in {"all", stream.value}
        }
        self._storage = Storage(disk, top, writer)
        if settings.is_remote:
            self._storage = RemoteStorage(settings, self._storage, wall_ms)
        self._settings = settings
        self._wait = wait
        self._recover = partial(recover, disk, top, writer)
        self._recovered = False
        self._metrics = metrics
        self._monotonic_s = monotonic_s
        self._wall_ms = wall_ms
        self._offers: queue.Queue[_Offer | None] = queue.Queue(settings.queue_records)
        self._losses: dict[Stream, _Loss] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._flush_at_s = 0.0
        self._tidy_at_s = 0.0
        self.trouble = ""

    # --- for callers -------------------------------------------------------------------

    def wants(self, stream: Stream) -> bool:
        return stream in self._writers

    def offer(self, stream: Stream, at_ms: int, make: Make) -> None:
        if stream not in self._writers:
            return
        offer = _Offer(stream, at_ms, make)
        try:
            if self._wait:
                self._wait_for_room(offer)
            else:
                self._offers.put_nowait(offer)
        except queue.Full:
            self._lost(stream, "unwritable" if self.trouble else "queue_full", at_ms)
        self._metrics.waiting.set(self._offers.qsize())

    def _wait_for_room(self, offer: _Offer) -> None:
        while not self.trouble:
            try:
                self._offers.put(offer, timeout=_LOOK_AGAIN_S)
            except queue.Full:
                continue
            return
        raise HistoryUnavailable(f"history cannot be written: {self.trouble}")

    def start(self) -> None:
        self._flush_at_s = self._monotonic_s() + self._settings.flush_interval_s
        self._thread.start()

    def close(self, within_s: float) -> None:
        self._stopping.set()
        if not self._thread.is_alive():
            return
        try:
            self._offers.put(None, timeout=within_s)  # Wakes the thread.
        except queue.Full:
            log.warning("history.queue.abandoned", waiting=self._offers.qsize())
        self._thread.join(within_s)
        if self._thread.is_alive():
            log.warning("history.writer.abandoned", within_s=within_s)

    # --- on the thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._stopping.is_set() and self._offers.empty()):
                self._turn()
            self._last_turn()
        finally:
            if not self._stopping.is_set():
                self.trouble = "the writer of history has ended; see the log"

    def _turn(self) -> None:
        now_s = self._monotonic_s()
        if self._backlog_bytes < _LARGEST_BACKLOG_BYTES:
            self._take(max(self._flush_at_s - now_s, 0.0))
        elif not self._stopping.is_set():
            self._stopping.wait(max(self._flush_at_s - now_s, 0.0))
        else:
            self._give_up_waiting()
        full = self._backlog_bytes >= _LARGEST_BACKLOG_BYTES and not self.trouble
        if full or self._monotonic_s() >= self._flush_at_s:
            self._flush()

    def _take(self, within_s: float) -> None:
        try:
            offer = self._offers.get(timeout=max(within_s, 0.001))
        except queue.Empty:
            return
        if offer is not None:
            try:
                self._writers[offer.stream].add(offer.make())
            except ValueError as error:
                log.error("history.record.invalid", stream=offer.stream.value, error=str(error))  # noqa: TRY400 - the number says all
                self._lost(offer.stream, "unfit", offer.at_ms)

    def _flush(self) -> None:
        self._tell_losses()
        try:
            for writer in self._writers.values():
                writer.flush()
            if not self._recovered:
                for one in self._recover():
                    log.info(
                        "history.file.recovered",
                        path=str(one.path),
                        kept_bytes=one.kept_bytes,
                        cut_bytes=one.cut_bytes,
                    )
                self._recovered = True
            self._metrics.uploads_total.inc(self._storage.store())
            if self._monotonic_s() >= self._tidy_at_s:
                finished = list(self._storage.finished())
                for found in expired(finished, self._settings, self._wall_ms()):
                    self._storage.delete(found)
                    self._metrics.deletions_total.inc()
                    log.info("history.file.expired", path=str(found.path))
                self._tidy_at_s = self._monotonic_s() + _TIDY_EVERY_S
        except OSError as error:
            self._failed(error)
        else:
            if self.trouble:
                log.info("history.writing.resumed", after=self.trouble)
                self.trouble = ""
            self._metrics.flushed_timestamp_seconds.set(self._wall_ms() / 1000)
        self._show()
        self._flush_at_s = self._monotonic_s() + self._settings.flush_interval_s

    def _failed(self, error: OSError) -> None:
        self._metrics.errors_total.inc()
        text = f"{type(error).__name__}: {error}"
        if not self.trouble:
            log.error("history.writing.failed", error=text)
        self.trouble = text

    def _last_turn(self) -> None:
        self._flush()
        try:
            for writer in self._writers.values():
                writer.finish()
            self._metrics.uploads_total.inc(self._storage.store())
        except OSError as error:
            self._failed(error)
        self._show()
        unwritten = sum(writer.unwritten for writer in self._writers.values())
        if unwritten:
            self._metrics.dropped_total.labels("unwritable").inc(unwritten)
            log.error("history.lines.lost", lines=unwritten, error=self.trouble)

    def _give_up_waiting(self) -> None:
        """Drop the waiting offers, because there is no time left to wait for the disk."""
        while True:
            try:
                offer = self._offers.get_nowait()
            except queue.Empty:
                return
            if offer is not None:
                self._lost(offer.stream, "unwritable", offer.at_ms)

    def _show(self) -> None:
        for stream, writer in self._writers.items():
            self._metrics.written(
                stream.value,
                lines=writer.lines_written,
                size_bytes=writer.bytes_written,
                files=writer.files_finished,
            )
        self._metrics.waiting.set(self._offers.qsize())
        self._metrics.backlog_bytes.set(self._backlog_bytes)

    @property
    def _backlog_bytes(self) -> int:
        return sum(writer.backlog_bytes for writer in self._writers.values())

    # --- losses ------------------------------------------------------------------------

    def _lost(self, stream: Stream, why: str, at_ms: int) -> None:
        self._metrics.dropped_total.labels(why).inc()
        with self._lock:
            loss = self._losses.get(stream)
            if loss is None:
                self._losses[stream] = _Loss(1, why, at_ms, at_ms)
                log.error("history.records.lost", stream=stream.value, why=why)
            else:
                loss.records += 1
                loss.last_at_ms = at_ms

    def _tell_losses(self) -> None:
        """Write a line about each loss, in its place among the lines of its stream."""
        if self._backlog_bytes >= _LARGEST_BACKLOG_BYTES:
            return
        with self._lock:
            losses, self._losses = self._losses, {}
        for stream, loss in losses.items():
            record = record_of(KINDS[f"lost_{stream}"], self._wall_ms(), loss)
            self._writers[stream].add([record])


@contextmanager
def recorded(directory: Path, origin: Origin) -> Iterator[ThreadedHistory]:
    """Yield a sink for a simulation, which waits for the disk and loses nothing.

    The same records always produce the same bytes, whatever the timing. So a run that was killed
    can be repeated in the same directory. Raises `HistoryUnavailable`: the history is not complete;
    `OSError`: the directory cannot be read.
    """
    recover(Disk(), directory, writer_word(origin.writer))
    settings = HistorySettings(
        dir=str(directory),
        compression_level=1,
        max_age_days=0.0,
        max_size_gib=0.0,
        flush_interval_s=3600.0,
        queue_records=100,
    )
    history = ThreadedHistory(
        settings,
        origin,
        HistoryMetrics(CollectorRegistry()),
        wait=True,
        monotonic_s=lambda: 0.0,
    )
    history.start()
    try:
        yield history
    finally:
        history.close(_CLOSE_S)
    if history.trouble:
        raise HistoryUnavailable(f"history in {directory} is not complete: {history.trouble}")


def finish_left(directory: Path) -> int:
    """Finish the files that killed writers left in a directory; return their number.

    Files of writers that are alive on this host are left unchanged. Raises `OSError`.
    """
    return sum(one.kept_bytes > 0 for one in recover(Disk(), directory))

"""History as files: JSON lines in gzip, by hour, in a folder or at a URL."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from loadmanager.adapters.history.sink import Pace, ThreadedHistory
from loadmanager.adapters.history.storage import (
    Disk,
    HistoryUnavailable,
    RemoteStorage,
    Retention,
    Storage,
    recover,
)
from loadmanager.adapters.history.stream_writer import Rolling, StreamWriter
from loadmanager.config.sections import HistorySettings
from loadmanager.core.history.files import writer_word
from loadmanager.core.history.records import Origin
from loadmanager.core.history.schema import Stream
from loadmanager.telemetry.metrics import HistoryMetrics

__all__ = ["HistoryUnavailable", "ThreadedHistory", "finish_left", "open_history", "recorded"]

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_DAY_S: Final = 86_400.0
_CLOSE_S: Final = 600.0
_NEW_DISK: Final = Disk()


def open_history(
    settings: HistorySettings,
    origin: Origin,
    metrics: HistoryMetrics,
    *,
    wait: bool = False,
    disk: Disk = _NEW_DISK,
    monotonic_s: Callable[[], float] = time.monotonic,
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> ThreadedHistory:
    """Return the writer for ``settings``, not started yet; ``dir`` must be set.

    With ``wait`` an offer waits for room in the queue instead of being dropped. Raises
    `HistoryUnavailable`: the address needs a package that is not installed, or is invalid.
    """
    top = Path(settings.spool_dir if settings.is_remote else settings.dir)
    word = writer_word(origin.writer)
    retention = Retention(
        settings.max_age_days * _DAY_S or None, round(settings.max_size_gib * _GIB) or None
    )
    rolling = Rolling(
        roll_bytes=round(settings.roll_mib * _MIB),
        roll_s=settings.roll_interval_s,
        level=settings.compression_level,
    )
    storage = Storage(disk, top, word)
    if settings.is_remote:
        storage = RemoteStorage(settings.dir, storage, retention, wall_ms)
    return ThreadedHistory(
        [
            StreamWriter(stream, origin, top, disk, rolling, monotonic_s=monotonic_s)
            for stream in Stream
            if settings.write in {"all", stream.value}
        ],
        storage,
        pace=Pace(
            flush_s=settings.flush_interval_s, most_waiting=settings.queue_records, wait=wait
        ),
        retention=retention,
        recover=lambda: recover(disk, top, word),
        metrics=metrics,
        monotonic_s=monotonic_s,
        wall_ms=wall_ms,
    )


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
    history = open_history(
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

"""History as files: JSON lines in gzip, by hour, in a folder or at a URL."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from loadmanager.adapters.history.disk import Disk, LocalDisk
from loadmanager.adapters.history.keeping import Retention, recover
from loadmanager.adapters.history.shelves import (
    HistoryUnavailable,
    LocalShelf,
    RemoteShelf,
    Shelf,
)
from loadmanager.adapters.history.sink import Pace, ThreadedHistory
from loadmanager.adapters.history.stream_writer import Rolling, StreamWriter
from loadmanager.config.history import HistorySettings
from loadmanager.core.history import Origin, Stream
from loadmanager.core.history.files import writer_word
from loadmanager.telemetry.history import HistoryMetrics

__all__ = ["HistoryUnavailable", "ThreadedHistory", "open_history"]

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_DAY_S: Final = 86_400.0
_NEW_DISK: Final = LocalDisk()


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
    """Return the writer that ``settings`` ask for, not started yet; ``dir`` must be set.

    With ``wait`` an offer waits for room instead of being given up.

    Raises:
        HistoryUnavailable: the address cannot be used with what is installed.
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
    local = LocalShelf(disk, top, word)
    shelf: Shelf = local
    if settings.is_remote:
        shelf = RemoteShelf(settings.dir, local, word, retention, wall_ms)
    return ThreadedHistory(
        [
            StreamWriter(stream, origin, top, disk, rolling, monotonic_s=monotonic_s)
            for stream in Stream
            if settings.write in {"all", stream.value}
        ],
        shelf,
        pace=Pace(
            flush_s=settings.flush_interval_s, most_waiting=settings.queue_records, wait=wait
        ),
        retention=retention,
        recover=lambda: recover(disk, top, word),
        metrics=metrics,
        monotonic_s=monotonic_s,
        wall_ms=wall_ms,
    )

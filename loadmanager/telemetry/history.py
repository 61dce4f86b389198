from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

WHYS: Final = ("queue_full", "unwritable", "unfit")
STREAMS: Final = ("reports", "rounds")


class HistoryMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"loadmanager_history_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"loadmanager_history_{name}", text, registry=registry)

        self._lines = counter("lines_total", "Lines of history written, by stream.", "stream")
        self._bytes = counter("bytes_total", "Compressed bytes written, by stream.", "stream")
        self._files = counter("files_total", "Files that were finished, by stream.", "stream")
        self.dropped = counter("dropped_total", "History records dropped, by reason.", "why")
        self.errors = counter("errors_total", "Flushes of history that failed.")
        self.uploads = counter("uploads_total", "Files brought to a remote address.")
        self.deletions = counter("deletions_total", "Files deleted by retention.")
        self.waiting = gauge("waiting", "Records that wait for the writer.")
        self.backlog_bytes = gauge("backlog_bytes", "Lines that are not on disk yet.")
        self.flushed_at_s = gauge("flushed_timestamp_seconds", "When all lines were last on disk.")
        self._shown: dict[str, tuple[int, int, int]] = {}
        for why in WHYS:
            self.dropped.labels(why)
        for stream in STREAMS:
            self.written(stream, lines=0, size_bytes=0, files=0)

    def written(self, stream: str, *, lines: int, size_bytes: int, files: int) -> None:
        before = self._shown.get(stream, (0, 0, 0))
        self._shown[stream] = (lines, size_bytes, files)
        for counter, now, then in zip(
            (self._lines, self._bytes, self._files), (lines, size_bytes, files), before, strict=True
        ):
            counter.labels(stream).inc(now - then)

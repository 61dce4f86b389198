from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.history.records import Record, report_record
from loadmanager.core.history.schema import Stream
from loadmanager.core.load import LoadReport


class HistorySink(Protocol):
    """Takes records of history. Nothing here waits or raises."""

    @property
    def trouble(self) -> str:
        """Why lines cannot be written now; empty if they can."""

    def wants(self, stream: Stream) -> bool: ...

    def offer(self, stream: Stream, at_ms: int, make: Callable[[], Iterable[Record]]) -> None:
        """Have records written soon; ``make`` may run later, on another thread.

        What it reads must not change any more. ``at_ms`` is when it happened.
        """


class NoHistory:
    trouble: Final = ""

    def wants(self, _stream: Stream) -> bool:
        return False

    def offer(
        self, _stream: Stream, _at_ms: int, _make: Callable[[], Iterable[Record]]
    ) -> None: ...


def offer_report(sink: HistorySink, report: LoadReport, at_ms: int, **facts: Any) -> None:
    """Have a report's line written soon; ``facts`` are those of `report_record`."""
    sink.offer(Stream.REPORTS, at_ms, lambda: [report_record(report, at_ms=at_ms, **facts)])


class SeedUnreadable(LoadManagerError):
    """There is no seed, or none that can be used; the text says where and why."""

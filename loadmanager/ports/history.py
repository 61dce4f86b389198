"""Where history goes, as the application sees it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from loadmanager.core.history import Record, Stream, report_record
from loadmanager.core.load import LoadReport


class HistorySink(Protocol):
    """Takes records of history. Nothing here waits or raises."""

    @property
    def trouble(self) -> str:
        """What keeps lines from being written now; empty if nothing does."""

    def wants(self, stream: Stream) -> bool:
        """Say whether records of a stream are written at all."""

    def offer(self, stream: Stream, at_ms: int, make: Callable[[], Iterable[Record]]) -> None:
        """Have records written soon; ``make`` may run later, on another thread.

        What it reads must not change any more. ``at_ms`` is when it happened.
        """


class NoHistory:
    """Keeps none."""

    trouble: Final = ""

    def wants(self, _stream: Stream) -> bool:
        """Want nothing."""
        return False

    def offer(self, _stream: Stream, _at_ms: int, _make: Callable[[], Iterable[Record]]) -> None:
        """Drop it."""


def offer_report(
    sink: HistorySink,
    report: LoadReport,
    at_ms: int,
    *,
    due: str,
    interval_s: float | None,
    window_s: float | None,
    columns: Mapping[str, list[Any]] | None = None,
) -> None:
    """Have a report's line written soon; see `report_record`."""
    sink.offer(
        Stream.REPORTS,
        at_ms,
        lambda: [
            report_record(
                report,
                at_ms=at_ms,
                due=due,
                interval_s=interval_s,
                window_s=window_s,
                columns=columns,
            )
        ],
    )

"""Where history goes, as the application sees it."""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from loadmanager.core.history import Record, Stream


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

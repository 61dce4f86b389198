"""The in-memory broker on a clock that a test sets."""

from collections.abc import Callable
from typing import Self

from loadmanager.reference_broker.changes import Change
from loadmanager.reference_broker.memory_broker import MemoryBroker


class TimedBroker(MemoryBroker):
    """A broker whose clock is set for each call: ``broker.at(103.0).load(...)``."""

    def __init__(
        self, record: Callable[[Change], None], now_s: float, incarnation: str = "i1"
    ) -> None:
        self._now_s = now_s
        super().__init__(
            broker="b1:8080",
            incarnation=incarnation,
            clock_s=lambda: self._now_s,
            record=record,
            hash_name="murmur3",
        )

    def at(self, now_s: float) -> Self:
        self._now_s = now_s
        return self

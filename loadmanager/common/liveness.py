"""Whether the work that a process is there for still begins; what hangs is to be restarted."""

from collections.abc import Callable
from time import monotonic
from typing import Final

LEAST_S: Final = 30.0
"""No work counts as overdue before: answers of ZooKeeper and of brokers may take that long."""


class Liveness:
    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        self._clock_s = clock_s
        self._begun: dict[str, tuple[float, Callable[[], float]]] = {}

    def begun(self, work: str, interval_s: Callable[[], float]) -> None:
        """Note that ``work`` begins, and expect it again within three times its interval."""
        self._begun[work] = self._clock_s(), interval_s

    def over(self, work: str) -> None:
        self._begun.pop(work, None)

    def overdue(self) -> str:
        """Return which work has not begun in time, "" if all has. Any thread may ask."""
        now_s = self._clock_s()
        return "; ".join(
            f"no {work} has begun for {now_s - since_s:.0f} s"
            for work, (since_s, interval_s) in tuple(self._begun.items())
            if now_s - since_s > max(3 * interval_s(), LEAST_S)
        )

"""The acknowledged entries of a subscription. Pure: entries are numbered as in `TopicLog`."""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice


class Cursor:
    """All entries below ``acked_below``, and some after it."""

    def __init__(self, acked_below: int, acked: Iterable[int] = ()) -> None:
        self.acked_below = acked_below
        self._acked = {number for number in acked if number >= acked_below}
        self._advance()

    def __contains__(self, number: int) -> bool:
        """Return whether this entry is acknowledged."""
        return number < self.acked_below or number in self._acked

    def ack(self, number: int) -> None:
        """Acknowledge one entry."""
        if number >= self.acked_below:
            self._acked.add(number)
            self._advance()

    def ack_through(self, number: int) -> None:
        """Acknowledge this entry and all before it."""
        if number >= self.acked_below:
            self.acked_below = number + 1
            self._acked = {one for one in self._acked if one > number}
            self._advance()

    def reset(self, number: int) -> None:
        """Cancel all acknowledgements from ``number`` on; acknowledge all entries before it."""
        self.acked_below = number
        self._acked.clear()

    def ranges(self, limit: int) -> Iterator[tuple[int, int]]:
        """Yield first and last of the first ``limit`` runs of entries after ``acked_below``."""
        runs = groupby(enumerate(sorted(self._acked)), key=lambda pair: pair[1] - pair[0])
        for _, run in islice(runs, limit):
            numbers = [number for _, number in run]
            yield numbers[0], numbers[-1]

    def _advance(self) -> None:
        while self.acked_below in self._acked:
            self._acked.discard(self.acked_below)
            self.acked_below += 1

"""What a subscription has acknowledged. Pure: entries are numbered from the log's start."""

from collections.abc import Iterable, Iterator


class Cursor:
    """All entries below ``acked_below``, and some beyond it."""

    def __init__(self, acked_below: int, acked: Iterable[int] = ()) -> None:
        self.acked_below = acked_below
        self._acked = {number for number in acked if number >= acked_below}
        self._advance()

    def __contains__(self, number: int) -> bool:
        """Tell whether this entry is acknowledged."""
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
        """Take back all acknowledgements from ``number`` on; acknowledge all before."""
        self.acked_below = number
        self._acked.clear()

    def ranges(self, limit: int) -> Iterator[tuple[int, int]]:
        """Yield first and last of the first ``limit`` runs of entries beyond ``acked_below``."""
        first = last = -1
        for number in sorted(self._acked):
            if number == last + 1 and first >= 0:
                last = number
                continue
            if first >= 0:
                yield first, last
                limit -= 1
            if not limit:
                return
            first = last = number
        if first >= 0:
            yield first, last

    def _advance(self) -> None:
        while self.acked_below in self._acked:
            self._acked.discard(self.acked_below)
            self.acked_below += 1

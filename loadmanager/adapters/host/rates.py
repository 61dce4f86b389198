"""From counters to rates."""

from collections.abc import Hashable


class Rate:
    """The rate of one counter between the last two readings."""

    def __init__(self) -> None:
        self._source: Hashable = None
        self._at_s = 0.0
        self._count: float | None = None

    def per_s(self, count: float, at_s: float, source: Hashable) -> float | None:
        """Return the mean rate since the last reading of the same source.

        None at the first reading, if the clock did not advance, and if the counter went
        back: then it was reset, and how much it counted is not known. The reading is
        the start of the next window in any case.
        """
        before, since_s = self._count, at_s - self._at_s
        comparable = source == self._source
        self._source, self._at_s, self._count = source, at_s, count
        if before is None or not comparable or since_s <= 0 or count < before:
            return None
        return (count - before) / since_s

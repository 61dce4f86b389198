"""Traffic of one bundle of the in-memory broker: rates over a sliding window."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loadmanager.core.ids import TopicName
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import BYTES_IN, MSGS_IN, Rates

# More slots would follow changes of load more closely; with ten the error is at most a tenth.
SLOTS = 10


def _zeros() -> list[int]:
    return [0, 0, 0, 0]


@dataclass(slots=True)
class _Slot:
    """Messages and bytes of one part of the window, in the order of `Rates.row`."""

    index: int
    total: list[int] = field(default_factory=_zeros)
    topics: dict[TopicName, list[int]] = field(default_factory=lambda: defaultdict(_zeros))


class BundleTraffic:
    """Messages and bytes of one bundle and its topics over the last ``window_s`` seconds.

    Each slot is a tenth of the window. A rate is the sum of the slots in the last window over the
    time that they cover, at least one slot, so that the first message after a load is not a
    burst. Topics are counted since the load, producers over the last window.
    """

    def __init__(self, window_s: float, since_s: float) -> None:
        self._window_s = window_s
        self._slot_s = window_s / SLOTS
        self._since_s = since_s
        self._slots: deque[_Slot] = deque()
        self._topics: set[TopicName] = set()
        # Ordered by last activity, so that old entries are removed from the front.
        self._producers: dict[str, float] = {}

    def add(self, *, topic: TopicName, producer: str, payload_bytes: int, now_s: float) -> None:
        """Count a message."""
        self._forget_old(now_s)
        index = self._index(now_s)
        if not self._slots or self._slots[-1].index != index:
            self._slots.append(_Slot(index))
        slot = self._slots[-1]
        self._topics.add(topic)
        for count in (slot.total, slot.topics[topic]):
            count[MSGS_IN] += 1
            count[BYTES_IN] += payload_bytes
        self._producers.pop(producer, None)
        self._producers[producer] = now_s

    def stats(self, now_s: float) -> BundleStats:
        """Return the rates and counts as of ``now_s``."""
        self._forget_old(now_s)
        return BundleStats(
            *self._rates((slot.total for slot in self._slots), now_s).row(),
            topics=len(self._topics),
            producers=len(self._producers),
        )

    def topics(self, now_s: float) -> Mapping[TopicName, Rates]:
        """Return the rates of each topic as of ``now_s``; those of idle topics are zero."""
        self._forget_old(now_s)
        counts: dict[TopicName, list[Sequence[int]]] = {topic: [] for topic in self._topics}
        for slot in self._slots:
            for topic, count in slot.topics.items():
                counts[topic].append(count)
        return {topic: self._rates(found, now_s) for topic, found in counts.items()}

    def _rates(self, counts: Iterable[Sequence[int]], now_s: float) -> Rates:
        covered_s = self._covered_s(now_s)
        return Rates(*(sum(column) / covered_s for column in zip(_zeros(), *counts, strict=True)))

    def _index(self, now_s: float) -> int:
        return int(now_s / self._slot_s)

    def _covered_s(self, now_s: float) -> float:
        oldest_s = (self._index(now_s) - SLOTS + 1) * self._slot_s
        return max(now_s - max(oldest_s, self._since_s), self._slot_s)

    def _forget_old(self, now_s: float) -> None:
        oldest = self._index(now_s) - SLOTS + 1
        while self._slots and self._slots[0].index < oldest:
            self._slots.popleft()
        while self._producers:
            producer = next(iter(self._producers))
            if self._producers[producer] > now_s - self._window_s:
                return
            del self._producers[producer]

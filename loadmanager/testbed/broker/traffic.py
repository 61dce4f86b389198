"""Traffic of one bundle of the in-memory broker: rates over a sliding window."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadmanager.core.ids import TopicName
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates

# More slots would follow changes of load more closely; with ten the error is at most a tenth.
SLOTS = 10


@dataclass(slots=True)
class _Count:
    """Messages and bytes, in from producers and out to consumers."""

    messages: int = 0
    payload_bytes: int = 0
    messages_out: int = 0
    payload_bytes_out: int = 0

    def add(self, messages: int, payload_bytes: int) -> None:
        self.messages += messages
        self.payload_bytes += payload_bytes

    def add_out(self, messages: int, payload_bytes: int) -> None:
        self.messages_out += messages
        self.payload_bytes_out += payload_bytes

    def merge(self, other: "_Count") -> None:
        self.add(other.messages, other.payload_bytes)
        self.add_out(other.messages_out, other.payload_bytes_out)


@dataclass(slots=True)
class _Slot:
    index: int
    total: _Count = field(default_factory=_Count)
    topics: dict[TopicName, _Count] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clients:
    """Numbers of producers and consumers connected to one topic."""

    producers: int
    consumers: int


class BundleTraffic:
    """Messages and bytes of one bundle and its topics over the last ``window_s`` seconds.

    Each slot is a tenth of the window. A rate is the sum of the slots in the last window over the
    time that they cover, at least one slot, so that the first message after a load is not a
    burst. Topics are counted since the load. Producers that publish without a connection are
    counted over the last window, connected clients while they are connected.
    """

    def __init__(self, window_s: float, since_s: float) -> None:
        self._window_s = window_s
        self._slot_s = window_s / SLOTS
        self._since_s = since_s
        self._slots: deque[_Slot] = deque()
        self._topics: set[TopicName] = set()
        # Ordered by last activity, so that old entries are removed from the front.
        self._producers: dict[str, float] = {}
        self._clients: dict[TopicName, Clients] = {}

    def add(
        self,
        *,
        topic: TopicName,
        producer: str | None,
        payload_bytes: int,
        now_s: float,
        messages: int = 1,
    ) -> None:
        """Count messages of ``payload_bytes``; a producer without a name is a connected one."""
        for count in self._counts(topic, now_s):
            count.add(messages, payload_bytes)
        if producer is not None:
            self._producers.pop(producer, None)
            self._producers[producer] = now_s

    def add_out(self, *, topic: TopicName, messages: int, payload_bytes: int, now_s: float) -> None:
        """Count messages sent to a consumer."""
        for count in self._counts(topic, now_s):
            count.add_out(messages, payload_bytes)

    def connected(self, topic: TopicName, clients: Clients) -> None:
        """Record the clients that are connected to ``topic`` now."""
        self._topics.add(topic)
        self._clients[topic] = clients

    def _counts(self, topic: TopicName, now_s: float) -> tuple[_Count, _Count]:
        self._forget_old(now_s)
        index = self._index(now_s)
        if not self._slots or self._slots[-1].index != index:
            self._slots.append(_Slot(index))
        slot = self._slots[-1]
        of_topic = slot.topics.get(topic)
        if of_topic is None:
            of_topic = slot.topics[topic] = _Count()
            self._topics.add(topic)
        return slot.total, of_topic

    def stats(self, now_s: float) -> BundleStats:
        """Return the rates and counts as of ``now_s``."""
        self._forget_old(now_s)
        covered_s = self._covered_s(now_s)
        total = _Count()
        for slot in self._slots:
            total.merge(slot.total)
        clients = self._clients.values()
        return BundleStats(
            msgs_in_per_s=total.messages / covered_s,
            msgs_out_per_s=total.messages_out / covered_s,
            bytes_in_per_s=total.payload_bytes / covered_s,
            bytes_out_per_s=total.payload_bytes_out / covered_s,
            topics=len(self._topics),
            producers=len(self._producers) + sum(one.producers for one in clients),
            consumers=sum(one.consumers for one in clients),
        )

    def topics(self, now_s: float) -> Mapping[TopicName, Rates]:
        """Return the rates of each topic as of ``now_s``; idle ones have none."""
        self._forget_old(now_s)
        covered_s = self._covered_s(now_s)
        counts = {topic: _Count() for topic in self._topics}
        for slot in self._slots:
            for topic, count in slot.topics.items():
                counts[topic].merge(count)
        return {
            topic: Rates(
                msgs_in_per_s=count.messages / covered_s,
                msgs_out_per_s=count.messages_out / covered_s,
                bytes_in_per_s=count.payload_bytes / covered_s,
                bytes_out_per_s=count.payload_bytes_out / covered_s,
            )
            for topic, count in counts.items()
        }

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

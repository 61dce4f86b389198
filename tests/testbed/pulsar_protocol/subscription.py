"""Subscriptions: which consumer gets which message, and what is delivered again."""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Final

from tests.testbed.pulsar_protocol.clients import Consumer, Refused
from tests.testbed.pulsar_protocol.cursor import Cursor
from tests.testbed.pulsar_protocol.fields import Command
from tests.testbed.pulsar_protocol.protocol import ServerError, SubscriptionType
from tests.testbed.pulsar_protocol.topic_log import Entry, TopicLog

MAX_UNACKED: Final = 50_000
"""Unacknowledged entries of one consumer of a shared subscription; Pulsar's default."""


class Subscription:
    """One subscription of a topic.

    Exclusive and failover: one consumer gets all messages, in order; when it leaves, the next one
    begins at the first message that is not acknowledged. Shared: messages go in turn to consumers
    that have permits; what a consumer has not acknowledged when it leaves is delivered to others.

    Args:
        name: as consumers give it.
        kind: how it is shared; it may change while no consumer is connected.
        log: the log of the topic.
        cursor: what is acknowledged already.
        durable: whether it is kept when its last consumer leaves.
        delivered: is called with the messages and payload bytes that were sent.
    """

    def __init__(
        self,
        name: str,
        kind: SubscriptionType,
        log: TopicLog,
        cursor: Cursor,
        *,
        durable: bool,
        delivered: Callable[[int, int], None],
    ) -> None:
        self.name = name
        self.kind = kind
        self.durable = durable
        self.cursor = cursor
        self.dirty = False
        """Whether the cursor changed since it was saved."""
        self.consumers: list[Consumer] = []
        self._log = log
        self._delivered = delivered
        self._next_new = cursor.acked_below
        self._again: list[int] = []
        self._redeliveries: dict[int, int] = {}
        self._turn = 0
        self._active: Consumer | None = None

    def add(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Connect a consumer.

        Raises:
            Refused: another one is connected, and the kinds do not allow both.
        """
        if self.consumers and (kind is not self.kind or kind is SubscriptionType.EXCLUSIVE):
            held = f"{len(self.consumers)} consumers on it, {self.kind.name.lower()}"
            raise Refused(ServerError.CONSUMER_BUSY, f"subscription {self.name!r} has {held}")
        if kind is not self.kind:
            self.kind = kind
            self._rewind()
        self.consumers.append(consumer)

    def settle(self) -> None:
        """Choose the active consumer again, notify failover consumers, and deliver."""
        if self.kind is not SubscriptionType.SHARED:
            active = min(self.consumers, key=lambda one: one.priority, default=None)
            if active is not self._active:
                self._active = active
                self._rewind()
            if self.kind is SubscriptionType.FAILOVER:
                for one in self.consumers:
                    change = {"consumer_id": one.client_id, "is_active": one is active}
                    one.line.send(Command.ACTIVE_CONSUMER_CHANGE, **change)
        self.dispatch()

    def remove(self, consumer: Consumer) -> None:
        """Disconnect a consumer; its unacknowledged entries go to others."""
        self.consumers.remove(consumer)
        self._take_back(consumer, list(consumer.unacked))
        self.settle()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Give a consumer ``permits`` more messages."""
        consumer.permits += permits
        self.dispatch()

    def ack(self, number: int) -> None:
        """Acknowledge one entry, of any consumer."""
        self.cursor.ack(number)
        self._acknowledged([number])

    def ack_through(self, number: int) -> None:
        """Acknowledge an entry and all before it."""
        self.cursor.ack_through(number)
        self._acknowledged({n for one in self.consumers for n in one.unacked if n <= number})

    def redeliver(self, consumer: Consumer, numbers: Iterable[int] | None) -> None:
        """Deliver these unacknowledged entries of a consumer again, or all for None."""
        if self.kind is SubscriptionType.SHARED and numbers is not None:
            again = [number for number in numbers if number in consumer.unacked]
        else:
            again = list(consumer.unacked)
        self._take_back(consumer, again)
        self.dispatch()

    def seek(self, number: int) -> None:
        """Start at this entry: all before it are acknowledged, and none from it on."""
        self.cursor.reset(number)
        self.dirty = self.durable
        self._rewind()

    def dispatch(self) -> None:
        """Deliver while there are entries and a consumer with permits."""
        while (consumer := self._next_consumer()) is not None:
            number = self._next_number()
            if number is None:
                return
            self._deliver(consumer, number, self._log.read(number))

    def _deliver(self, consumer: Consumer, number: int, entry: Entry) -> None:
        self._turn = self.consumers.index(consumer) + 1
        consumer.permits -= entry.messages
        consumer.unacked[number] = None
        consumer.line.send(
            Command.MESSAGE,
            entry.payload,
            consumer_id=consumer.client_id,
            message_id=entry.position.fields,
            redelivery_count=self._redeliveries.get(number, 0),
        )
        self._delivered(entry.messages, len(entry.payload))

    def _next_consumer(self) -> Consumer | None:
        if self.kind is not SubscriptionType.SHARED:
            active = self._active
            return active if active is not None and _accepts(active) else None
        turn = self._turn % max(1, len(self.consumers))
        in_turn = (*self.consumers[turn:], *self.consumers[:turn])
        ready = (one for one in in_turn if _accepts(one) and len(one.unacked) < MAX_UNACKED)
        return next(ready, None)

    def _next_number(self) -> int | None:
        while self._again:
            number = heappop(self._again)
            if number not in self.cursor and number >= self._log.first_number:
                return number
        self._next_new = max(self._next_new, self._log.first_number, self.cursor.acked_below)
        while self._next_new < self._log.end_number:
            self._next_new += 1
            if self._next_new - 1 not in self.cursor:
                return self._next_new - 1
        return None

    def _take_back(self, consumer: Consumer, numbers: Iterable[int]) -> None:
        for number in numbers:
            del consumer.unacked[number]
            if number in self.cursor:
                continue
            self._redeliveries[number] = self._redeliveries.get(number, 0) + 1
            heappush(self._again, number)

    def _acknowledged(self, numbers: Iterable[int]) -> None:
        self.dirty = self.durable
        for number in numbers:
            self._redeliveries.pop(number, None)
            for consumer in self.consumers:
                consumer.unacked.pop(number, None)

    def _rewind(self) -> None:
        """Begin again at the first entry that is not acknowledged."""
        self._next_new = self.cursor.acked_below
        self._again.clear()
        for consumer in self.consumers:
            consumer.unacked.clear()


def _accepts(consumer: Consumer) -> bool:
    return consumer.permits > 0 and not consumer.line.congested

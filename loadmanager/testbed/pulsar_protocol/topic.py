"""One topic that this broker serves: its log, its producers, its subscriptions."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.ids import BundleId, TopicName, namespace_of, range_of
from loadmanager.testbed.pulsar_protocol.clients import Consumer, Producer, Refused
from loadmanager.testbed.pulsar_protocol.cursor import Cursor
from loadmanager.testbed.pulsar_protocol.frames import PayloadFacts
from loadmanager.testbed.pulsar_protocol.protocol import ServerError, SubscriptionType
from loadmanager.testbed.pulsar_protocol.subscription import Subscription
from loadmanager.testbed.pulsar_protocol.topic_log import Entry, Fenced, Position, TopicLog

MAX_SUBSCRIPTIONS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a consumer subscribes to, and from where if the subscription is new."""

    subscription: str
    kind: SubscriptionType
    durable: bool
    earliest: bool
    start: Position | None = None
    start_inside: bool = False


class ServedTopic:
    """A topic while its bundle is served here; once ``closed`` it obeys nothing any more.

    Args:
        name: the topic.
        at: its position on the hash circle.
        bundle: the bundle it is in now; a split changes that.
        log: its log, opened under the bundle's token.
        delivered: is called with messages and payload bytes that were sent to consumers.
    """

    def __init__(
        self,
        name: TopicName,
        at: int,
        bundle: BundleId,
        log: TopicLog,
        delivered: Callable[[int, int], None],
    ) -> None:
        self.name = name
        self._at = at
        self.bundle = bundle
        self.closed = False
        self.idle_rounds = 0
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self._log = log
        self._delivered = delivered
        for each, cursor in log.cursors.items():
            self._add_subscription(each, SubscriptionType.EXCLUSIVE, cursor, durable=True)

    @property
    def consumers(self) -> list[Consumer]:
        """All consumers of all subscriptions."""
        return [one for each in self.subscriptions.values() for one in each.consumers]

    def is_in(self, bundle: BundleId) -> bool:
        """Tell whether ``bundle`` is one that holds this topic."""
        lower, upper = range_of(bundle)
        within = lower <= self._at < upper or self._at == upper == FULL_RANGE_END
        return within and namespace_of(bundle) == self.name.namespace

    def add_producer(self, producer: Producer) -> None:
        """Connect a producer; a client that comes back takes the place of its former self.

        Raises:
            Refused: another one has the name.
        """
        present = self.producers.get(producer.name)
        if present is not None:
            again = present.producer_id == producer.producer_id and producer.epoch > present.epoch
            if not again:
                text = f"producer {producer.name!r} is connected to {self.name} already"
                raise Refused(ServerError.PRODUCER_BUSY, text)
            present.line.drop_producer(present.producer_id)
        self.producers[producer.name] = producer

    def remove_producer(self, producer: Producer) -> None:
        """Disconnect a producer, unless it was replaced."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]

    @property
    def full(self) -> bool:
        """Whether the last write to the log failed."""
        return self._log.full

    def publish(self, facts: PayloadFacts, payload: bytes) -> Entry:
        """Append to the log; `deliver` hands it on.

        Raises:
            Fenced, LogFull, OSError: see `TopicLog.append`.
        """
        return self._log.append(facts.publish_time_ms, facts.messages, payload)

    def deliver(self) -> None:
        """Hand on what consumers can take.

        Nothing any more once the topic is closed: acknowledging the last message of a
        bundle that is being unloaded may have closed it.
        """
        if self.closed:
            return
        for subscription in self.subscriptions.values():
            subscription.dispatch()

    def subscribe(self, consumer: Consumer, wanted: Wanted) -> Subscription:
        """Connect a consumer; call `Subscription.settle` once it has its reply.

        Raises:
            Refused: another consumer is in the way, or there are too many subscriptions.
        """
        subscription = self.subscriptions.get(wanted.subscription)
        if subscription is None:
            if len(self.subscriptions) >= MAX_SUBSCRIPTIONS:
                text = f"{self.name} has {MAX_SUBSCRIPTIONS} subscriptions already"
                raise Refused(ServerError.NOT_ALLOWED, text)
            subscription = self._add_subscription(
                wanted.subscription,
                wanted.kind,
                Cursor(self._start(wanted)),
                durable=wanted.durable,
            )
            if wanted.durable:
                self._log.save(subscription.name, subscription.cursor)
        elif subscription.durable != wanted.durable:
            text = f"subscription {wanted.subscription!r} exists, and is not of that durability"
            raise Refused(ServerError.NOT_ALLOWED, text)
        subscription.add(consumer, wanted.kind)
        return subscription

    def leave(self, subscription: Subscription, consumer: Consumer) -> None:
        """Disconnect a consumer; a subscription that is not durable ends with its last one."""
        subscription.remove(consumer)
        if not subscription.durable and not subscription.consumers:
            self.subscriptions.pop(subscription.name, None)

    def unsubscribe(self, subscription: Subscription, consumer: Consumer) -> None:
        """End a subscription.

        Raises:
            Refused: others are connected to it.
        """
        if subscription.consumers != [consumer]:
            text = f"subscription {subscription.name!r} has other consumers"
            raise Refused(ServerError.CONSUMER_BUSY, text)
        subscription.remove(consumer)
        del self.subscriptions[subscription.name]
        self._log.forget(subscription.name)

    def seek(self, subscription: Subscription, to: Position | None, publish_time_ms: int) -> None:
        """Set a subscription to a message id, or to a time if there is none."""
        at = self._log.number_at(publish_time_ms) if to is None else self._log.number(to)
        subscription.seek(at)

    def number(self, position: Position) -> int | None:
        """Return the number of the entry with this message id, None if it is gone."""
        return self._log.holds(position)

    def last_message(self) -> tuple[Position, int]:
        """Return the newest message id and batch index; (-1, -1) and -1 when there is none."""
        end = self._log.end_number
        if end == self._log.first_number:
            return Position(-1, -1), -1
        last = self._log.read(end - 1)
        return last.position, last.messages - 1 if last.messages > 1 else -1

    def mark_delete_position(self, subscription: Subscription) -> Position:
        """Return the last message id up to which all is acknowledged."""
        below = subscription.cursor.acked_below
        return self._log.position(below - 1) if below > self._log.first_number else Position(-1, -1)

    def save(self) -> None:
        """Write down how far subscriptions have come, where that changed.

        Raises:
            Fenced, OSError: see `TopicLog.save`.
        """
        for subscription in self.subscriptions.values():
            if subscription.dirty:
                subscription.dirty = False
                self._log.save(subscription.name, subscription.cursor)

    def close(self) -> None:
        """Obey nothing any more; write down what is known, if the log is still ours."""
        self.closed = True
        try:
            with suppress(Fenced):
                self.save()
        finally:
            self._log.close()

    def _add_subscription(
        self, name: str, kind: SubscriptionType, cursor: Cursor, *, durable: bool
    ) -> Subscription:
        made = Subscription(
            name, kind, self._log, cursor, durable=durable, delivered=self._delivered
        )
        made.dirty = False
        self.subscriptions[name] = made
        return made

    def _start(self, wanted: Wanted) -> int:
        """Return where a new subscription begins; after a start message, unless inside a batch."""
        if wanted.start is None:
            return self._log.first_number if wanted.earliest else self._log.end_number
        number = self._log.number(wanted.start)
        held = self._log.holds(wanted.start) is not None
        return number + 1 if held and not wanted.start_inside else number

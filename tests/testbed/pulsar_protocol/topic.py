"""One topic that this broker serves: its log, its producers, its subscriptions."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from loadmanager.core.hashing import lies_in
from loadmanager.core.ids import BundleId, TopicName, namespace_of
from tests.testbed.pulsar_protocol.clients import Consumer, Producer, Refused
from tests.testbed.pulsar_protocol.cursor import Cursor
from tests.testbed.pulsar_protocol.protocol import ServerError, SubscriptionType
from tests.testbed.pulsar_protocol.subscription import Subscription
from tests.testbed.pulsar_protocol.topic_log import Fenced, Position, TopicLog

MAX_SUBSCRIPTIONS: Final = 1_000
_EARLIEST: Final = 1
_NO_POSITION: Final = Position(-1, -1)


class ServedTopic:
    """A topic while its bundle is served here; a ``closed`` one does nothing any more.

    Args:
        name: the topic.
        at: its position on the hash circle.
        bundle: its bundle now; a split changes that.
        log: its log, opened under the bundle's token; `deliver` sends what is appended to it.
        delivered: is called with the messages and payload bytes that were sent to consumers.
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
        self.log = log
        self._delivered = delivered
        for each, cursor in log.cursors.items():
            self._add_subscription(each, SubscriptionType.EXCLUSIVE, cursor, durable=True)

    @property
    def consumers(self) -> list[Consumer]:
        """All consumers of all subscriptions."""
        return [one for each in self.subscriptions.values() for one in each.consumers]

    def is_in(self, bundle: BundleId) -> bool:
        """Return whether ``bundle`` holds this topic."""
        return namespace_of(bundle) == self.name.namespace and lies_in(self._at, bundle)

    def add_producer(self, producer: Producer) -> None:
        """Connect a producer; a client that reconnects replaces its former producer.

        Raises:
            Refused: another producer has the name.
        """
        present = self.producers.get(producer.name)
        if present is not None:
            again = present.client_id == producer.client_id and producer.epoch > present.epoch
            if not again:
                text = f"producer {producer.name!r} is connected to {self.name} already"
                raise Refused(ServerError.PRODUCER_BUSY, text)
            present.forget()
        self.producers[producer.name] = producer

    def remove_producer(self, producer: Producer) -> None:
        """Disconnect a producer, unless it was replaced."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]

    def deliver(self) -> None:
        """Send consumers the messages that they have permits for.

        A closed topic sends nothing: acknowledging the last message of a bundle that is being
        unloaded may have closed it.
        """
        if self.closed:
            return
        for subscription in self.subscriptions.values():
            subscription.dispatch()

    def subscribe(self, consumer: Consumer, asked: Any) -> Subscription:
        """Connect a consumer; call `Subscription.settle` once it has its reply.

        Args:
            consumer: the new consumer.
            asked: the fields of its SUBSCRIBE command.

        Raises:
            Refused: another consumer prevents it, or there are too many subscriptions.
        """
        name, durable, kind = asked.subscription, asked.durable, SubscriptionType(asked.sub_type)
        subscription = self.subscriptions.get(name)
        if subscription is None:
            if len(self.subscriptions) >= MAX_SUBSCRIPTIONS:
                text = f"{self.name} has {MAX_SUBSCRIPTIONS} subscriptions already"
                raise Refused(ServerError.NOT_ALLOWED, text)
            cursor = Cursor(self._start(asked))
            subscription = self._add_subscription(name, kind, cursor, durable=durable)
            if durable:
                self.log.save(name, cursor)
        elif subscription.durable != durable:
            text = f"subscription {name!r} exists, and is not of that durability"
            raise Refused(ServerError.NOT_ALLOWED, text)
        subscription.add(consumer, kind)
        return subscription

    def leave(self, subscription: Subscription, consumer: Consumer) -> None:
        """Disconnect a consumer; a subscription that is not durable ends with its last one."""
        subscription.remove(consumer)
        if not subscription.durable and not subscription.consumers:
            self.subscriptions.pop(subscription.name, None)

    def unsubscribe(self, subscription: Subscription, consumer: Consumer) -> None:
        """End a subscription.

        Raises:
            Refused: it has other consumers.
        """
        if subscription.consumers != [consumer]:
            text = f"subscription {subscription.name!r} has other consumers"
            raise Refused(ServerError.CONSUMER_BUSY, text)
        subscription.remove(consumer)
        del self.subscriptions[subscription.name]
        self.log.forget(subscription.name)

    def seek(self, subscription: Subscription, to: Position | None, publish_time_ms: int) -> None:
        """Set a subscription to a message id, or to a time if there is none."""
        at = self.log.number_at(publish_time_ms) if to is None else self.log.number(to)
        subscription.seek(at)

    def last_message(self) -> tuple[Position, int]:
        """Return the newest message id and batch index; (-1, -1) and -1 when there is none."""
        end = self.log.end_number
        if end == self.log.first_number:
            return _NO_POSITION, -1
        last = self.log.read(end - 1)
        return last.position, last.messages - 1 if last.messages > 1 else -1

    def mark_delete_position(self, subscription: Subscription) -> Position:
        """Return the last message id up to which all messages are acknowledged."""
        below = subscription.cursor.acked_below
        return self.log.position(below - 1) if below > self.log.first_number else _NO_POSITION

    def save(self) -> None:
        """Save the cursors that changed.

        Raises:
            Fenced, OSError: see `TopicLog.save`.
        """
        for subscription in self.subscriptions.values():
            if subscription.dirty:
                subscription.dirty = False
                self.log.save(subscription.name, subscription.cursor)

    def close(self) -> None:
        """Close the log, and save the cursors if no newer owner has opened it."""
        self.closed = True
        try:
            with suppress(Fenced):
                self.save()
        finally:
            self.log.close()

    def close_clients(self, broker_url: str | None = None) -> None:
        """Close all clients of a closed topic; they reconnect at ``broker_url`` if it is known."""
        for producer in self.producers.values():
            producer.close(broker_url)
        for consumer in self.consumers:
            consumer.close(broker_url)
        self.producers.clear()
        self.subscriptions.clear()

    def _add_subscription(
        self, name: str, kind: SubscriptionType, cursor: Cursor, *, durable: bool
    ) -> Subscription:
        made = self.subscriptions[name] = Subscription(
            name, kind, self.log, cursor, durable=durable, delivered=self._delivered
        )
        return made

    def _start(self, asked: Any) -> int:
        """Return the first entry of a new subscription: after a start message, or at one end."""
        if not asked.HasField("start_message_id"):
            earliest = asked.initial_position == _EARLIEST
            return self.log.first_number if earliest else self.log.end_number
        position = Position.of(asked.start_message_id)
        number = self.log.number(position)
        # The entry of a message in a batch is delivered again; the client skips its beginning.
        whole = asked.start_message_id.batch_index < 0
        return number + 1 if whole and self.log.holds(position) is not None else number

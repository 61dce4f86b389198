"""The consumers of one connection."""

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.testbed.pulsar_protocol.clients import ClientsOfConnection, Consumer, Refused
from tests.testbed.pulsar_protocol.fields import Command
from tests.testbed.pulsar_protocol.protocol import ServerError, SubscriptionType
from tests.testbed.pulsar_protocol.subscription import Subscription
from tests.testbed.pulsar_protocol.topic import ServedTopic
from tests.testbed.pulsar_protocol.topic_log import Fenced, Position

_MAX_NAME: Final = 512
_CUMULATIVE: Final = 1


@dataclass(frozen=True, slots=True)
class _Subscribed:
    topic: ServedTopic
    subscription: Subscription
    consumer: Consumer


class Consumers(ClientsOfConnection[_Subscribed]):
    """Handles the commands of the consumers of one connection."""

    kind = "consumer"

    def subscribe(self, asked: Any) -> Coroutine[Any, Any, None]:
        """Return a coroutine that connects a consumer once its topic is served here.

        Raises:
            Refused: on the call or in the coroutine, the topic or the subscription is refused.
        """
        _check(asked)
        self._await(asked.consumer_id, asked.request_id)
        return self._subscribe(asked)

    async def _subscribe(self, asked: Any) -> None:
        topic = await self._topic(asked.consumer_id, asked)
        self._remove(asked.consumer_id)
        consumer = Consumer(
            line=self._line,
            client_id=asked.consumer_id,
            forget=self._forget(asked.consumer_id),
            priority=asked.priority_level,
        )
        with self._giving_up(topic):
            subscription = topic.subscribe(consumer, asked)
        self._open[consumer.client_id] = _Subscribed(topic, subscription, consumer)
        self._succeeded(topic, asked)
        subscription.settle()

    def flow(self, asked: Any) -> None:
        """Add permits to a consumer."""
        known = self._served(asked.consumer_id)
        if known is not None:
            known.subscription.flow(known.consumer, asked.message_permits)

    def ack(self, asked: Any) -> None:
        """Acknowledge messages; it is answered only if the client requests it."""
        known = self._served(asked.consumer_id)
        if known is not None and not asked.transaction_least and not asked.transaction_most:
            for message_id in asked.message_id:
                _acknowledge(known, message_id, cumulative=asked.ack_type == _CUMULATIVE)
        if asked.HasField("request_id"):
            ids = {"consumer_id": asked.consumer_id, "request_id": asked.request_id}
            error = {"error": ServerError.SERVICE_NOT_READY, "message": "not served"}
            self._line.send(Command.ACK_RESPONSE, **ids, **({} if known else error))

    def redeliver(self, asked: Any) -> None:
        """Deliver the named entries of a consumer again, or all that it has not acknowledged."""
        known = self._served(asked.consumer_id)
        if known is not None:
            found = (known.topic.log.holds(Position.of(one)) for one in asked.message_ids)
            numbers = [number for number in found if number is not None]
            known.subscription.redeliver(known.consumer, numbers if asked.message_ids else None)

    def seek(self, asked: Any) -> None:
        """Set a subscription to a message or to a time.

        All its consumers are closed first and come back: their unacknowledged entries are out of
        date, and they give permits again.

        Raises:
            Refused: the consumer is unknown, or its topic is not served here.
        """
        known = self._require_served(asked.consumer_id)
        to = Position.of(asked.message_id) if asked.HasField("message_id") else None
        for consumer in [*known.subscription.consumers]:
            consumer.close(self._topics.own_url)
        known.subscription.consumers.clear()
        known.subscription.settle()
        with self._giving_up(known.topic):
            known.topic.seek(known.subscription, to, asked.publish_time)
            known.topic.save()
        self._succeeded(known.topic, asked)

    def unsubscribe(self, asked: Any) -> None:
        """End a subscription.

        Raises:
            Refused: the consumer is unknown, its topic is not served here, or the subscription has
                other consumers.
        """
        known = self._require_served(asked.consumer_id)
        with self._giving_up(known.topic):
            known.topic.unsubscribe(known.subscription, known.consumer)
        del self._open[asked.consumer_id]
        self._succeeded(known.topic, asked)

    def last_message_id(self, asked: Any) -> None:
        """Answer with the newest message of a consumer's topic.

        Raises:
            Refused: the consumer is unknown, or its topic is not served here.
        """
        known = self._require_served(asked.consumer_id)
        with self._giving_up(known.topic):
            last, batch_index = known.topic.last_message()
        deleted = known.topic.mark_delete_position(known.subscription)
        self._line.send(
            Command.LAST_MESSAGE_ID_RESPONSE,
            request_id=asked.request_id,
            message_id={**last.fields, "batch_index": batch_index},
            mark_delete_position=deleted.fields,
        )

    def close(self, asked: Any) -> None:
        """Close a consumer."""
        self._close(asked.consumer_id, asked.request_id)

    def catch_up(self) -> None:
        """Deliver the messages that were held back while the connection was congested."""
        for consumer_id in [*self._open]:
            known = self._served(consumer_id)
            if known is not None:
                known.subscription.dispatch()

    def _succeeded(self, topic: ServedTopic, asked: Any) -> None:
        self._topics.count_clients(topic)
        self._line.send(Command.SUCCESS, request_id=asked.request_id)

    def _served(self, consumer_id: int) -> _Subscribed | None:
        """Return a consumer whose topic is served; commands of others come too late."""
        known = self._open.get(consumer_id)
        return known if known is not None and self._topics.serves(known.topic) else None

    def _require_served(self, consumer_id: int) -> _Subscribed:
        known = self._served(consumer_id)
        if known is None:
            text = f"consumer {consumer_id} is not connected to a topic that is served here"
            raise Refused(ServerError.SERVICE_NOT_READY, text)
        return known

    def _remove(self, client_id: int) -> None:
        known = self._open.pop(client_id, None)
        if known is not None and self._topics.serves(known.topic):
            known.topic.leave(known.subscription, known.consumer)
            self._topics.count_clients(known.topic)

    @contextmanager
    def _giving_up(self, topic: ServedTopic) -> Iterator[None]:
        """Close ``topic`` and refuse the command if its log cannot be used any more."""
        try:
            yield
        except (Fenced, OSError) as error:
            self._topics.lost(topic, error)
            raise Refused(ServerError.SERVICE_NOT_READY, str(error)) from None


def _check(asked: Any) -> None:
    """Check the subscription that a consumer requests.

    Raises:
        Refused: it is not supported.
    """
    if asked.sub_type == SubscriptionType.KEY_SHARED:
        text = "key_shared subscriptions are not supported; exclusive, shared and failover are"
        raise Refused(ServerError.NOT_ALLOWED, text)
    if asked.sub_type not in SubscriptionType.__members__.values():
        raise Refused(ServerError.NOT_ALLOWED, f"subscription type {asked.sub_type} is unknown")
    if not 0 < len(asked.subscription) <= _MAX_NAME:
        text = f"a subscription's name of {len(asked.subscription)} characters; expected 1 to 512"
        raise Refused(ServerError.NOT_ALLOWED, text)


def _acknowledge(known: _Subscribed, message_id: Any, *, cumulative: bool) -> None:
    """Acknowledge an entry; a part of a batch counts only when the rest is acknowledged too."""
    number = known.topic.log.holds(Position.of(message_id))
    if number is None:
        return
    if not cumulative and not message_id.ack_set:
        known.subscription.ack(number)
    elif cumulative:
        known.subscription.ack_through(number - 1 if message_id.ack_set else number)

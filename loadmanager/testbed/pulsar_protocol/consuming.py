"""The consumers of one connection."""

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

from loadmanager.testbed.pulsar_protocol.clients import Consumer, Line, Refused
from loadmanager.testbed.pulsar_protocol.fields import Command
from loadmanager.testbed.pulsar_protocol.names import message_id_of, position_of, topic_of
from loadmanager.testbed.pulsar_protocol.protocol import ServerError, SubscriptionType, encode
from loadmanager.testbed.pulsar_protocol.subscription import Subscription
from loadmanager.testbed.pulsar_protocol.topic import ServedTopic, Wanted
from loadmanager.testbed.pulsar_protocol.topic_log import Fenced
from loadmanager.testbed.pulsar_protocol.topics import Topics

MAX_CONSUMERS: Final = 10_000
"""Consumers on one connection."""

_MAX_NAME: Final = 512
_EARLIEST: Final = 1
_CUMULATIVE: Final = 1


@dataclass(frozen=True, slots=True)
class _Held:
    topic: ServedTopic
    subscription: Subscription
    consumer: Consumer


class Consuming:
    """Obeys what consumers send.

    Args:
        line: the connection.
        topics: the broker's.
        own_url: where a consumer that has to come back finds this broker again.
    """

    def __init__(self, line: Line, topics: Topics, own_url: str) -> None:
        self._line = line
        self._topics = topics
        self._own_url = own_url
        self._held: dict[int, _Held] = {}
        self._awaited: dict[int, int] = {}

    def subscribe(self, asked: Any) -> Coroutine[Any, Any, None]:
        """Return what connects a consumer, once its topic is served here.

        Raises:
            Refused: here or there, the topic or the subscription cannot be had.
        """
        wanted = _wanted(asked)
        if len(self._held) + len(self._awaited) >= MAX_CONSUMERS:
            text = f"the connection has {MAX_CONSUMERS} consumers already"
            raise Refused(ServerError.TOO_MANY_REQUESTS, text)
        # At once: a client that gives up closes it before it is there.
        self._awaited[asked.consumer_id] = asked.request_id
        return self._subscribe(asked, wanted)

    async def _subscribe(self, asked: Any, wanted: Wanted) -> None:
        try:
            topic = await self._topics.opened(topic_of(asked.topic))
        finally:
            present = self._awaited.get(asked.consumer_id) == asked.request_id
            if present:
                del self._awaited[asked.consumer_id]
        if not present:
            raise Refused(ServerError.SERVICE_NOT_READY, "the consumer was closed meanwhile")
        self._remove(asked.consumer_id)
        consumer = Consumer(
            line=self._line,
            consumer_id=asked.consumer_id,
            name=asked.consumer_name,
            priority=asked.priority_level,
        )
        self._connect(topic, consumer, wanted, asked.request_id)

    def flow(self, asked: Any) -> None:
        """Let a consumer have more messages."""
        held = self._served(asked.consumer_id)
        if held is not None:
            held.subscription.flow(held.consumer, asked.message_permits)

    def ack(self, asked: Any) -> None:
        """Acknowledge messages; answered only if the client requests it."""
        held = self._served(asked.consumer_id)
        if held is not None and not asked.transaction_least and not asked.transaction_most:
            for message_id in asked.message_id:
                _acknowledge(held, message_id, cumulative=asked.ack_type == _CUMULATIVE)
        if asked.HasField("request_id"):
            ids = {"consumer_id": asked.consumer_id, "request_id": asked.request_id}
            lost = {} if held else {"error": ServerError.SERVICE_NOT_READY, "message": "not served"}
            self._line.send(encode(Command.ACK_RESPONSE, **ids, **lost))

    def redeliver(self, asked: Any) -> None:
        """Deliver again what a consumer names, or all that it left open."""
        held = self._served(asked.consumer_id)
        if held is None:
            return
        named = _numbers(held.topic, asked.message_ids) if asked.message_ids else None
        held.subscription.redeliver(held.consumer, named)

    def seek(self, asked: Any) -> None:
        """Set a subscription to a message or a time.

        All its consumers are closed first and come back: what they hold is out of date, and
        their permits are recomputed.

        Raises:
            Refused: the consumer is not here.
        """
        held = self._wanted_here(asked.consumer_id)
        to = position_of(asked.message_id) if asked.HasField("message_id") else None
        for consumer in [*held.subscription.consumers]:
            consumer.close(self._own_url)
        held.subscription.consumers.clear()
        held.subscription.settle()
        with _log_of(held.topic, self._topics):
            held.topic.seek(held.subscription, to, asked.publish_time)
            held.topic.save()
        self._topics.count_clients(held.topic)
        self._line.send(encode(Command.SUCCESS, request_id=asked.request_id))

    def unsubscribe(self, asked: Any) -> None:
        """End a subscription.

        Raises:
            Refused: the consumer is not here, or others are connected.
        """
        held = self._wanted_here(asked.consumer_id)
        with _log_of(held.topic, self._topics):
            held.topic.unsubscribe(held.subscription, held.consumer)
        del self._held[asked.consumer_id]
        self._topics.count_clients(held.topic)
        self._line.send(encode(Command.SUCCESS, request_id=asked.request_id))

    def last_message_id(self, asked: Any) -> None:
        """Tell the newest message of a consumer's topic.

        Raises:
            Refused: the consumer is not here.
        """
        held = self._wanted_here(asked.consumer_id)
        with _log_of(held.topic, self._topics):
            last, batch_index = held.topic.last_message()
        deleted = held.topic.mark_delete_position(held.subscription)
        answer = encode(
            Command.LAST_MESSAGE_ID_RESPONSE,
            request_id=asked.request_id,
            message_id={**message_id_of(last), "batch_index": batch_index},
            mark_delete_position=message_id_of(deleted),
        )
        self._line.send(answer)

    def close(self, asked: Any) -> None:
        """Disconnect a consumer; one that is not there is closed already."""
        self._awaited.pop(asked.consumer_id, None)
        self._remove(asked.consumer_id)
        self._line.send(encode(Command.SUCCESS, request_id=asked.request_id))

    def drop(self, consumer_id: int) -> None:
        """Forget a consumer that the broker closed."""
        self._held.pop(consumer_id, None)

    def catch_up(self) -> None:
        """Deliver what was held back."""
        for consumer_id in [*self._held]:
            held = self._served(consumer_id)
            if held is not None:
                held.subscription.dispatch()

    def end(self) -> None:
        """Disconnect all consumers: the connection is gone."""
        for consumer_id in [*self._held]:
            self._remove(consumer_id)

    def _connect(
        self, topic: ServedTopic, consumer: Consumer, wanted: Wanted, request_id: int
    ) -> None:
        with _log_of(topic, self._topics):
            subscription = topic.subscribe(consumer, wanted)
        self._held[consumer.consumer_id] = _Held(topic, subscription, consumer)
        self._topics.count_clients(topic)
        self._line.send(encode(Command.SUCCESS, request_id=request_id))
        subscription.settle()

    def _served(self, consumer_id: int) -> _Held | None:
        """Return a consumer whose topic is served; others' commands come too late."""
        held = self._held.get(consumer_id)
        return held if held is not None and self._topics.serves(held.topic) else None

    def _wanted_here(self, consumer_id: int) -> _Held:
        held = self._served(consumer_id)
        if held is None:
            text = f"consumer {consumer_id} is not connected to a topic that is served here"
            raise Refused(ServerError.SERVICE_NOT_READY, text)
        return held

    def _remove(self, consumer_id: int) -> None:
        held = self._held.pop(consumer_id, None)
        if held is not None and self._topics.serves(held.topic):
            held.topic.leave(held.subscription, held.consumer)
            self._topics.count_clients(held.topic)


class _log_of:  # noqa: N801 - reads as what it is, a with statement
    """Within this, a log that cannot be written any more closes its topic."""

    def __init__(self, topic: ServedTopic, topics: Topics) -> None:
        self._topic = topic
        self._topics = topics

    def __enter__(self) -> None:
        """Begin a use of the topic's log."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Give the topic up if its log failed, and refuse the command."""
        if isinstance(error, Fenced | OSError):
            self._topics.lost(self._topic, error)
            raise Refused(ServerError.SERVICE_NOT_READY, str(error)) from None


def _wanted(asked: Any) -> Wanted:
    """Return the requested subscription of a consumer.

    Raises:
        Refused: the broker cannot do that.
    """
    if asked.sub_type == SubscriptionType.KEY_SHARED:
        text = "key_shared subscriptions are not supported; exclusive, shared and failover are"
        raise Refused(ServerError.NOT_ALLOWED, text)
    if asked.sub_type not in SubscriptionType.__members__.values():
        raise Refused(ServerError.NOT_ALLOWED, f"subscription type {asked.sub_type} is unknown")
    if not 0 < len(asked.subscription) <= _MAX_NAME:
        text = f"a subscription's name of {len(asked.subscription)} characters; expected 1 to 512"
        raise Refused(ServerError.NOT_ALLOWED, text)
    start = asked.start_message_id if asked.HasField("start_message_id") else None
    return Wanted(
        subscription=asked.subscription,
        kind=SubscriptionType(asked.sub_type),
        durable=asked.durable,
        earliest=asked.initial_position == _EARLIEST,
        start=None if start is None else position_of(start),
        start_inside=start is not None and start.batch_index >= 0,
    )


def _acknowledge(held: _Held, message_id: Any, *, cumulative: bool) -> None:
    """Acknowledge an entry; a part of a batch counts for nothing until the rest follows."""
    number = held.topic.number(position_of(message_id))
    if number is None:
        return
    if not cumulative and not message_id.ack_set:
        held.subscription.ack(number)
    elif cumulative:
        held.subscription.ack_through(number - 1 if message_id.ack_set else number)


def _numbers(topic: ServedTopic, message_ids: Iterable[Any]) -> list[int]:
    found = (topic.number(position_of(one)) for one in message_ids)
    return [number for number in found if number is not None]

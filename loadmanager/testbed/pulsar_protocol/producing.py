"""The producers of one connection."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from loadmanager.testbed.broker.outcomes import PublishRefused
from loadmanager.testbed.broker.running_broker import RunningBroker
from loadmanager.testbed.broker.serving_set import Ticket
from loadmanager.testbed.pulsar_protocol.clients import Line, Producer, Refused
from loadmanager.testbed.pulsar_protocol.fields import Command
from loadmanager.testbed.pulsar_protocol.frames import PayloadFacts, WrongChecksum, read_payload
from loadmanager.testbed.pulsar_protocol.names import message_id_of, topic_of
from loadmanager.testbed.pulsar_protocol.protocol import ServerError, encode
from loadmanager.testbed.pulsar_protocol.topic import ServedTopic
from loadmanager.testbed.pulsar_protocol.topic_log import Entry, Fenced, LogFull
from loadmanager.testbed.pulsar_protocol.topics import Topics


class Work:
    """What all connections of a broker share: one core's worth of work.

    Args:
        cpu_s_per_message: burnt on each message.
        spend_cpu: burns so many seconds.
    """

    def __init__(
        self, cpu_s_per_message: float, spend_cpu: Callable[[float], Awaitable[None]]
    ) -> None:
        self._cpu_s_per_message = cpu_s_per_message
        self._spend_cpu = spend_cpu
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn and hold it."""
        async with self._lock:
            yield

    async def spend(self, messages: int) -> None:
        """Burn what these messages cost."""
        if self._cpu_s_per_message:
            await self._spend_cpu(self._cpu_s_per_message * messages)


MAX_PRODUCERS: Final = 10_000
"""Producers on one connection."""

_SHARED_ACCESS: Final = 0


@dataclass(frozen=True, slots=True)
class _Held:
    topic: ServedTopic
    producer: Producer


class Namer:
    """Gives producers names that no other broker process gives."""

    def __init__(self, incarnation: str) -> None:
        self._prefix = incarnation
        self._numbers = count()

    def __call__(self) -> str:
        """Return a new name."""
        return f"{self._prefix}-{next(self._numbers)}"


class Producing:
    """Obeys what producers send.

    Args:
        line: the connection.
        broker: says whether messages may be taken, and counts them.
        topics: the broker's.
        work: what messages cost.
        new_name: a name for a producer that has none.
    """

    def __init__(
        self,
        line: Line,
        broker: RunningBroker,
        topics: Topics,
        work: Work,
        new_name: Callable[[], str],
    ) -> None:
        self._line = line
        self._broker = broker
        self._topics = topics
        self._work = work
        self._new_name = new_name
        self._held: dict[int, _Held] = {}
        self._awaited: dict[int, int] = {}

    def create(self, wanted: Any) -> Coroutine[Any, Any, None]:
        """Return what creates a producer, once its topic is served here.

        Raises:
            Refused: here or there, the topic or the producer cannot be had.
        """
        self._check(wanted)
        # At once: a client that gives up closes it before it is there.
        self._awaited[wanted.producer_id] = wanted.request_id
        return self._create(wanted)

    async def _create(self, wanted: Any) -> None:
        try:
            topic = await self._topics.opened(topic_of(wanted.topic))
        finally:
            present = self._awaited.get(wanted.producer_id) == wanted.request_id
            if present:
                del self._awaited[wanted.producer_id]
        if not present:
            raise Refused(ServerError.SERVICE_NOT_READY, "the producer was closed meanwhile")
        if topic.full:
            text = f"{topic.name}: too much is not consumed"
            raise Refused(ServerError.BACKLOG_QUOTA, text)
        producer = Producer(
            line=self._line,
            producer_id=wanted.producer_id,
            name=wanted.producer_name or self._new_name(),
            epoch=wanted.epoch,
        )
        self._remove(wanted.producer_id)
        topic.add_producer(producer)
        self._held[producer.producer_id] = _Held(topic, producer)
        self._topics.count_clients(topic)
        names = {"request_id": wanted.request_id, "producer_name": producer.name}
        self._line.send(encode(Command.PRODUCER_SUCCESS, **names, schema_version=b""))

    async def publish(self, sent: Any, payload: bytes) -> None:
        """Take a message, or a batch of them, and acknowledge it once it is in the log.

        What comes for a topic that has left is dropped: its producer is being directed where
        to go, and sends there again whatever was not acknowledged.

        Raises:
            ProtocolBroken: the payload is none.
        """
        held = self._held.get(sent.producer_id)
        if held is None or held.topic.closed:
            return
        if sent.transaction_least or sent.transaction_most:
            self._refuse(sent, ServerError.NOT_ALLOWED, "there are no transactions here")
            return
        try:
            facts = read_payload(payload)
        except WrongChecksum as error:
            self._refuse(sent, ServerError.CHECKSUM, str(error))
            return
        async with self._work.turn():
            entry = await self._take(held, facts, payload)
        if entry is not None:
            self._acknowledge(sent, entry)
            held.topic.deliver()

    def close(self, closed: Any) -> None:
        """Close a producer; one that is not there is closed already."""
        self._awaited.pop(closed.producer_id, None)
        self._remove(closed.producer_id)
        self._line.send(encode(Command.SUCCESS, request_id=closed.request_id))

    def drop(self, producer_id: int) -> None:
        """Forget a producer that the broker closed."""
        self._held.pop(producer_id, None)

    def end(self) -> None:
        """Close all producers: the connection is gone."""
        for producer_id in [*self._held]:
            self._remove(producer_id)

    def _check(self, wanted: Any) -> None:
        if wanted.access_mode != _SHARED_ACCESS:
            text = f"access mode {wanted.access_mode} is not supported; only shared (0) is"
            raise Refused(ServerError.NOT_ALLOWED, text)
        if len(self._held) + len(self._awaited) >= MAX_PRODUCERS:
            text = f"the connection has {MAX_PRODUCERS} producers already"
            raise Refused(ServerError.TOO_MANY_REQUESTS, text)

    async def _take(self, held: _Held, facts: PayloadFacts, payload: bytes) -> Entry | None:
        """Return the entry that may be acknowledged, None if there is none."""
        topic = held.topic
        ticket = self._broker.begin_publish(topic.name, facts.messages)
        if isinstance(ticket, PublishRefused):
            return None
        try:
            await self._work.spend(facts.messages)
        except asyncio.CancelledError:
            self._broker.abandon(ticket)
            raise
        return self._append(held, ticket, facts, payload)

    def _append(
        self, held: _Held, ticket: Ticket, facts: PayloadFacts, payload: bytes
    ) -> Entry | None:
        """Write, and only then see whether the bundle was still served: that decides."""
        topic = held.topic
        if topic.closed:
            self._broker.abandon(ticket)
            return None
        try:
            entry = topic.publish(facts, payload)
        except LogFull:
            self._broker.abandon(ticket)
            held.producer.close()
            topic.remove_producer(held.producer)
            return None
        except (Fenced, OSError) as error:
            self._broker.abandon(ticket)
            self._topics.lost(topic, error)
            return None
        outcome = self._broker.finish_publish(ticket, producer=None, payload_bytes=len(payload))
        return None if isinstance(outcome, PublishRefused) else entry

    def _acknowledge(self, sent: Any, entry: Entry) -> None:
        receipt = encode(
            Command.SEND_RECEIPT,
            producer_id=sent.producer_id,
            sequence_id=sent.sequence_id,
            message_id=message_id_of(entry.position),
            highest_sequence_id=sent.highest_sequence_id,
        )
        self._line.send(receipt)

    def _refuse(self, sent: Any, error: ServerError, text: str) -> None:
        ids = {"producer_id": sent.producer_id, "sequence_id": sent.sequence_id}
        self._line.send(encode(Command.SEND_ERROR, **ids, error=error, message=text))

    def _remove(self, producer_id: int) -> None:
        held = self._held.pop(producer_id, None)
        if held is not None:
            held.topic.remove_producer(held.producer)
            self._topics.count_clients(held.topic)

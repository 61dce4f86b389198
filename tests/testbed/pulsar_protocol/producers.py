"""The producers of one connection."""

from collections.abc import Coroutine
from typing import Any, Final

from loadmanager.reference_broker.outcomes import PublishRefused
from loadmanager.reference_broker.server import spend_cpu
from tests.testbed.pulsar_protocol.clients import ClientsOfConnection, Producer, Refused
from tests.testbed.pulsar_protocol.fields import Command
from tests.testbed.pulsar_protocol.frames import PayloadFacts, WrongChecksum, read_payload
from tests.testbed.pulsar_protocol.protocol import ServerError
from tests.testbed.pulsar_protocol.topic_log import Entry, Fenced, LogFull

_SHARED_ACCESS: Final = 0


class Producers(ClientsOfConnection[Producer]):
    """Handles the commands of the producers of one connection."""

    kind = "producer"

    def create(self, asked: Any) -> Coroutine[Any, Any, None]:
        """Return a coroutine that creates a producer once its topic is served here.

        Raises:
            Refused: on the call or in the coroutine, the topic or the producer is refused.
        """
        if asked.access_mode != _SHARED_ACCESS:
            text = f"access mode {asked.access_mode} is not supported; only shared (0) is"
            raise Refused(ServerError.NOT_ALLOWED, text)
        self._await(asked.producer_id, asked.request_id)
        return self._create(asked)

    async def _create(self, asked: Any) -> None:
        topic = await self._topic(asked.producer_id, asked)
        if topic.log.full:
            raise Refused(ServerError.BACKLOG_QUOTA, f"{topic.name}: too much is not consumed")
        self._remove(asked.producer_id)
        producer = Producer(
            line=self._line,
            client_id=asked.producer_id,
            name=asked.producer_name or self._topics.new_producer_name(),
            topic=topic,
            forget=self._forget(asked.producer_id),
            epoch=asked.epoch,
        )
        topic.add_producer(producer)
        self._open[producer.client_id] = producer
        self._topics.count_clients(topic)
        names = {"request_id": asked.request_id, "producer_name": producer.name}
        self._line.send(Command.PRODUCER_SUCCESS, **names, schema_version=b"")

    async def publish(self, sent: Any, payload: bytes) -> None:
        """Append a message, or a batch, and acknowledge it once it is in the log.

        A message for a topic that has moved away is dropped: its producer is being redirected, and
        sends unacknowledged messages again at the new owner.

        Raises:
            ProtocolBroken: the payload is not valid.
        """
        producer = self._open.get(sent.producer_id)
        if producer is None or producer.topic.closed:
            return
        if sent.transaction_least or sent.transaction_most:
            self._refuse(sent, ServerError.NOT_ALLOWED, "there are no transactions here")
            return
        try:
            facts = read_payload(payload)
        except WrongChecksum as error:
            self._refuse(sent, ServerError.CHECKSUM, str(error))
            return
        topic = producer.topic
        try:
            entry = await self._append(producer, facts, payload)
        except LogFull:
            producer.close()
            topic.remove_producer(producer)
        except (Fenced, OSError) as error:
            self._topics.lost(topic, error)
        else:
            if entry is not None:
                self._acknowledge(sent, entry)
                topic.deliver()

    def close(self, asked: Any) -> None:
        """Close a producer."""
        self._close(asked.producer_id, asked.request_id)

    async def _append(
        self, producer: Producer, facts: PayloadFacts, payload: bytes
    ) -> Entry | None:
        """Return the entry to acknowledge, None if the bundle was not served any more.

        The bundle is checked again after the write, and that check decides.

        Raises:
            LogFull, Fenced, OSError: see `TopicLog.append`.
        """
        topic, broker = producer.topic, self._topics.broker
        async with self._topics.turn:
            ticket = broker.begin_publish(topic.name, facts.messages)
            if isinstance(ticket, PublishRefused):
                return None
            try:
                await spend_cpu(self._topics.cpu_s_per_message * facts.messages)
                entry = None
                if not topic.closed:
                    entry = topic.log.append(facts.publish_time_ms, facts.messages, payload)
            except BaseException:
                broker.abandon(ticket)
                raise
            if entry is None:
                broker.abandon(ticket)
                return None
            outcome = broker.finish_publish(ticket, producer=None, payload_bytes=len(payload))
        return None if isinstance(outcome, PublishRefused) else entry

    def _acknowledge(self, sent: Any, entry: Entry) -> None:
        self._line.send(
            Command.SEND_RECEIPT,
            producer_id=sent.producer_id,
            sequence_id=sent.sequence_id,
            message_id=entry.position.fields,
            highest_sequence_id=sent.highest_sequence_id,
        )

    def _refuse(self, sent: Any, error: ServerError, text: str) -> None:
        ids = {"producer_id": sent.producer_id, "sequence_id": sent.sequence_id}
        self._line.send(Command.SEND_ERROR, **ids, error=error, message=text)

    def _remove(self, client_id: int) -> None:
        producer = self._open.pop(client_id, None)
        if producer is not None:
            producer.topic.remove_producer(producer)
            self._topics.count_clients(producer.topic)

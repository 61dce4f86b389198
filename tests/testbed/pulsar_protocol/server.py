"""The in-memory broker's server for Pulsar's clients.

When a bundle moves, the commands that close its clients carry the address of the new owner, so
that clients need no lookup. A client that comes before the bundle is held until it is loaded. A
client that uses anything else than `Command` has is cut off.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import structlog

from loadmanager.core.ids import BundleId, TopicName, parse_topic
from loadmanager.reference_broker.changes import (
    BundleLoaded,
    Change,
    EndReason,
    PublishRefused,
    ServingEnded,
)
from loadmanager.reference_broker.memory_broker import MemoryBroker, Served
from loadmanager.reference_broker.server import spend_cpu
from tests.testbed.pulsar_protocol.ledger import Fenced, Ledger
from tests.testbed.pulsar_protocol.protocol import (
    MAX_MESSAGE_BYTES,
    SERVICE_NOT_READY,
    Command,
    encode_frame,
    read_frame,
)

log = structlog.get_logger()

HOLD_S: Final = 2.0
"""How long a client is held for a bundle that may be on the way."""

_UNASKED: Final = 2**64 - 1
_PROTOCOL_VERSION: Final = 19


class ForwardingBroker(MemoryBroker):
    def __init__(self, **settings: Any) -> None:
        self.next_owner_urls: dict[BundleId, str] = {}
        super().__init__(**settings)

    async def unload(
        self, bundle: BundleId, *, agent_epoch: int, fencing_token: int, next_owner_url: str = ""
    ) -> None:
        self.next_owner_urls[bundle] = next_owner_url
        try:
            await super().unload(bundle, agent_epoch=agent_epoch, fencing_token=fencing_token)
        finally:
            del self.next_owner_urls[bundle]

    def grant(self, topic: TopicName) -> Served | None:
        self.expire()
        return self.last_grant(topic)

    def last_grant(self, topic: TopicName) -> Served | None:
        """Return as `grant`, as of the last command, for calls during a change."""
        return self._serving.find(topic)


@dataclass(slots=True, eq=False)
class _Client:
    """A producer, or a consumer with a subscription.

    ``closing`` is the command that closes it, with its id. ``permits`` is the number of messages
    that a consumer accepts, ``sent`` the last entry sent to it.
    """

    send: Callable[..., None]
    topic: "_Topic"
    closing: tuple[Command, Mapping[str, int]]
    subscription: str = ""
    permits: int = 0
    sent: int = 0

    def close(self, broker_url: str) -> None:
        command, ids = self.closing
        url = {"assigned_broker_url": broker_url} if broker_url else {}
        self.send(command, **ids, request_id=_UNASKED, **url)


@dataclass(slots=True, eq=False)
class _Topic:
    """A topic while its bundle is served here; a closed one does nothing any more."""

    name: TopicName
    bundle: BundleId
    ledger: Ledger
    closed: bool = False
    clients: set[_Client] = field(default_factory=set)


class PulsarServer:
    """Serves Pulsar's clients for one broker.

    `on_change` has to be called with every change of the broker. Brokers that share the folder
    ``ledger`` keep the messages when a bundle moves.
    """

    def __init__(self, broker: ForwardingBroker, ledger: Path, cpu_s_per_message: float) -> None:
        self._broker = broker
        self._ledger = ledger
        self._cpu_s_per_message = cpu_s_per_message
        # One message at a time, as one core would.
        self._turn = asyncio.Lock()
        self._open: dict[TopicName, _Topic] = {}
        self._loaded = asyncio.Event()
        self._numbers = count()

    async def serve(self, listening: socket.socket) -> None:
        async with await asyncio.start_server(self._connected, sock=listening) as server:
            await server.serve_forever()

    def on_change(self, change: Change) -> None:
        """Follow a change of the bundles; a bundle that is split here disturbs no client."""
        if isinstance(change, BundleLoaded):
            self._loaded.set()
            self._loaded = asyncio.Event()
        elif isinstance(change, ServingEnded) and change.why is not EndReason.REGRANTED:
            url = self._broker.next_owner_urls.get(change.bundle, "")
            for topic in [one for one in self._open.values() if one.bundle == change.bundle]:
                grant = self._broker.last_grant(topic.name)
                if grant is None:
                    self.close(topic, url)
                else:
                    topic.bundle = grant.bundle
            if url:
                log.info("bundle.clients.forwarded", bundle=change.bundle, broker_url=url)

    def close(self, topic: _Topic, broker_url: str = "") -> None:
        """Have all clients of a topic connect to ``broker_url``, or look its owner up."""
        if topic.closed:
            return
        topic.closed = True
        topic.ledger.close()
        del self._open[topic.name]
        for client in topic.clients:
            # The message that ended the bundle is acknowledged first.
            asyncio.get_running_loop().call_soon(client.close, broker_url)

    async def opened(self, text: str) -> _Topic:
        """Return a topic as soon as it is served here; raises TimeoutError or Fenced."""
        name = parse_topic(text)
        async with asyncio.timeout(HOLD_S):
            while (grant := self._broker.grant(name)) is None:
                await self._loaded.wait()
        if name not in self._open:
            path = self._ledger / quote(str(name), safe="")
            self._open[name] = _Topic(name, grant.bundle, Ledger(path, grant.fencing_token))
        return self._open[name]

    def new_name(self) -> str:
        return f"{self._broker.incarnation}-{next(self._numbers)}"

    async def publish(self, topic: _Topic, payload: bytes) -> int | None:
        """Return the number of an appended message, None if the bundle is not served any more.

        The bundle is checked again after the write, and that check decides.
        """
        async with self._turn:
            ticket = self._broker.begin_publish(topic.name)
            if isinstance(ticket, PublishRefused):
                return None
            number = None
            try:
                await spend_cpu(self._cpu_s_per_message)
                if not topic.closed:
                    number = topic.ledger.append(payload)
            except Fenced:
                self.close(topic)
            finally:
                if number is None:
                    self._broker.abandon(ticket)
            if number is None:
                return None
            done = self._broker.finish_publish(
                ticket, producer=str(topic.name), payload_bytes=len(payload)
            )
        return None if isinstance(done, PublishRefused) else number

    def deliver(self, topic: _Topic) -> None:
        if self._broker.grant(topic.name) is None or topic.closed:
            return
        for consumer in [one for one in topic.clients if one.permits]:
            entries = topic.ledger.unacked(consumer.subscription, consumer.sent, consumer.permits)
            for number, token, payload in entries:
                consumer.permits -= 1
                consumer.sent = number
                position = {"ledger_id": token, "entry_id": number}
                ids = {**consumer.closing[1], "message_id": position}
                consumer.send(Command.MESSAGE, payload, **ids)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _Connection(self, reader, writer).run()


class _Connection:
    def __init__(
        self, server: PulsarServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._clients: dict[tuple[Command, int], _Client] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            while True:
                await self._handle(*await read_frame(self._reader))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for task in self._tasks:
                task.cancel()
            for client in self._clients.values():
                client.topic.clients.discard(client)
            self._writer.close()

    async def _handle(self, command: Command, fields: Any, payload: bytes) -> None:
        if command is Command.CONNECT:
            self._send(
                Command.CONNECTED,
                server_version="testbed",
                protocol_version=min(fields.protocol_version, _PROTOCOL_VERSION),
                max_message_size=MAX_MESSAGE_BYTES,
            )
        elif command is Command.PING:
            self._send(Command.PONG)
        elif command in {Command.PRODUCER, Command.SUBSCRIBE}:
            # In a task, so that a topic that is not here yet delays no other command.
            task = asyncio.ensure_future(self._connect(command, fields))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif command in {Command.CLOSEPRODUCER, Command.CLOSECONSUMER}:
            client = self._clients.pop((command, fields.ListFields()[0][1]), None)
            if client is not None:
                client.topic.clients.discard(client)
            self._send(Command.SUCCESS, request_id=fields.request_id)
        elif command is Command.SEND:
            await self._publish(fields, payload)
        elif command in {Command.FLOW, Command.ACK}:
            self._consume(command, fields)

    def _send(self, command: Command, payload: bytes = b"", /, **fields: Any) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode_frame(command, payload, **fields))

    async def _connect(self, command: Command, fields: Any) -> None:
        """Connect a producer, or a consumer, which replaces the former one of its subscription."""
        try:
            topic = await self._server.opened(fields.topic)
        except (TimeoutError, Fenced):
            self._send(
                Command.ERROR,
                request_id=fields.request_id,
                error=SERVICE_NOT_READY,
                message=f"{fields.topic} is not served here; look its owner up again",
            )
            return
        if command is Command.PRODUCER:
            ids = {"producer_id": fields.producer_id}
            client = _Client(self._send, topic, (Command.CLOSEPRODUCER, ids))
            name = fields.producer_name or self._server.new_name()
            answer = {"producer_name": name, "schema_version": b""}
            self._send(Command.PRODUCERSUCCESS, request_id=fields.request_id, **answer)
        else:
            ids = {"consumer_id": fields.consumer_id}
            closing = Command.CLOSECONSUMER, ids
            client = _Client(self._send, topic, closing, fields.subscription)
            topic.clients -= {
                one for one in topic.clients if one.subscription == fields.subscription
            }
            self._send(Command.SUCCESS, request_id=fields.request_id)
        topic.clients.add(client)
        self._clients[client.closing[0], *ids.values()] = client

    async def _publish(self, fields: Any, payload: bytes) -> None:
        """Acknowledge a message; one for a topic that moved away is sent again by its client."""
        producer = self._clients.get((Command.CLOSEPRODUCER, fields.producer_id))
        if producer is None or producer.topic.closed:
            return
        number = await self._server.publish(producer.topic, payload)
        if number is not None:
            self._send(
                Command.SENDRECEIPT,
                producer_id=fields.producer_id,
                sequence_id=fields.sequence_id,
                message_id={"ledger_id": 0, "entry_id": number},
            )
            self._server.deliver(producer.topic)

    def _consume(self, command: Command, fields: Any) -> None:
        consumer = self._clients.get((Command.CLOSECONSUMER, fields.consumer_id))
        if consumer is None or consumer.topic.closed:
            return
        if command is Command.FLOW:
            consumer.permits += fields.message_permits
            self._server.deliver(consumer.topic)
            return
        try:
            numbers = [one.entry_id for one in fields.message_id]
            consumer.topic.ledger.ack(consumer.subscription, numbers)
        except Fenced:
            self._server.close(consumer.topic)

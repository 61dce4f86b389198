"""A server for Pulsar's clients on a real socket, and a client that is nothing but frames."""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadmanager.core.ids import BundleId
from loadmanager.reference_broker.changes import Change
from loadmanager.reference_broker.memory_broker import MemoryBroker
from tests.testbed.pulsar_protocol.fields import Command
from tests.testbed.pulsar_protocol.frames import encode_frame, encode_payload, read_frame
from tests.testbed.pulsar_protocol.protocol import decode, encode
from tests.testbed.pulsar_protocol.server import PulsarServer
from tests.testbed.pulsar_protocol.topics import PulsarServerOptions

BUNDLE = BundleId("public/default/0x00000000_0xffffffff")
ANSWER_WITHIN_S = 20.0


def metadata(number: int = 0, messages: int = 1, publish_time_ms: int = 1000) -> bytes:
    """Return message metadata, encoded by hand from the protocol's field numbers."""
    fields = [b"\x0a\x01p", b"\x10" + varint(number), b"\x18" + varint(publish_time_ms)]
    if messages > 1:
        fields.append(b"\x58" + varint(messages))
    return b"".join(fields)


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@dataclass
class Wire:
    """A client that is nothing but frames. What it was sent and not asked for is kept."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    kept: list[tuple[Command, Any, bytes]] = field(default_factory=list)

    @classmethod
    async def to(cls, port: int) -> "Wire":
        """Connect, and no more."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    def tell(self, command: Command, **fields: Any) -> None:
        """Send a command."""
        self.write(encode_frame(encode(command, **fields)))

    async def shake_hands(self) -> Any:
        """Connect as clients do."""
        self.tell(Command.CONNECT, client_version="test", protocol_version=19)
        return await self.answer(Command.CONNECTED)

    async def answer(self, wanted: Command) -> Any:
        """Return the fields of the next command of this kind."""
        return (await self.delivered(wanted))[0]

    async def delivered(self, wanted: Command) -> tuple[Any, bytes]:
        """Return fields and payload of the next command of this kind."""
        for place, (command, fields, payload) in enumerate(self.kept):
            if command is wanted:
                del self.kept[place]
                return fields, payload
        async with asyncio.timeout(ANSWER_WITHIN_S):
            while True:
                frame = await read_frame(self.reader)
                command, fields = decode(frame.command)
                if command is wanted:
                    return fields, frame.payload
                if command is not Command.PING:
                    self.kept.append((command, fields, frame.payload))

    async def closed(self) -> None:
        """Return when the other side has closed the connection."""
        async with asyncio.timeout(ANSWER_WITHIN_S):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                return

    async def create(self, producer_id: int = 1, topic: str = "t", **fields: Any) -> Any:
        """Create a producer; return the answer."""
        asked = {"topic": topic, "producer_id": producer_id, "request_id": 1000 + producer_id}
        self.tell(Command.PRODUCER, **asked, **fields)
        return await self.answer(Command.PRODUCER_SUCCESS)

    def send(
        self, content: bytes, *, producer_id: int = 1, number: int = 0, messages: int = 1
    ) -> None:
        """Send a message, or a batch of so many."""
        payload = encode_payload(metadata(number, messages), content)
        ids = {"producer_id": producer_id, "sequence_id": number}
        self.write(encode_frame(encode(Command.SEND, **ids, num_messages=messages), payload))

    async def publish(self, content: bytes, **fields: Any) -> tuple[int, int]:
        """Send a message and return its id."""
        self.send(content, **fields)
        receipt = await self.answer(Command.SEND_RECEIPT)
        return receipt.message_id.ledger_id, receipt.message_id.entry_id

    async def subscribe(
        self,
        consumer_id: int = 1,
        *,
        topic: str = "t",
        permits: int = 1000,
        kind: int = 0,
        name: str = "s",
        **fields: Any,
    ) -> None:
        """Subscribe and let messages come."""
        asked = {"topic": topic, "subscription": name, "sub_type": kind}
        ids = {"consumer_id": consumer_id, "request_id": 2000 + consumer_id}
        self.tell(Command.SUBSCRIBE, **asked, **ids, **fields)
        assert (await self.answer(Command.SUCCESS)).request_id == 2000 + consumer_id
        if permits:
            self.tell(Command.FLOW, consumer_id=consumer_id, message_permits=permits)

    async def message(self) -> tuple[int, bytes, dict[str, int]]:
        """Return consumer, content and message id of the next message."""
        fields, payload = await self.delivered(Command.MESSAGE)
        begin = 10 + int.from_bytes(payload[6:10])
        position = fields.message_id
        ids = {"ledger_id": position.ledger_id, "entry_id": position.entry_id}
        return fields.consumer_id, payload[begin:], ids

    def ack(self, *ids: dict[str, Any], consumer_id: int = 1, cumulative: bool = False) -> None:
        """Acknowledge messages."""
        kind = {"consumer_id": consumer_id, "ack_type": int(cumulative)}
        self.tell(Command.ACK, **kind, message_id=list(ids))

    async def settled(self) -> None:
        """Return when all that was sent before has been obeyed."""
        self.tell(Command.PING)
        await self.answer(Command.PONG)


@dataclass
class House:
    """One broker with its server, and the agent's side of it."""

    broker: MemoryBroker
    server: PulsarServer
    port: int
    url: str
    _serving: asyncio.Task[None]
    _wires: list[Wire] = field(default_factory=list)

    def renew(self, for_s: float = 1000.0) -> None:
        """Give the broker a lease."""
        state = self.broker.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
        self.broker.renew_lease(
            agent_epoch=1, until_s=state.clock_s + for_s, incarnation=state.incarnation
        )

    def load(self, token: int, bundle: BundleId = BUNDLE) -> None:
        """Let the broker serve a bundle."""
        self.broker.load(bundle, agent_epoch=1, fencing_token=token)

    async def unload(
        self, token: int, bundle: BundleId = BUNDLE, *, next_owner_url: str = ""
    ) -> None:
        """Take a bundle away."""
        await self.broker.unload(
            bundle, agent_epoch=1, fencing_token=token, next_owner_url=next_owner_url
        )

    async def stranger(self) -> Wire:
        """Return a connection that has not shaken hands."""
        wire = await Wire.to(self.port)
        self._wires.append(wire)
        return wire

    async def client(self) -> Wire:
        """Return a client that has shaken hands."""
        wire = await self.stranger()
        await wire.shake_hands()
        return wire

    async def leave(self) -> None:
        """End everything."""
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        for wire in self._wires:
            wire.writer.close()


def open_house(
    name: str,
    ledger: Path,
    *,
    clock_s: Callable[[], float] = time.monotonic,
    **options: Any,
) -> House:
    """Return a broker that serves nothing yet, with its server on a free port."""
    listeners: list[Callable[[Change], None]] = []

    def record(change: Change) -> None:
        for listen in listeners:
            listen(change)

    broker = MemoryBroker(broker=f"{name}:8080", incarnation=name, clock_s=clock_s, record=record)
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    url = f"pulsar://127.0.0.1:{port}"
    settings = PulsarServerOptions(**{"own_url": url, "ledger": ledger, "version": "1", **options})
    server = PulsarServer(broker, settings)
    listeners.append(server.on_change)
    serving = asyncio.get_running_loop().create_task(server.serve(listening))
    return House(broker, server, port, url, serving)

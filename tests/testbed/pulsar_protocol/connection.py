"""One client's connection: the socket, and which command is handled by what."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog

from tests.testbed.pulsar_protocol.clients import Refused
from tests.testbed.pulsar_protocol.consumers import Consumers
from tests.testbed.pulsar_protocol.fields import Command
from tests.testbed.pulsar_protocol.frames import (
    MAX_MESSAGE_BYTES,
    Frame,
    encode_frame,
    read_frame,
)
from tests.testbed.pulsar_protocol.lookups import Lookups
from tests.testbed.pulsar_protocol.producers import Producers
from tests.testbed.pulsar_protocol.protocol import (
    PROTOCOL_VERSION,
    ProtocolBroken,
    ServerError,
    decode,
    encode,
)
from tests.testbed.pulsar_protocol.topic_log import Fenced
from tests.testbed.pulsar_protocol.topics import Topics

log = structlog.get_logger()

HANDSHAKE_S: Final = 10.0
PING_EVERY_S: Final = 30.0
"""The interval of pings; a client that sends nothing from one ping to the next is cut off."""

MAX_WAITING: Final = 2_000
"""Commands of one connection that may wait for a bundle or the sidecar."""

_HIGH_WATER_BYTES: Final = 1024 * 1024
_LOW_WATER_BYTES: Final = 256 * 1024
_ENDINGS: Final = (ConnectionError, asyncio.IncompleteReadError, TimeoutError)


class Connection:
    """A `Line` over a socket, with the commands of its client.

    Commands that wait for something run in tasks of their own, so that a topic that is not served
    here yet delays no other command. All others are handled in the order in which they came.

    Args:
        reader, writer: of the socket.
        topics: the topics of the broker.
        server_version: the version that is reported to the client.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        topics: Topics,
        server_version: str,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._server_version = server_version
        self._silent = True
        self._catching_up: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Task[None]] = set()
        producers = self._producers = Producers(self, topics)
        consumers = self._consumers = Consumers(self, topics)
        lookups = Lookups(self, topics)
        self._at_once: Mapping[Command, Callable[[Any], None]] = {
            Command.FLOW: consumers.flow,
            Command.ACK: consumers.ack,
            Command.REDELIVER: consumers.redeliver,
            Command.SEEK: consumers.seek,
            Command.UNSUBSCRIBE: consumers.unsubscribe,
            Command.LAST_MESSAGE_ID: consumers.last_message_id,
            Command.CLOSE_CONSUMER: consumers.close,
            Command.CLOSE_PRODUCER: producers.close,
            Command.PING: lambda _: self.send(Command.PONG),
            Command.PONG: lambda _: None,
        }
        self._in_tasks: Mapping[Command, Callable[[Any], Coroutine[Any, Any, None]]] = {
            Command.PRODUCER: producers.create,
            Command.SUBSCRIBE: consumers.subscribe,
            Command.LOOKUP: lookups.lookup,
            Command.PARTITIONS: lookups.partitions,
            Command.TOPICS_OF_NAMESPACE: lookups.topics_of_namespace,
        }
        # asyncio does this only for sockets that were made with the number of the protocol.
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        writer.transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES, low=_LOW_WATER_BYTES)

    @property
    def congested(self) -> bool:
        """See `Line`."""
        full = self._writer.transport.get_write_buffer_size() > _HIGH_WATER_BYTES
        if full and self._catching_up is None:
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())
        return full

    def send(self, command: Command, payload: bytes = b"", /, **fields: Any) -> None:
        """See `Line`."""
        if not self._writer.is_closing():
            self._writer.write(encode_frame(encode(command, **fields), payload))

    async def run(self) -> None:
        """Handle commands until the client leaves or breaks the protocol, then clean up."""
        peer = str(self._writer.get_extra_info("peername"))
        pinging: asyncio.Task[None] | None = None
        try:
            await self._shake_hands()
            pinging = asyncio.get_running_loop().create_task(self._ping(peer))
            while True:
                frame = await read_frame(self._reader)
                self._silent = False
                await self._handle(frame)
        except ProtocolBroken as error:
            log.warning("client.protocol.violated", peer=peer, why=str(error))
        except _ENDINGS:
            pass
        except (OSError, Fenced) as error:
            log.warning("client.connection.failed", peer=peer, why=str(error))
        finally:
            for task in (pinging, self._catching_up, *self._waiting):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*self._waiting, return_exceptions=True)
            self._producers.end()
            self._consumers.end()
            self._writer.close()
            with suppress(*_ENDINGS):
                await self._writer.wait_closed()

    def cut(self) -> None:
        """Abort the connection; `run` returns soon after."""
        self._writer.transport.abort()

    async def _shake_hands(self) -> None:
        async with asyncio.timeout(HANDSHAKE_S):
            frame = await read_frame(self._reader)
        command, fields = decode(frame.command)
        if command is not Command.CONNECT:
            raise ProtocolBroken(f"command {command!r} came before CONNECT")
        self.send(
            Command.CONNECTED,
            server_version=self._server_version,
            protocol_version=max(0, min(fields.protocol_version, PROTOCOL_VERSION)),
            max_message_size=MAX_MESSAGE_BYTES,
        )

    async def _ping(self, peer: str) -> None:
        while True:
            self._silent = True
            self.send(Command.PING)
            await asyncio.sleep(PING_EVERY_S)
            if self._silent:
                log.info("client.connection.silent", peer=peer)
                self.cut()
                return

    async def _catch_up(self) -> None:
        with suppress(ConnectionError):
            await self._writer.drain()
        self._catching_up = None
        self._consumers.catch_up()

    async def _handle(self, frame: Frame) -> None:
        command, fields = decode(frame.command)
        if command is Command.SEND:
            await self._producers.publish(fields, frame.payload)
        elif command in self._at_once:
            try:
                self._at_once[command](fields)
            except Refused as refused:
                self._refuse(fields.request_id, refused)
        elif command in self._in_tasks:
            self._start(self._in_tasks[command], fields)
        else:
            raise ProtocolBroken(f"command {command.name} is not one that clients send")

    def _start(self, handler: Callable[[Any], Coroutine[Any, Any, None]], fields: Any) -> None:
        if len(self._waiting) >= MAX_WAITING:
            text = f"{len(self._waiting)} commands are waiting already"
            self._refuse(fields.request_id, Refused(ServerError.TOO_MANY_REQUESTS, text))
            return
        try:
            handling = handler(fields)
        except Refused as refused:
            self._refuse(fields.request_id, refused)
            return
        task = asyncio.get_running_loop().create_task(handling)
        self._waiting.add(task)
        task.add_done_callback(partial(self._ended, fields.request_id))

    def _ended(self, request_id: int, task: asyncio.Task[None]) -> None:
        self._waiting.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, OSError | Fenced):
            error = Refused(ServerError.PERSISTENCE, str(error))
        if isinstance(error, Refused):
            self._refuse(request_id, error)
        elif error is not None:
            raise error

    def _refuse(self, request_id: int, refused: Refused) -> None:
        self.send(Command.ERROR, request_id=request_id, **refused.fields)

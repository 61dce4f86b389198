"""One client's connection: reading, writing, keeping it alive."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import structlog

from loadmanager.testbed.pulsar_protocol.fields import Command
from loadmanager.testbed.pulsar_protocol.frames import (
    MAX_MESSAGE_BYTES,
    Frame,
    encode_frame,
    read_frame,
)
from loadmanager.testbed.pulsar_protocol.protocol import (
    PROTOCOL_VERSION,
    ProtocolBroken,
    decode,
    encode,
)
from loadmanager.testbed.pulsar_protocol.segments import Fenced

log = structlog.get_logger()

HANDSHAKE_S: Final = 10.0
PING_EVERY_S: Final = 30.0
_HIGH_WATER_BYTES: Final = 1024 * 1024
_LOW_WATER_BYTES: Final = 256 * 1024
_ENDINGS: Final = (ConnectionError, asyncio.IncompleteReadError, TimeoutError)


class Session(Protocol):
    """What the commands of one connection do."""

    async def obey(self, frame: Frame) -> None:
        """Do what a frame asks for.

        Raises:
            ProtocolBroken: the client is to be cut off.
        """

    def drop_producer(self, producer_id: int) -> None:
        """See `Line`."""

    def drop_consumer(self, consumer_id: int) -> None:
        """See `Line`."""

    def catch_up(self) -> None:
        """Deliver what was held back while the connection was congested."""

    async def end(self) -> None:
        """Disconnect all that was on the connection."""


class Connection:
    """A `Line` over a socket.

    Args:
        reader, writer: the socket's.
        server_version: the version reported to the client.
        ping_every_s: how often a client is pinged; one that says nothing from one ping
            to the next is cut off.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_version: str,
        *,
        ping_every_s: float = PING_EVERY_S,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._server_version = server_version
        self._ping_every_s = ping_every_s
        self._silent = True
        self._catching_up: asyncio.Task[None] | None = None
        self._session: Session | None = None
        # asyncio does so only for sockets that were made with the protocol's number.
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

    def send(self, command: bytes, payload: bytes = b"") -> None:
        """See `Line`."""
        if not self._writer.is_closing():
            self._writer.write(encode_frame(command, payload))

    def drop_producer(self, producer_id: int) -> None:
        """See `Line`."""
        if self._session is not None:
            self._session.drop_producer(producer_id)

    def drop_consumer(self, consumer_id: int) -> None:
        """See `Line`."""
        if self._session is not None:
            self._session.drop_consumer(consumer_id)

    async def run(self, begin: Callable[["Connection"], Session]) -> None:
        """Shake hands, obey until the client leaves or breaks the protocol, and clean up."""
        peer = self._writer.get_extra_info("peername")
        pinging: asyncio.Task[None] | None = None
        try:
            await self._shake_hands()
            session = self._session = begin(self)
            pinging = asyncio.get_running_loop().create_task(self._ping())
            while True:
                frame = await read_frame(self._reader)
                self._silent = False
                await session.obey(frame)
        except ProtocolBroken as error:
            log.warning("client.protocol.violated", peer=str(peer), why=str(error))
        except _ENDINGS:
            pass
        except (OSError, Fenced) as error:
            log.warning("client.connection.failed", peer=str(peer), why=str(error))
        finally:
            for task in (pinging, self._catching_up):
                if task is not None:
                    task.cancel()
            if self._session is not None:
                await self._session.end()
            self._writer.close()
            with suppress(*_ENDINGS):
                await self._writer.wait_closed()

    def cut(self) -> None:
        """End the connection; `run` returns soon."""
        self._writer.transport.abort()

    async def _shake_hands(self) -> None:
        async with asyncio.timeout(HANDSHAKE_S):
            frame = await read_frame(self._reader)
        command, fields = decode(frame.command)
        if command is not Command.CONNECT:
            raise ProtocolBroken(f"command {command!r} came before CONNECT")
        connected = encode(
            Command.CONNECTED,
            server_version=self._server_version,
            protocol_version=max(0, min(fields.protocol_version, PROTOCOL_VERSION)),
            max_message_size=MAX_MESSAGE_BYTES,
        )
        self.send(connected)

    async def _ping(self) -> None:
        ping = encode(Command.PING)
        while True:
            self._silent = True
            self.send(ping)
            await asyncio.sleep(self._ping_every_s)
            if self._silent:
                log.info(
                    "client.connection.silent", peer=str(self._writer.get_extra_info("peername"))
                )
                self.cut()
                return

    async def _catch_up(self) -> None:
        with suppress(ConnectionError):
            await self._writer.drain()
        self._catching_up = None
        if self._session is not None:
            self._session.catch_up()

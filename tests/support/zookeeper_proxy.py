"""A TCP proxy in front of ZooKeeper that breaks connections at a chosen moment."""

import asyncio
import contextlib
import struct
from enum import Enum, auto
from typing import Self

CREATE, DELETE, SET_DATA, MULTI, CREATE2, SASL = 1, 2, 5, 14, 15, 102
WRITES = frozenset({CREATE, CREATE2, DELETE, SET_DATA, MULTI})


class Loss(Enum):
    REQUEST = auto()
    REPLY = auto()
    REPLY_FOR_GOOD = auto()
    """The reply, and the connection stays broken until `ZooKeeperProxy.mend`."""


class ZooKeeperProxy:
    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = host, int(port)
        self._server: asyncio.Server | None = None
        self._pipes: set[_Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusing = False
        self.loss: Loss | None = None
        self.drop_at_kind: int | None = None
        """Break the connection once, when a request of this kind comes."""
        self.silent = False
        """Swallow all messages, as a network does that lost its way."""
        self.forget_session = False
        """Ask the server for a new session, whatever session the client asks for."""

    @property
    def address(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break all connections, and take none until `mend`."""
        self._refusing = True
        self.drop()

    def mend(self) -> None:
        self._refusing = False

    def drop(self) -> None:
        for pipe in tuple(self._pipes):
            pipe.close()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.close()
            return
        try:
            upstream = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.close()
            return
        pipe = _Pipe(self, (reader, writer), upstream)
        if self._refusing:  # cut while it was being connected
            pipe.close()
            return
        self._pipes.add(pipe)
        try:
            await pipe.run()
        finally:
            self._pipes.discard(pipe)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Pipe:
    def __init__(self, proxy: ZooKeeperProxy, client: Stream, server: Stream) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._fatal_xid: int | None = None
        self._for_good = False

    async def run(self) -> None:
        await asyncio.gather(self._requests(), self._replies())

    def close(self) -> None:
        self._client[1].close()
        self._server[1].close()

    async def _requests(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._send(self._server[1], self._handshake(await _message(self._client[0])))
            while True:
                message = await _message(self._client[0])
                xid, kind = struct.unpack_from(">ii", message, 4)
                if kind == self._proxy.drop_at_kind:
                    self._proxy.drop_at_kind = None
                    break
                if kind in WRITES and self._proxy.loss is Loss.REQUEST:
                    self._proxy.loss = None
                    break
                if kind in WRITES and self._proxy.loss is not None:
                    self._for_good = self._proxy.loss is Loss.REPLY_FOR_GOOD
                    self._proxy.loss, self._fatal_xid = None, xid
                await self._send(self._server[1], message)
        self.close()

    async def _replies(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._send(self._client[1], await _message(self._server[0]))
            while True:
                message = await _message(self._server[0])
                (xid,) = struct.unpack_from(">i", message, 4)
                if xid == self._fatal_xid:
                    if self._for_good:
                        self._proxy.cut()
                    break
                await self._send(self._client[1], message)
        self.close()

    def _handshake(self, message: bytes) -> bytes:
        if not self._proxy.forget_session:
            return message
        before_id = 4 + struct.calcsize(">iqi")
        after_password = before_id + struct.calcsize(">qi16s")
        no_session = struct.pack(">qi16s", 0, 16, b"")
        return message[:before_id] + no_session + message[after_password:]

    async def _send(self, target: asyncio.StreamWriter, message: bytes) -> None:
        if not self._proxy.silent:
            target.write(message)
            await target.drain()


async def _message(source: asyncio.StreamReader) -> bytes:
    head = await source.readexactly(4)
    return head + await source.readexactly(struct.unpack(">i", head)[0])

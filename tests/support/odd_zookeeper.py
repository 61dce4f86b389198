"""A server that speaks enough of ZooKeeper's protocol to misbehave in it."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

GET, CHILDREN, SYNC, CHECK, MULTI = 4, 8, 9, 13, 14
PING = -2
STAT = bytes(68)
Odd = Callable[[int, int], bytes]
"""Returns what is sent in place of the answer to a request, by its id and its kind."""


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def text(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def answer(xid: int, body: bytes = b"", *, error: int = 0, zxid: int = 1) -> bytes:
    return framed(struct.pack(">iqi", xid, zxid, error) + body)


def right(xid: int, kind: int) -> bytes:
    bodies = {
        GET: text(b"content") + STAT,
        CHILDREN: struct.pack(">i", 1) + text(b"child"),
        SYNC: text(b"/"),
        MULTI: struct.pack(">i?i", CHECK, 0, 0) + struct.pack(">i?i", -1, 1, -1),
    }
    return answer(xid, bodies.get(kind, b""))


def login(timeout_ms: int, session_id: int = 7) -> bytes:
    return framed(struct.pack(">iiqi16s?", 0, timeout_ms, session_id, 16, b"p" * 16, 0))


@dataclass
class OddServer:
    """``odd`` answers requests, ``odd_login`` logins; while they are None it answers rightly."""

    odd: Odd | None = None
    odd_login: Callable[[int], bytes] | None = None
    pause_s: float = 0.0
    """Pause between the bytes of an odd login."""
    port: int = 0
    sessions: int = 0
    taken_bytes: int = 0
    """The most bytes of one odd answer that were sent until the client closed the connection."""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator["OddServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()

    def end(self) -> None:
        """Answer rightly from now on, and end what is under way."""
        self.odd = self.odd_login = None
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._log_in(reader, writer)
            while True:
                xid, kind = struct.unpack_from(">ii", await self._frame(reader))
                if self.odd is None:
                    writer.write(right(xid, kind))
                else:
                    content = memoryview(self.odd(xid, kind))
                    for begin in range(0, len(content), 65_536):
                        writer.write(content[begin : begin + 65_536])
                        await writer.drain()
                        self.taken_bytes = max(self.taken_bytes, begin)
                await writer.drain()
        self._writers.discard(writer)
        writer.transport.abort()

    async def _log_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, seen_zxid, timeout_ms, session_id = struct.unpack_from(
            ">iqiq", await self._frame(reader)
        )
        if self.odd_login is not None:
            for byte in self.odd_login(timeout_ms):
                writer.write(bytes([byte]))
                await asyncio.sleep(self.pause_s)
        elif seen_zxid > 1:
            raise ConnectionError  # As a server does that lacks what the client has seen.
        else:
            self.sessions += not session_id
            writer.write(login(timeout_ms, session_id or self.sessions))

    async def _frame(self, reader: asyncio.StreamReader) -> bytes:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)

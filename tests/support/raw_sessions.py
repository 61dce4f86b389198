"""Sessions of ZooKeeper that send nothing but what they are told to: no client pings for them."""

import asyncio
import struct
from typing import Self

CREATE, SYNC, CHECK, MULTI = 1, 9, 13, 14
_OPEN_TO_ALL = (31, "world", "anyone")
_EPHEMERAL = 1


class RawSession:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._requests = 0
        self.timeout_s = timeout_s
        """As it was granted."""

    @classmethod
    async def begin(cls, host: str, port: int, timeout_s: float) -> Self:
        reader, writer = await asyncio.open_connection(host, port)
        request = struct.pack(">iqiqi16sb", 0, 0, int(1000 * timeout_s), 0, 16, bytes(16), 0)
        _send(writer, request)
        _, granted_ms = struct.unpack_from(">ii", await _received(reader))
        return cls(reader, writer, granted_ms / 1000)

    async def create_ephemeral(self, path: str) -> None:
        permissions, scheme, identity = _OPEN_TO_ALL
        acl = struct.pack(">ii", 1, permissions) + _text(scheme) + _text(identity)
        empty = struct.pack(">i", 0)
        await self._ask(CREATE, _text(path) + empty + acl + struct.pack(">i", _EPHEMERAL))

    async def sync(self) -> None:
        await self._ask(SYNC, _text("/"))

    async def heartbeat(self) -> None:
        """Commit the transaction that the sidecar's heartbeat is: a check that changes nothing."""
        check = struct.pack(">ibi", CHECK, 0, -1) + _text("/") + struct.pack(">i", -1)
        await self._ask(MULTI, check + struct.pack(">ibi", -1, 1, -1))

    def close(self) -> None:
        self._writer.transport.abort()

    async def _ask(self, kind: int, body: bytes) -> None:
        self._requests += 1
        _send(self._writer, struct.pack(">ii", self._requests, kind) + body)
        number, _, error = struct.unpack_from(">iqi", await _received(self._reader))
        assert (number, error) == (self._requests, 0)


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack(">i", len(content)) + content


def _send(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(struct.pack(">i", len(message)) + message)


async def _received(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)

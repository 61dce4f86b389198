"""Frames that the event loop reads and writes, in whatever pieces they come."""

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kazoo.exceptions import ConnectionDropped
from tls_files import Files
from waiting import eventually

from loadmanager.adapters.zookeeper.kazoo_overrides import READ_BYTES, LoopSocket


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack("!i", len(frame)) + frame for frame in frames)


@dataclass
class Ends:
    """Both ends of a connection, and what the loop reported of this one."""

    here: socket.socket
    there: socket.socket
    frames: list[bytes] = field(default_factory=list)
    ended: list[ConnectionDropped] = field(default_factory=list)

    def carry(self) -> LoopSocket:
        loop, lock = asyncio.get_running_loop(), threading.RLock()
        carried = LoopSocket(self.here, loop, lock, self.frames.append, self.end)
        self.carried = carried
        return carried

    def end(self, reason: ConnectionDropped) -> None:
        self.ended.append(reason)
        self.carried.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    here, there = socket.socketpair()
    here.settimeout(0)
    there.settimeout(0)
    both = Ends(here, there)
    yield both
    for end in (here, there, both.here):
        end.close()


async def test_a_frame_that_comes_byte_by_byte_is_received_whole(ends: Ends) -> None:
    carried = ends.carry()
    for i, byte in enumerate(framed(b"abc")):
        assert ends.frames == [], i
        ends.there.send(bytes([byte]))
        await asyncio.sleep(0.001)
    await eventually(lambda: ends.frames == [b"abc"])
    carried.close()


async def test_a_frame_larger_than_one_read_is_received_whole(ends: Ends) -> None:
    carried = ends.carry()
    large = bytes(range(256)) * (READ_BYTES // 128)
    await asyncio.get_running_loop().sock_sendall(ends.there, framed(large, b"", b"next"))
    await eventually(lambda: len(ends.frames) == 3)
    assert ends.frames == [large, b"", b"next"]
    carried.close()


async def test_what_the_socket_does_not_take_is_sent_later_in_order(ends: Ends) -> None:
    carried = ends.carry()
    sent = b"".join(struct.pack("!i", i) for i in range(500_000))
    for begin in range(0, len(sent), 100_000):
        carried.write(sent[begin : begin + 100_000])
    received = b""
    while len(received) < len(sent):
        received += await asyncio.get_running_loop().sock_recv(ends.there, 65_536)
    assert received == sent
    with pytest.raises(BlockingIOError):
        ends.there.recv(1)
    carried.close()


async def test_frames_before_the_end_are_received_before_it_is_reported(ends: Ends) -> None:
    ends.carry()
    ends.there.send(framed(b"last") + b"\0\0")
    ends.there.close()
    await eventually(lambda: ends.ended)
    assert ends.frames == [b"last"]
    assert [str(reason) for reason in ends.ended] == ["the server closed the connection"]


@pytest.mark.parametrize("written", [b"", b"into the void"])
async def test_a_reset_connection_is_reported_once(ends: Ends, written: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ends.here = socket.create_connection(listening.getsockname())
        there, _ = listening.accept()
    ends.here.settimeout(0)
    carried = ends.carry()
    there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    there.close()
    carried.write(written)
    await eventually(lambda: ends.ended)
    await asyncio.sleep(0.01)
    assert len(ends.ended) == 1


async def test_a_negative_length_ends_the_connection(ends: Ends) -> None:
    ends.carry()
    ends.there.send(framed(b"good") + b"\xff\xff\xff\xfe" + framed(b"not read"))
    await eventually(lambda: ends.ended)
    assert ends.frames == [b"good"]
    assert str(ends.ended[0]) == "an answer of -2 bytes; expected 0 to 10485760"


async def test_with_tls_all_is_received_and_sent(ends: Ends, tmp_path: Path) -> None:
    """OpenSSL decrypts ahead: what it has does not make the socket readable."""
    files = Files(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    client = ssl.create_default_context(cafile=files.authorities)
    frames = [bytes([i]) * size for i, size in enumerate([1, 16_384, 0, 200_000, 3] * 20)]
    sent = framed(*frames)

    def serve() -> bytes:
        ends.there.settimeout(None)
        with server.wrap_socket(ends.there, server_side=True) as there:
            there.sendall(sent)
            received = b""
            while len(received) < len(sent):
                received += there.recv(65_536)
        return received

    serving = asyncio.create_task(asyncio.to_thread(serve))
    ends.here.settimeout(None)
    ends.here = await asyncio.to_thread(client.wrap_socket, ends.here, server_hostname="localhost")
    ends.here.settimeout(0)
    carried = ends.carry()
    await eventually(lambda: len(ends.frames) == len(frames))
    assert ends.frames == frames
    carried.write(sent)
    assert await serving == sent
    carried.close()


async def test_nothing_is_received_after_closing_even_of_the_same_read(ends: Ends) -> None:
    carried = ends.carry()
    ends.frames = _Closing(carried)
    carried._received = ends.frames.append
    ends.there.send(framed(b"first", b"second"))
    await eventually(lambda: ends.frames)
    await asyncio.sleep(0.01)
    assert ends.frames == [b"first"]
    assert ends.ended == []


class _Closing(list[bytes]):
    def __init__(self, carried: LoopSocket) -> None:
        super().__init__()
        self._carried = carried

    def append(self, frame: bytes) -> None:
        super().append(frame)
        self._carried.close()

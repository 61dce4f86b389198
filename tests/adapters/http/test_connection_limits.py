"""What a client may cost before it has proved anything: memory, time, connections, turns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tls_files import Files

from loadmanager.adapters.http.protocol import Admission, Heads, HttpProtocol
from loadmanager.adapters.http.routes import Refused
from loadmanager.adapters.http.security.tls import TlsFiles
from loadmanager.config.sections import HttpSettings
from tests.adapters.http.conftest import (
    FakeLookup,
    RunningServer,
    StartServer,
    get,
    read_reply,
    until,
    wired,
)

ALIVE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def connected(
    server: RunningServer,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.close()


def with_limits(**changes: float) -> HttpSettings:
    return HttpSettings.model_validate({"stop_s": 2.0, **changes})


def protocols(server: RunningServer) -> list[HttpProtocol]:
    assert server.server._server is not None
    return [one for one in server.server._server.connections if isinstance(one, HttpProtocol)]


async def test_an_unfinished_head_is_kept_once_and_by_nobody_else(server: RunningServer) -> None:
    wire = wired(server)
    assert wire.protocol is not None
    wire.send(b"GET / HTTP/1.1\r\n")
    for _ in range(60):
        wire.send(b"A: " + b"a" * 1_000 + b"\r\n")
    assert len(wire.protocol._heads) == 16 + 60 * 1_005
    assert not wire.protocol._messages
    wire.close()


async def test_a_head_that_does_not_end_in_time_is_given_up(start_server: StartServer) -> None:
    server = await start_server(settings=with_limits(head_s=0.4))
    async with connected(server) as (reader, writer), asyncio.timeout(20):
        writer.write(ALIVE + b"GET / HTTP/1.1\r\n")
        assert (await read_reply(reader)).status == 200
        reading = asyncio.ensure_future(read_reply(reader))
        while not reading.done():  # a byte now and then buys no time
            writer.write(b"A")
            await asyncio.wait({reading}, timeout=0.1)
        assert reading.result().status == 408
        with suppress(ConnectionResetError):  # what it sent last was not read any more
            assert await reader.read() == b""


async def test_a_connection_that_never_says_anything_is_closed(start_server: StartServer) -> None:
    server = await start_server(settings=with_limits(head_s=0.3))
    async with connected(server) as (reader, _), asyncio.timeout(20):
        assert await reader.read() == b""


async def test_a_connection_at_rest_is_left_open(start_server: StartServer) -> None:
    server = await start_server(settings=with_limits(head_s=0.1))
    async with connected(server) as (reader, writer), asyncio.timeout(20):
        for _ in range(2):
            writer.write(ALIVE)
            assert (await read_reply(reader)).status == 200
            await asyncio.sleep(0.3)


async def test_clients_that_read_nothing_lock_nobody_out(start_server: StartServer) -> None:
    """Those that were cut off kept the room of requests that are handed over: 64 in all."""
    server = await start_server(settings=with_limits(write_s=0.5))
    asks = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200
    writers = []
    for _ in range(100):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1_024)
        writer.write(asks)
        writers.append(writer)
    await until(lambda: not protocols(server), within_s=300.0)
    for writer in writers:
        writer.close()
    assert (admission_of(server)._unbegun, len(admission_of(server)._waiting)) == (0, 0)
    assert (await server.ask("/healthz")).status == 200


async def test_connections_have_a_limit_in_all(start_server: StartServer) -> None:
    server = await start_server(settings=with_limits(max_connections=2))
    async with connected(server) as (first, to_first), connected(server):
        to_first.write(ALIVE)
        assert (await read_reply(first)).status == 200
        async with connected(server) as (third, _):
            reply = await read_reply(third)
            assert (reply.status, reply.headers["Connection"]) == (503, "close")
            assert int(reply.headers["Retry-After"]) >= 1
            assert reply.json() == {"reason": "2 connections are open, the most allowed"}
    await until(lambda: not protocols(server))
    assert (await server.ask("/healthz")).status == 200


async def test_connections_of_one_address_have_a_limit(start_server: StartServer) -> None:
    server = await start_server(settings=with_limits(max_connections_per_address=1))
    async with connected(server), connected(server) as (second, _):
        reply = await read_reply(second)
        assert (reply.status, "of 127.0.0.1 are open" in reply.text) == (503, True)


async def test_requests_beyond_those_that_wait_get_503(start_server: StartServer) -> None:
    server = await start_server(settings=with_limits(max_queued_requests=3))
    wires = [wired(server) for _ in range(70)]
    for wire in wires:
        wire.send(ALIVE)  # all within one step of the event loop
    await until(lambda: all(wire.responses for wire in wires))
    replies = [(await wire.replies())[0] for wire in wires]
    assert [reply.status for reply in replies] == [200] * 67 + [503] * 3
    assert all(int(reply.headers["Retry-After"]) >= 1 for reply in replies[67:])
    assert all(wire.closed for wire in wires[67:])


async def test_known_lookups_are_answered_while_requests_wait(start_server: StartServer) -> None:
    server = await start_server(settings=with_limits(max_queued_requests=0))
    wire = wired(server)
    for _ in range(2):
        seen = wire.responses
        wire.send(get("x"))
        await wire.until_responses(seen + 1)
    others = [wired(server) for _ in range(66)]
    for other in others:
        other.send(ALIVE)
    wire.send(get("x"))
    assert wire.responses == 3
    await until(lambda: all(other.responses for other in others))


async def test_who_leaves_before_its_turn_keeps_no_room(start_server: StartServer) -> None:
    server = await start_server(settings=with_limits(max_queued_requests=100))
    for _ in range(3):
        wires = [wired(server) for _ in range(120)]
        for wire in wires:
            wire.send(ALIVE)
        for wire in wires:
            wire.close()
        await until(lambda: not protocols(server))
    admission = admission_of(server)
    assert (admission._unbegun, len(admission._waiting), len(admission._open)) == (0, 0, 0)


def admission_of(server: RunningServer) -> Admission:
    assert server.server._server is not None
    return server.server._server._admission


async def test_what_is_sent_ahead_of_a_request_is_bounded(start_server: StartServer) -> None:
    gate = asyncio.Event()
    server = await start_server(FakeLookup(gate=gate))
    async with connected(server) as (reader, writer), asyncio.timeout(60):
        writer.write(get("x"))
        await until(lambda: server.lookup.waiting == 1)
        writer.write(ALIVE.replace(b"x\r\n", b"x\r\nA: " + b"a" * 1_000 + b"\r\n") * 1_000)
        await until(lambda: protocols(server)[0]._buffer_paused)
        await asyncio.sleep(0.2)
        # One read is at most 256 KiB, and after the one that goes beyond the limit none follows.
        assert len(protocols(server)[0]._heads) <= 65_536 + 262_144
        gate.set()
        for _ in range(1_001):
            assert (await read_reply(reader)).status == 200


@settings(max_examples=200, deadline=None)
@given(
    heads=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 40), max_size=40),
)
def test_heads_are_found_however_they_are_cut(heads: list[int], cuts: list[int]) -> None:
    sent = [b"GET / HTTP/1.1\r\nA: " + b"\r\nB: c" * n + b"\r\n\r\n" for n in heads]
    stream, found, kept = b"".join(sent), [], Heads(1_000)
    position = 0
    for size in [*cuts, len(stream)]:
        kept.add(stream[position : position + size])
        position += size
        while length := kept.head_bytes():
            found.append(kept.take(length))
    assert found == sent
    assert not len(kept)


def test_a_head_one_byte_too_long_is_refused() -> None:
    kept = Heads(100)
    kept.add(b"GET /" + b"a" * 91 + b"\r\n\r\n")
    assert kept.head_bytes() == 100
    longer = Heads(100)
    longer.add(b"GET /" + b"a" * 92 + b"\r\n\r\n")
    with pytest.raises(Refused):
        longer.head_bytes()


async def test_a_tls_handshake_that_does_not_come_is_not_waited_for_for_ever(
    start_server: StartServer, tmp_path: Path
) -> None:
    files = Files(tmp_path)
    tls = TlsFiles(files.certificate, files.key)
    server = await start_server(tls=tls, settings=with_limits(head_s=0.2))
    async with asyncio.timeout(20), connected(server) as (reader, _):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""

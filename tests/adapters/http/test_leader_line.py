import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from loadmanager.adapters.http.assign_client import HttpAssignClient
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.ports.lookup import (
    LeaderInfo,
    LeaderLine,
    NamespaceUnknown,
    NotLeader,
    Unavailable,
)
from tests.adapters.http.conftest import (
    PUBLIC,
    FakeLookup,
    RunningServer,
    StartServer,
    until,
)

BUNDLE = Boundaries.even(PUBLIC, 4).bundles[1]
ASSIGN = "/loadmanager/v1/assign"


def leader_at(url: str, epoch: int = 4) -> LeaderInfo:
    return LeaderInfo(
        broker=BrokerId("b1:8080"),
        service_url="http://b1:8080",
        sidecar_url=url,
        instance="i",
        epoch=epoch,
    )


@pytest.fixture
async def line() -> AsyncIterator[LeaderLine]:
    made = HttpAssignClient(timeout_s=30.0)
    yield made
    await made.close()


@pytest.fixture
async def leader(server: RunningServer) -> RunningServer:
    server.lookup.leader = leader_at(server.url)
    return server


async def test_the_leaders_decision_comes_back_over_the_line(
    leader: RunningServer, line: LeaderLine
) -> None:
    assert await line.assign(leader_at(leader.url + "/"), BUNDLE) == "b1:8080"


async def test_the_leader_tells_broker_and_epoch(leader: RunningServer) -> None:
    got = await leader.ask(ASSIGN, "POST", json={"bundle": BUNDLE})
    assert (got.status, got.json()) == (200, {"broker": "b1:8080", "epoch": 4})


async def test_who_does_not_lead_says_so(leader: RunningServer, line: LeaderLine) -> None:
    leader.lookup.leads = False
    assert (await leader.ask(ASSIGN, "POST", json={"bundle": BUNDLE})).status == 409
    with pytest.raises(NotLeader, match="this sidecar does not lead"):
        await line.assign(leader_at(leader.url), BUNDLE)


async def test_a_leader_of_an_older_epoch_is_not_believed(
    leader: RunningServer, line: LeaderLine
) -> None:
    with pytest.raises(NotLeader, match="answered for epoch 4; the leader's is 5"):
        await line.assign(leader_at(leader.url, epoch=5), BUNDLE)


async def test_a_bundle_in_no_namespace_is_told(leader: RunningServer, line: LeaderLine) -> None:
    with pytest.raises(NamespaceUnknown, match="is in no namespace"):
        await line.assign(leader_at(leader.url), BundleId("public/default/0x00000000_0x00000007"))


async def test_no_broker_is_told_with_the_time_to_return(
    leader: RunningServer, line: LeaderLine
) -> None:
    leader.lookup.taker = None
    with pytest.raises(Unavailable, match="no broker is registered") as raised:
        await line.assign(leader_at(leader.url), BUNDLE)
    assert raised.value.retry_after_s == 3.0


async def test_a_leader_that_is_gone_is_unavailable(
    leader: RunningServer, line: LeaderLine
) -> None:
    await leader.server.stop()
    with pytest.raises(Unavailable, match=f"{leader.url} does not answer"):
        await line.assign(leader_at(leader.url), BUNDLE)


async def test_a_leader_that_hangs_is_unavailable_after_the_timeout(
    start_server: StartServer,
) -> None:
    lookup = FakeLookup(gate=asyncio.Event())
    hung = await start_server(lookup)
    line = HttpAssignClient(timeout_s=0.05)
    with pytest.raises(Unavailable, match="does not answer"):
        await line.assign(leader_at(hung.url), BUNDLE)
    await line.close()
    assert lookup.gate is not None
    lookup.gate.set()
    await until(lambda: lookup.waiting == 0)


async def test_an_address_that_is_none_is_unavailable(line: LeaderLine) -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        await line.assign(leader_at("no address"), BUNDLE)


Serve = Callable[[bytes], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Return a function that serves the same bytes to every request, and the URL of it."""
    servers: list[asyncio.Server] = []

    async def start(raw: bytes) -> str:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(raw)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"broker":"b1:8080"}',
        b'{"broker":3,"epoch":9}',
        b'{"broker":"b","epoch":9}',
    ],
)
async def test_an_answer_that_is_none_is_unavailable(
    serve: Serve, line: LeaderLine, body: bytes
) -> None:
    url = await serve(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    with pytest.raises(Unavailable, match="expected broker and epoch"):
        await line.assign(leader_at(url), BUNDLE)


@pytest.mark.parametrize("epoch", [b"1e999", b"-1", b"9" * 400, b"1.5", b"null", b"true", b"NaN"])
async def test_an_epoch_beyond_its_bound_is_unavailable(
    serve: Serve, line: LeaderLine, epoch: bytes
) -> None:
    body = b'{"broker":"b1:8080","epoch":%s}' % epoch
    url = await serve(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    with pytest.raises(Unavailable, match="expected a whole number from 0 to"):
        await line.assign(leader_at(url), BUNDLE)


@pytest.mark.parametrize("header", [b"9" * 400, "²".encode("latin-1"), b"-1", b"soon"])
async def test_a_time_to_come_back_that_is_none_is_a_second(
    serve: Serve, line: LeaderLine, header: bytes
) -> None:
    head = b"HTTP/1.1 503 X\r\nRetry-After: %s\r\nContent-Length: 2\r\n\r\n{}" % header
    with pytest.raises(Unavailable) as raised:
        await line.assign(leader_at(await serve(head)), BUNDLE)
    assert raised.value.retry_after_s == 1.0


@pytest.mark.parametrize("status", [b"404 Not Found", b"500 Oops", b"302 Found"])
async def test_a_server_that_is_no_sidecar_is_unavailable(
    serve: Serve, line: LeaderLine, status: bytes
) -> None:
    raw = b"HTTP/1.1 %s\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 2\r\n\r\nno" % status
    with pytest.raises(Unavailable, match=f"answered {status[:3].decode()}"):
        await line.assign(leader_at(await serve(raw)), BUNDLE)


async def test_a_server_that_hangs_up_is_unavailable(serve: Serve, line: LeaderLine) -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        await line.assign(leader_at(await serve(b"garbage\r\n\r\n")), BUNDLE)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{}", "bundle = None; expected a text"),
        (b'{"bundle":7}', "bundle = 7; expected a text"),
        (b'{"bundle":"x"}', "bundle 'x' is not valid"),
        (b"nope", "the body is not JSON"),
    ],
)
async def test_a_malformed_question_is_refused(
    leader: RunningServer, body: bytes, said: str
) -> None:
    got = await leader.ask(ASSIGN, "POST", data=body)
    assert got.status == 400
    assert said in got.json()["reason"]


async def test_a_line_can_be_used_again_after_it_was_closed(leader: RunningServer) -> None:
    line = HttpAssignClient()
    for _ in range(2):
        assert await line.assign(leader_at(leader.url), BUNDLE) == "b1:8080"
        await line.close()


async def test_an_answer_without_an_end_is_cut_off(line: LeaderLine) -> None:
    async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b" " * 65_536)
                await writer.drain()
        except OSError:
            writer.close()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match="its answer has more than 65536 bytes"):
            await line.assign(leader_at(url), BUNDLE)


async def test_what_is_packed_is_counted_as_it_arrives(serve: Serve, line: LeaderLine) -> None:
    body = gzip.compress(b" " * 10_000_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    with pytest.raises(Unavailable, match="expected broker and epoch"):
        await line.assign(leader_at(await serve(head % len(body) + body)), BUNDLE)

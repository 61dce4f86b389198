import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from raw_server import raw_server

from loadmanager.adapters.http.assign_client import HttpAssignClient
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.wire.records import LeaderRecord
from loadmanager.ports.lookup import NamespaceUnknown, NotLeader, Unavailable
from tests.adapters.http.conftest import PUBLIC, FakeLookup, RunningServer, StartServer, until

Line = HttpAssignClient
BUNDLE = Boundaries.even(PUBLIC, 4).bundles[1]
ASSIGN = "/loadmanager/v1/assign"


def leader_at(url: str, epoch: int = 4) -> LeaderRecord:
    return LeaderRecord(
        broker=BrokerId("b1:8080"),
        service_url="http://b1:8080",
        sidecar_url=url,
        instance="i",
        epoch=epoch,
    )


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    made = HttpAssignClient(timeout_s=30.0)
    yield made
    await made.close()


@pytest.fixture
async def leader(server: RunningServer) -> RunningServer:
    server.lookup.leader = leader_at(server.url)
    return server


async def test_the_decision_comes_over_the_line(leader: RunningServer, line: Line) -> None:
    got = await leader.ask(ASSIGN, "POST", json={"bundle": BUNDLE})
    assert (got.status, got.json()) == (200, {"broker": "b1:8080", "epoch": 4})
    for _ in range(2):
        assert await line.assign(leader_at(leader.url + "/"), BUNDLE) == "b1:8080"
        await line.close()  # it can be used again


NONE = BundleId("public/default/0x00000000_0x00000007")


@pytest.mark.parametrize(
    ("state", "epoch", "bundle", "error", "said"),
    [
        ({"leads": False}, 4, BUNDLE, NotLeader, "this sidecar does not lead"),
        ({}, 5, BUNDLE, NotLeader, "answered for epoch 4; the leader's is 5"),
        ({}, 4, NONE, NamespaceUnknown, "is in no namespace"),
        ({"taker": None}, 4, BUNDLE, Unavailable, "no broker is registered"),
    ],
)
async def test_what_the_leader_refuses_is_told(
    leader: RunningServer,
    line: Line,
    *,
    state: dict[str, Any],
    epoch: int,
    bundle: BundleId,
    error: type[Exception],
    said: str,
) -> None:
    vars(leader.lookup).update(state)
    with pytest.raises(error, match=said) as raised:
        await line.assign(leader_at(leader.url, epoch), bundle)
    if isinstance(raised.value, Unavailable):
        assert raised.value.retry_after_s == 3.0
    if not leader.lookup.leads:
        assert (await leader.ask(ASSIGN, "POST", json={"bundle": BUNDLE})).status == 409


async def test_who_does_not_answer_is_unavailable(start_server: StartServer) -> None:
    lookup = FakeLookup(gate=asyncio.Event())
    hung, gone = await start_server(lookup), await start_server()
    await gone.server.stop()
    line = HttpAssignClient(timeout_s=0.2)
    for url in (hung.url, gone.url, "no address"):
        with pytest.raises(Unavailable, match=f"{url} does not answer"):
            await line.assign(leader_at(url), BUNDLE)
    await line.close()
    assert lookup.gate is not None
    lookup.gate.set()
    await until(lambda: lookup.waiting == 0)


Serve = Callable[[bytes], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as servers:

        async def start(raw: bytes) -> str:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(raw)
                await writer.drain()

            port = await servers.enter_async_context(raw_server(answer))
            return f"http://127.0.0.1:{port}"

        yield start


OK, BROKER = b"200 OK", "expected broker and epoch"
NUMBER = "expected a whole number from 0 to"
PACKED = gzip.compress(b" " * 10_000_000)


@pytest.mark.parametrize(
    ("head", "body", "said"),
    [
        *((OK, body, BROKER) for body in (b"", b"{", b"[]", b'{"broker":"b1:8080"}')),
        *((OK, b'{"broker":%b,"epoch":9}' % broker, BROKER) for broker in (b"3", b'"b"')),
        *(
            (OK, b'{"broker":"b1:8080","epoch":%s}' % epoch, NUMBER)
            for epoch in (b"1e999", b"-1", b"9" * 400, b"1.5", b"null", b"true", b"NaN")
        ),
        (b"404 Not Found", b"no", "answered 404"),
        (b"500 Oops", b"no", "answered 500"),
        (b"302 Found\r\nLocation: http://127.0.0.1:1/", b"no", "answered 302"),
        (OK + b"\r\nContent-Encoding: gzip", PACKED, BROKER),  # counted as it arrives
        (b"", b"garbage", "does not answer"),
    ],
)
async def test_an_answer_that_is_none_is_unavailable(
    serve: Serve, line: Line, head: bytes, body: bytes, said: str
) -> None:
    whole = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (head, len(body), body)
    with pytest.raises(Unavailable, match=said):
        await line.assign(leader_at(await serve(whole if head else body + b"\r\n\r\n")), BUNDLE)


@pytest.mark.parametrize("header", [b"9" * 400, "²".encode("latin-1"), b"-1", b"soon"])
async def test_an_odd_time_to_return_is_1_s(serve: Serve, line: Line, header: bytes) -> None:
    head = b"HTTP/1.1 503 X\r\nRetry-After: %s\r\nContent-Length: 2\r\n\r\n{}" % header
    with pytest.raises(Unavailable) as raised:
        await line.assign(leader_at(await serve(head)), BUNDLE)
    assert raised.value.retry_after_s == 1.0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{}", "bundle = None; expected a text"),
        (b'{"bundle":7}', "bundle = 7; expected a text"),
        (b'{"bundle":"x"}', "bundle 'x' is not valid"),
        (b"nope", "the body is not JSON"),
    ],
)
async def test_an_odd_question_is_refused(leader: RunningServer, body: bytes, said: str) -> None:
    got = await leader.ask(ASSIGN, "POST", data=body)
    assert got.status == 400
    assert said in got.json()["reason"]


async def test_an_answer_without_an_end_is_cut_off(line: Line) -> None:
    async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b" " * 65_536)
            await writer.drain()

    async with raw_server(pour) as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(Unavailable, match="its answer has more than 65536 bytes"):
            await line.assign(leader_at(url), BUNDLE)

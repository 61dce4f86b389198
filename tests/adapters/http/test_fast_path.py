"""The fast path may only be seen by a stopwatch: these tests compare it with aiohttp."""

import asyncio

import pytest
from structlog.testing import capture_logs

from loadmanager.adapters.http.heads import is_whole_request
from loadmanager.config.deployment import HttpSettings
from loadmanager.core.ids import TopicName
from tests.adapters.http.conftest import (
    PUBLIC,
    FakeLookup,
    RunningServer,
    StartServer,
    exchange,
    get,
    learn,
    seen_by_aiohttp,
    until,
    wired,
)


def unowned_topics(server: RunningServer, count: int) -> list[str]:
    """Return topics in bundles of their own that nobody owns."""
    by_bundle: dict[str, str] = {}
    for name in map(str, range(1000)):
        bundle = server.lookup.bundle_in_picture(TopicName("persistent", PUBLIC, name))
        assert bundle is not None
        if bundle not in server.lookup.owners:
            by_bundle.setdefault(bundle, name)
    return list(by_bundle.values())[:count]


async def test_known_requests_are_answered_without_aiohttp(server: RunningServer) -> None:
    await learn(server, "x", "y")
    seen = seen_by_aiohttp(server)
    wire = wired(server)
    for topic in ("x", "y", "x"):
        wire.send(get(topic))
    assert wire.responses == 3
    assert seen_by_aiohttp(server) == seen


async def test_the_express_answer_says_what_aiohttps_says(server: RunningServer) -> None:
    slow = await exchange(wired(server), get("x", b"Host: x\r\nConnection: keep-alive\r\n\r\n"))
    await learn(server, "x")
    quick = await exchange(wired(server), get("x"))
    assert (quick.status, quick.text) == (slow.status, slow.text)
    assert quick.headers.keys() == slow.headers.keys()
    undated = {name: value for name, value in quick.headers.items() if name != "Date"}
    assert undated.items() <= slow.headers.items()
    assert quick.headers["Date"].endswith(" GMT")


async def held_up(start_server: StartServer) -> tuple[RunningServer, asyncio.Event]:
    """Return a server that knows the answer for "x", and what others wait for."""
    gate = asyncio.Event()
    gate.set()
    server = await start_server(FakeLookup(gate=gate))
    await learn(server, "x")
    gate.clear()
    return server, gate


async def test_a_request_is_understood_wherever_it_is_cut(server: RunningServer) -> None:
    await learn(server, "x")
    whole = get("x")
    for cut in range(1, len(whole)):
        wire = wired(server)
        got = await exchange(wire, whole[:cut], whole[cut:])
        assert got.status == 200
        assert (await exchange(wire, whole)).status == 200
        assert wire.responses == 2
        wire.close()


async def test_answers_keep_the_order_of_the_questions(start_server: StartServer) -> None:
    server, gate = await held_up(start_server)
    wire = wired(server)
    [unowned] = unowned_topics(server, 1)
    wire.send(get(unowned))
    await until(lambda: server.lookup.waiting == 1)
    wire.send(get("x"))
    await asyncio.sleep(0)
    assert wire.responses == 0
    gate.set()
    await wire.until_responses(2)
    bundles = [reply.headers["X-Loadmanager-Bundle"] for reply in await wire.replies()]
    topics = [TopicName("persistent", PUBLIC, name) for name in (unowned, "x")]
    assert bundles == [server.lookup.bundle_in_picture(topic) for topic in topics]


async def test_a_body_that_looks_like_a_request_is_a_body(server: RunningServer) -> None:
    await learn(server, "x")
    wire = wired(server)
    body = get("x")
    head = b"POST /redirect/persistent/public/default/x HTTP/1.1\r\nHost: x\r\n"
    wire.send(head + b"Content-Length: %d\r\n\r\n" % len(body))
    await wire.until_responses(1)
    wire.send(body)
    assert (await exchange(wire, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")).text == "ok"
    assert [reply.status for reply in await wire.replies()] == [307, 200]


@pytest.mark.parametrize(
    "head",
    [
        b"Host: x\r\nX-Pulsar-ListenerName: inner\r\n\r\n",
        b"Host: x\r\nConnection: close\r\n\r\n",
        b"Host: x\r\nContent-Length: 2\r\n\r\n",
        b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"Host: x\r\nA: " + b"a" * 5000 + b"\r\n\r\n",
    ],
)
async def test_headers_that_matter_are_never_learnt(server: RunningServer, head: bytes) -> None:
    await learn(server, "x")
    for _ in range(3):
        wire = wired(server)
        seen = seen_by_aiohttp(server)
        wire.send(get("x", head))
        await wire.until_responses(1)
        assert seen_by_aiohttp(server) == seen + 1
        wire.close()


async def test_what_follows_in_the_same_chunk_keeps_its_turn(start_server: StartServer) -> None:
    server, gate = await held_up(start_server)
    first, second = unowned_topics(server, 2)
    wire = wired(server)
    wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + get(first))
    await until(lambda: server.lookup.waiting == 1)
    wire.send(get("x") + get(second))
    gate.set()
    gate.clear()
    await wire.until_responses(3)
    await until(lambda: server.lookup.waiting == 1)
    wire.send(get("x"))
    assert wire.responses == 3
    gate.set()
    await wire.until_responses(5)


async def test_a_request_that_comes_while_another_waits_keeps_its_turn(
    start_server: StartServer,
) -> None:
    server, gate = await held_up(start_server)
    first, second = unowned_topics(server, 2)
    wire = wired(server)
    wire.send(get(first))
    await until(lambda: server.lookup.waiting == 1)
    wire.send(get(second))
    gate.set()
    gate.clear()
    await wire.until_responses(1)
    await until(lambda: server.lookup.waiting == 1)
    wire.send(get("x"))
    assert wire.responses == 1
    gate.set()
    await wire.until_responses(3)


async def test_a_line_feed_alone_never_hides_a_second_request(server: RunningServer) -> None:
    await learn(server, "x")
    hidden = b"Host: x\n\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    for _ in range(3):
        wire = wired(server)
        wire.send(get("x", hidden))
        await wire.until_responses(1)
        assert (await wire.replies())[0].status in {200, 400}
        seen = seen_by_aiohttp(server)
        wire.send(get("x"))
        assert seen_by_aiohttp(server) >= seen
        wire.close()
        quick = wired(server)
        quick.send(get("x", hidden))
        assert quick.responses == 0
        quick.close()


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (get("x"), True),
        (get("x")[:-1], False),
        (get("x") + get("x"), False),
        (get("x", b"Host: x\n\nGET / HTTP/1.1\r\n\r\n"), False),
        (b"GET", False),
        (b"", False),
    ],
)
def test_only_bytes_that_every_parser_reads_as_one_head_count_as_one(
    data: bytes,
    whole: bool,
) -> None:
    assert is_whole_request(data) is whole


async def test_an_error_in_the_lane_is_an_answer_like_any_other_error(
    server: RunningServer,
) -> None:
    await learn(server, "x")
    wire = wired(server)
    server.lookup.breaks = True
    server.lookup.cluster_state_version += 1
    with capture_logs() as logs:
        got = await exchange(wire, get("x"))
    assert got.status == 500
    assert [entry["event"] for entry in logs] == ["http.request.failed"]


async def test_a_closing_server_serves_nobody(server: RunningServer) -> None:
    await learn(server, "x")
    wire = wired(server)
    assert wire.protocol is not None
    wire.protocol.close()
    wire.send(get("x"))
    assert wire.responses == 0


async def test_a_reader_that_lags_is_not_written_to(server: RunningServer) -> None:
    await learn(server, "x")
    wire = wired(server)
    assert wire.protocol is not None
    wire.protocol.pause_writing()
    wire.send(get("x"))
    assert wire.responses == 0
    wire.protocol.resume_writing()
    await wire.until_responses(1)


async def test_aiohttp_sees_a_request_before_it_takes_the_connection_for_idle(
    start_server: StartServer,
) -> None:
    server = await start_server(settings=HttpSettings(keepalive_s=60.0))
    await learn(server, "x")
    wire = wired(server)
    assert wire.protocol is not None
    seen = seen_by_aiohttp(server)
    await exchange(wire, get("x"))
    assert seen_by_aiohttp(server) == seen
    wire.protocol._handed_at_s -= 31.0
    await exchange(wire, get("x"))
    assert seen_by_aiohttp(server) == seen + 1
    await exchange(wire, get("x"))
    assert seen_by_aiohttp(server) == seen + 1

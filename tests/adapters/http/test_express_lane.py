"""The express lane may only be seen by a stopwatch: these tests compare it with aiohttp."""

import asyncio

import pytest

from loadmanager.core.ids import TopicName
from tests.adapters.http.conftest import (
    PUBLIC,
    FakeLookup,
    OpenADoor,
    OpenDoor,
    exchange,
    get,
    learn,
    seen_by_aiohttp,
    until,
    wired,
)


async def test_known_requests_are_answered_without_aiohttp(door: OpenDoor) -> None:
    await learn(door, "x", "y")
    seen = seen_by_aiohttp(door)
    wire = wired(door)
    for topic in ("x", "y", "x"):
        wire.send(get(topic))
    assert wire.responses == 3
    assert seen_by_aiohttp(door) == seen


async def test_the_express_answer_says_what_aiohttps_says(door: OpenDoor) -> None:
    slow = await exchange(wired(door), get("x", b"Host: x\r\nConnection: keep-alive\r\n\r\n"))
    await learn(door, "x")
    quick = await exchange(wired(door), get("x"))
    assert (quick.status, quick.text) == (slow.status, slow.text)
    assert quick.headers.keys() == slow.headers.keys()
    undated = {name: value for name, value in quick.headers.items() if name != "Date"}
    assert undated.items() <= slow.headers.items()
    assert quick.headers["Date"].endswith(" GMT")


async def test_a_request_is_understood_wherever_it_is_cut(door: OpenDoor) -> None:
    await learn(door, "x")
    whole = get("x")
    for cut in range(1, len(whole)):
        wire = wired(door)
        got = await exchange(wire, whole[:cut], whole[cut:])
        assert got.status == 200
        assert (await exchange(wire, whole)).status == 200
        assert wire.responses == 2
        wire.close()


async def test_answers_keep_the_order_of_the_questions(open_a_door: OpenADoor) -> None:
    gate = asyncio.Event()
    gate.set()
    door = await open_a_door(FakeLookup(gate=gate))
    await learn(door, "x")
    gate.clear()
    door.lookup.namespaces.update(FakeLookup().namespaces)
    wire = wired(door)
    unowned = next(
        name
        for name in map(str, range(100))
        if door.lookup.owner_if_known(TopicName("persistent", PUBLIC, name)) is None
    )
    wire.send(get(unowned))
    await until(lambda: door.lookup.waiting == 1)
    wire.send(get("x"))
    await asyncio.sleep(0)
    assert wire.responses == 0
    gate.set()
    await wire.until_responses(2)
    bundles = [reply.headers["X-Loadmanager-Bundle"] for reply in await wire.replies()]
    topics = [TopicName("persistent", PUBLIC, name) for name in (unowned, "x")]
    assert bundles == [door.lookup.bundle_in_picture(topic) for topic in topics]


async def test_a_body_that_looks_like_a_request_is_a_body(door: OpenDoor) -> None:
    await learn(door, "x")
    wire = wired(door)
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
        b"Host: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"Host: x\r\nExpect: 100-continue\r\n\r\n",
        b"Host: x\r\nContent-Length: 2\r\n\r\n",
        b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"Host: x\r\nA: " + b"a" * 3000 + b"\r\n\r\n",
    ],
)
async def test_headers_that_matter_are_never_learnt(door: OpenDoor, head: bytes) -> None:
    await learn(door, "x")
    for _ in range(3):
        wire = wired(door)
        seen = seen_by_aiohttp(door)
        wire.send(get("x", head))
        await wire.until_responses(1)
        assert seen_by_aiohttp(door) == seen + 1
        wire.close()


async def test_a_line_feed_alone_never_hides_a_second_request(door: OpenDoor) -> None:
    await learn(door, "x")
    hidden = b"Host: x\n\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    for _ in range(3):
        wire = wired(door)
        wire.send(get("x", hidden))
        await wire.until_responses(1)
        assert (await wire.replies())[0].status in {200, 400}
        seen = seen_by_aiohttp(door)
        wire.send(get("x"))
        assert seen_by_aiohttp(door) >= seen
        wire.close()
        quick = wired(door)
        quick.send(get("x", hidden))
        assert quick.responses == 0
        quick.close()


async def test_a_closing_door_serves_nobody(door: OpenDoor) -> None:
    await learn(door, "x")
    wire = wired(door)
    assert wire.protocol is not None
    wire.protocol.close()
    wire.send(get("x"))
    assert wire.responses == 0


async def test_a_reader_that_lags_is_not_written_to(door: OpenDoor) -> None:
    await learn(door, "x")
    wire = wired(door)
    assert wire.protocol is not None
    wire.protocol.pause_writing()
    wire.send(get("x"))
    assert wire.responses == 0
    wire.protocol.resume_writing()
    await wire.until_responses(1)

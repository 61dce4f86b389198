"""The express lane may only be seen by a stopwatch: these tests compare it with aiohttp."""

import asyncio

import pytest
from structlog.testing import capture_logs

from loadmanager.adapters.http import HttpServerSettings
from loadmanager.adapters.http.heads import is_whole_request
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


def unowned_topics(door: OpenDoor, count: int) -> list[str]:
    """Return topics in bundles of their own that nobody owns."""
    by_bundle: dict[str, str] = {}
    for name in map(str, range(1000)):
        bundle = door.lookup.bundle_in_picture(TopicName("persistent", PUBLIC, name))
        assert bundle is not None
        if bundle not in door.lookup.owners:
            by_bundle.setdefault(bundle, name)
    return list(by_bundle.values())[:count]


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
    wire = wired(door)
    [unowned] = unowned_topics(door, 1)
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


async def test_what_follows_in_the_same_chunk_keeps_its_turn(open_a_door: OpenADoor) -> None:
    gate = asyncio.Event()
    gate.set()
    door = await open_a_door(FakeLookup(gate=gate))
    await learn(door, "x")
    gate.clear()
    first, second = unowned_topics(door, 2)
    wire = wired(door)
    wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + get(first))
    await until(lambda: door.lookup.waiting == 1)
    wire.send(get("x") + get(second))
    gate.set()
    gate.clear()
    await wire.until_responses(3)
    await until(lambda: door.lookup.waiting == 1)
    wire.send(get("x"))
    assert wire.responses == 3
    gate.set()
    await wire.until_responses(5)


async def test_a_request_that_comes_while_another_waits_keeps_its_turn(
    open_a_door: OpenADoor,
) -> None:
    gate = asyncio.Event()
    gate.set()
    door = await open_a_door(FakeLookup(gate=gate))
    await learn(door, "x")
    gate.clear()
    first, second = unowned_topics(door, 2)
    wire = wired(door)
    wire.send(get(first))
    await until(lambda: door.lookup.waiting == 1)
    wire.send(get(second))
    gate.set()
    gate.clear()
    await wire.until_responses(1)
    await until(lambda: door.lookup.waiting == 1)
    wire.send(get("x"))
    assert wire.responses == 1
    gate.set()
    await wire.until_responses(3)


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


async def test_an_error_in_the_lane_is_an_answer_like_any_other_error(door: OpenDoor) -> None:
    await learn(door, "x")
    wire = wired(door)
    door.lookup.breaks = True
    door.lookup.picture_version += 1
    with capture_logs() as logs:
        got = await exchange(wire, get("x"))
    assert got.status == 500
    assert [entry["event"] for entry in logs] == ["http.request.failed"]


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


async def test_aiohttp_sees_a_request_before_it_takes_the_connection_for_idle(
    open_a_door: OpenADoor,
) -> None:
    door = await open_a_door(settings=HttpServerSettings(keepalive_s=60.0))
    await learn(door, "x")
    wire = wired(door)
    assert wire.protocol is not None
    seen = seen_by_aiohttp(door)
    await exchange(wire, get("x"))
    assert seen_by_aiohttp(door) == seen
    wire.protocol._handed_at_s -= 31.0
    await exchange(wire, get("x"))
    assert seen_by_aiohttp(door) == seen + 1
    await exchange(wire, get("x"))
    assert seen_by_aiohttp(door) == seen + 1

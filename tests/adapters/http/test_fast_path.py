"""The fast path may only be seen by a stopwatch: these tests compare it with aiohttp."""

import asyncio

import pytest
from structlog.testing import capture_logs

from loadmanager.config.sections import HttpSettings
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

ALIVE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def unowned_topics(server: RunningServer, count: int) -> list[str]:
    """Return topics in bundles of their own that nobody owns."""
    by_bundle: dict[str, str] = {}
    for name in map(str, range(1000)):
        bundle = server.lookup.bundle_in_picture(TopicName("persistent", PUBLIC, name))
        assert bundle is not None
        if bundle not in server.lookup.owners:
            by_bundle.setdefault(bundle, name)
    return list(by_bundle.values())[:count]


@pytest.fixture
async def known(server: RunningServer) -> RunningServer:
    await learn(server, "x", "y")
    return server


@pytest.mark.parametrize(
    ("chunks", "begun"),
    [(["0", "x"], 0), (["/0", "x1", "x"], 1), (["0", "1", "x"], 0)],
    ids=["a known one after an unknown", "in one chunk", "one by one"],
)
async def test_answers_keep_order(start_server: StartServer, chunks: list[str], begun: int) -> None:
    """Each chunk is one lookup a letter: of x, of topics that nobody owns; / is no lookup."""
    gate = asyncio.Event()
    gate.set()
    server = await start_server(FakeLookup(gate=gate))
    await learn(server, "x")
    gate.clear()
    topics = dict(zip("01", unowned_topics(server, 2), strict=True)) | {"x": "x"}
    wire = wired(server)
    for number, chunk in enumerate(chunks):
        wire.send(b"".join(get(topics[one]) if one in topics else ALIVE for one in chunk))
        if not number:
            await until(lambda: server.lookup.waiting == 1)
        await asyncio.sleep(0)
    assert wire.responses == begun
    asked = "".join(chunks)
    for waiting in range(1, asked.count("0") + asked.count("1") + 1):
        await until(lambda: server.lookup.waiting == 1)
        gate.set()
        gate.clear()
        held = asked.index("01"[waiting], begun) if str(waiting) in asked else len(asked)
        await wire.until_responses(held)
        assert wire.responses == held
    got = [one.headers.get("X-Loadmanager-Bundle") for one in await wire.replies()]
    assert got == [
        server.lookup.bundle_in_picture(TopicName("persistent", PUBLIC, topics[one]))
        if one in topics
        else None
        for one in asked
    ]


async def test_an_error_in_the_lane_is_an_answer_like_any_other_error(known: RunningServer) -> None:
    known.lookup.breaks = True
    known.lookup.cluster_state_version += 1
    with capture_logs() as logs:
        got = await exchange(wired(known), get("x"))
    assert got.status == 500
    assert [entry["event"] for entry in logs] == ["http.request.failed"]


async def test_who_lags_or_is_closed_is_not_written_to(known: RunningServer) -> None:
    wire = wired(known)
    assert wire.protocol is not None
    wire.protocol.pause_writing()
    wire.send(get("x"))
    assert wire.responses == 0
    wire.protocol.resume_writing()
    await wire.until_responses(1)
    closing = wired(known)
    assert closing.protocol is not None
    closing.protocol.close()
    closing.send(get("x"))
    assert closing.responses == 0


async def test_aiohttp_sees_a_request_before_it_times_out(start_server: StartServer) -> None:
    server = await start_server(settings=HttpSettings(keepalive_s=60.0))
    await learn(server, "x")
    wire = wired(server)
    assert wire.protocol is not None
    seen = seen_by_aiohttp(server)
    for idle_s, handed_over in ((0.0, 0), (31.0, 1), (0.0, 1)):
        wire.protocol._handed_at_s -= idle_s
        await exchange(wire, get("x"))
        assert seen_by_aiohttp(server) == seen + handed_over

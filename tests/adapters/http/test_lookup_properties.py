import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.core.ids import TopicName
from tests.adapters.http.conftest import (
    HEAD,
    PUBLIC,
    FakeLookup,
    RunningServer,
    Wire,
    exchange,
    get,
    learn,
    running_servers,
    wired,
)

LOOKUP = b"/lookup/v2/topic/persistent/public/default/x HTTP/1.1\r\n" + HEAD
KINDS = [
    *(get("x"), get("y"), get("x?listenerName=inner"), get("unknown/extra")),
    get("x", b"Host: x\r\nX-Pulsar-ListenerName: inner\r\n\r\n"),
    *(b"GET /healthz HTTP/1.1\r\n" + HEAD, b"OPTIONS " + LOOKUP, b"POST " + LOOKUP),
    b"PUT /admin/v2/namespaces/bad%20/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
]


class Two(NamedTuple):
    """Two servers for all examples, one of which answers everything by aiohttp."""

    runner: asyncio.Runner
    quick: RunningServer
    slow: RunningServer


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    servers = running_servers()

    async def start() -> list[RunningServer]:
        start_server = await servers.__aenter__()
        return [await start_server(FakeLookup(taker="taker:8080")) for _ in range(2)]

    async def stop() -> None:
        await servers.__aexit__(None, None, None)

    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        quick, slow = runner.run(start())
        patch.setattr(slow.server._fast_path, "response_to", lambda *_, **__: None)
        yield Two(runner, quick, slow)
        runner.run(stop())


@settings(max_examples=60, deadline=None)
@given(
    picks=st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
)
def test_any_stream_cut_anywhere_is_alike(two: Two, picks: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(picks)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})

    async def compare() -> None:
        want = [await exchange(wired(two.slow), pick) for pick in picks]
        await learn(two.quick, "x", "y")
        wire = wired(two.quick)
        for start, end in pairwise(edges):
            wire.send(stream[start:end])
            await asyncio.sleep(0)
        await wire.until_responses(len(picks))
        got = await wire.replies()
        assert [(one.status, one.text) for one in got] == [(one.status, one.text) for one in want]
        wire.close()

    two.runner.run(compare())


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["give", "take away", "recut", "ask"]), st.integers(0, 7), st.integers(1, 4)
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_no_lookup_is_answered_with_an_owner_of_the_past(two: Two, steps: list[Step]) -> None:
    async def play() -> None:
        two.quick.lookup.recut(PUBLIC, 4)
        wire = wired(two.quick)
        for number, step in enumerate(steps):
            await _play(two.quick, wire, step, number)
        wire.close()

    two.runner.run(play())


async def _play(server: RunningServer, wire: Wire, step: Step, token: int) -> None:
    what, topic, broker = step
    lookup = server.lookup
    bundle = lookup.bundle_in_picture(TopicName("persistent", PUBLIC, str(topic)))
    assert bundle is not None
    match what:
        case "give":
            lookup.give(bundle, f"b{broker}:8080", token)
        case "take away":
            lookup.take_away(bundle)
        case "recut":
            lookup.recut(PUBLIC, 2**broker)
        case _:
            got = await exchange(wire, get(str(topic)))
            assert got.headers["X-Loadmanager-Bundle"] == bundle
            owner = lookup.owners[bundle]
            assert got.json()["httpUrl"] == owner.urls.http_url
            assert got.headers["X-Loadmanager-Fencing-Token"] == str(owner.fencing_token)


PREFIXES = [
    *("/", "/lookup/v2/topic/", "/lookup/v2/topic/persistent/public/default/", "/redirect/"),
    *("/redirect/persistent/public/default/", "/admin/v2/", "/admin/v2/persistent/public/default/"),
    *("/admin/v2/namespaces/acme/", "http://x/lookup/v2/topic/persistent/public/default/", ""),
]
ODD = ["%2F", "%", "%25", "%ff", "%00", "/", "..", "?", "#", "&", "a", "ä"]


@settings(max_examples=200, deadline=None)
@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"]),
    prefix=st.sampled_from(PREFIXES),
    rest=st.one_of(
        st.binary(max_size=40),
        st.text(max_size=30).map(lambda text: text.encode(errors="surrogatepass")),
        st.lists(st.sampled_from(ODD)).map("".join).map(str.encode),
    ),
)
def test_no_path_makes_the_server_fail(two: Two, method: str, prefix: str, rest: bytes) -> None:
    async def ask() -> None:
        wire = wired(two.quick)
        wire.send(method.encode() + b" " + prefix.encode() + rest + b" HTTP/1.1\r\n" + HEAD)
        wire.send(b"\r\n\r\n")
        await wire.until_responses(1)
        status = int(wire.written.split(b" ", 2)[1])
        assert status < 500, wire.written
        wire.close()

    two.runner.run(ask())

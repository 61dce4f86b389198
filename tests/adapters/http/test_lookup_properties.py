import asyncio
from itertools import pairwise

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

KINDS = [
    get("x"),
    get("y"),
    get("x?listenerName=inner"),
    get("x", b"Host: x\r\nX-Pulsar-ListenerName: inner\r\n\r\n"),
    get("unknown/extra"),
    b"GET /healthz HTTP/1.1\r\n" + HEAD,
    b"OPTIONS /lookup/v2/topic/persistent/public/default/x HTTP/1.1\r\n" + HEAD,
    b"POST /lookup/v2/topic/persistent/public/default/x HTTP/1.1\r\n" + HEAD,
    b"PUT /admin/v2/namespaces/bad%20/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
]


@settings(max_examples=60, deadline=None)
@given(
    picks=st.lists(st.sampled_from(range(len(KINDS))), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
)
def test_any_stream_cut_anywhere_gets_the_answers_it_gets_one_by_one(
    picks: list[int], cuts: list[int]
) -> None:
    stream = b"".join(KINDS[pick] for pick in picks)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})

    async def compare() -> None:
        async with running_servers() as start_server:
            server = await start_server()
            want = [await exchange(wired(server), KINDS[pick]) for pick in picks]
            await learn(server, "x", "y")
            wire = wired(server)
            for start, end in pairwise(edges):
                wire.send(stream[start:end])
                await asyncio.sleep(0)
            await wire.until_responses(len(picks))
            got = await wire.replies()
            assert [reply.status for reply in got] == [reply.status for reply in want]
            assert [reply.text for reply in got] == [reply.text for reply in want]

    asyncio.run(compare())


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["give", "take away", "recut", "ask"]), st.integers(0, 7), st.integers(1, 4)
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_no_lookup_is_answered_with_an_owner_of_the_past(steps: list[Step]) -> None:
    async def play() -> None:
        async with running_servers() as start_server:
            server = await start_server(FakeLookup(taker="taker:8080"))
            wire = wired(server)
            for number, step in enumerate(steps):
                await _play(server, wire, step, number)

    asyncio.run(play())


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


@settings(max_examples=200, deadline=None)
@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"]),
    prefix=st.sampled_from(
        [
            "/",
            "/lookup/v2/topic/",
            "/lookup/v2/topic/persistent/public/default/",
            "/redirect/",
            "/redirect/persistent/public/default/",
            "/admin/v2/",
            "/admin/v2/persistent/public/default/",
            "/admin/v2/namespaces/acme/",
            "http://x/lookup/v2/topic/persistent/public/default/",
            "",
        ]
    ),
    rest=st.one_of(
        st.binary(max_size=40),
        st.text(max_size=30).map(lambda text: text.encode(errors="surrogatepass")),
        st.lists(
            st.sampled_from(["%2F", "%", "%25", "%ff", "%00", "/", "..", "?", "#", "&", "a", "ä"])
        )
        .map("".join)
        .map(str.encode),
    ),
)
def test_no_path_whatever_makes_the_server_fail(method: str, prefix: str, rest: bytes) -> None:
    async def ask() -> None:
        async with running_servers() as start_server:
            wire = wired(await start_server())
            wire.send(method.encode() + b" " + prefix.encode() + rest + b" HTTP/1.1\r\n" + HEAD)
            wire.send(b"\r\n\r\n")
            await wire.until_responses(1)
            status = int(wire.written.split(b" ", 2)[1])
            assert status < 500, wire.written

    asyncio.run(ask())

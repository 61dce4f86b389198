"""Lookups whose headers were never seen before: answered at once, and as aiohttp's path would.

The heads are those that clients send: curl 7.88.1 and Pulsar's C++ client 4.2.0 as received, its
Java and Go clients as their HTTP libraries write them, and what proxies add.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt
import pytest
from aiohttp import web
from aiohttp.http_parser import SINGLETON_HEADERS
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from loadmanager.adapters.http.lookups import decisive_headers
from loadmanager.adapters.http.security.guard import (
    ClusterKeyGuard,
    Guard,
    OwnNames,
    Rights,
    Tokens,
)
from loadmanager.config.sections import HttpSettings
from tests.adapters.http.conftest import (
    RunningServer,
    StartServer,
    Wire,
    exchange,
    get,
    running_servers,
    seen_by_aiohttp,
    wired,
)

SECRET = bytes(range(32))
LOCAL, ELSEWHERE = "127.0.0.1", "10.1.2.3"


def proof(name: str, secret: bytes = SECRET) -> bytes:
    return b"Authorization: Bearer " + jwt.encode({"sub": name}, secret, "HS256").encode()


GUARDS: Mapping[str, Guard | None] = {
    "none": None,
    "tokens": Guard(Rights(lookup_roles=frozenset({"client"})), Tokens(SECRET, ("HS256",))),
    "default": ClusterKeyGuard(lambda: SECRET, OwnNames(advertised=frozenset({"sidecar"}))),
    "local": Guard(Rights(), names=OwnNames(local=frozenset({"sidecar"})), local_only=True),
}
CLIENTS = {
    "curl": [b"Host: sidecar:7750", b"User-Agent: curl/7.88.1", b"Accept: */*"],
    "C++": [b"Host: sidecar:7750", b"User-Agent: Pulsar-CPP-v4.2.0", b"Accept: */*"],
    "Java": [b"accept: application/json", b"host: sidecar:7750", b"user-agent: Pulsar-Java-v4.0.7"],
    "Go": [
        b"Host: sidecar:7750",
        b"User-Agent: Pulsar-httpClient-Go-v2",
        b"Accept: application/json",
        b"Accept-Encoding: gzip",
    ],
}
ADDED = [
    b"X-Request-Id: 4b7e0f2a",
    b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    b"X-B3-Sampled: 1",
    b"Cookie: a=b",
    b"Accept-Language: de",
    b"Accept: text/html",
    b"Cache-Control: no-cache",
    b"X-Empty:",
    b"Hostname: elsewhere.example",
    b"Content-Language: \ten ",
    b"If-None-Match: *",
    b"Origin: https://elsewhere.example",
    b"Sec-Fetch-Site: cross-site",
    b"Range: bytes=0-9",
    b"TE: trailers",
]


def block(lines: Iterable[bytes]) -> bytes:
    return b"\r\n".join([*lines, b"", b""])


async def learn_headers(server: RunningServer, lines: list[bytes], peer: str = LOCAL) -> None:
    for _ in range(3):
        await exchange(wired(server, peer), get("x", block(lines)))


@settings(max_examples=50, deadline=None)
@given(
    guard=st.sampled_from(["none", "tokens", "default"]),
    client=st.sampled_from(sorted(CLIENTS)),
    added=st.lists(st.sampled_from(ADDED), max_size=8),
    numbers=st.lists(st.integers(0, 10**9), max_size=3),
    order=st.randoms(use_true_random=False),
)
def test_headers_of_any_value_are_answered_without_aiohttp_in_any_order(
    guard: str, client: str, added: list[bytes], *, numbers: list[int], order: Any
) -> None:
    lines = [*CLIENTS[client], *added, *(b"X-Number-%d: %d" % (one, one) for one in numbers)]
    lines += [proof("client")] if guard == "tokens" else []
    order.shuffle(lines)

    async def ask() -> None:
        async with running_servers() as start_server:
            server = await start_server(guard=GUARDS[guard])
            decisive = [
                line for line in lines if line.lower().startswith((b"host:", b"user-", b"auth"))
            ]
            await learn_headers(server, decisive)
            seen = seen_by_aiohttp(server)
            wire = wired(server)
            wire.send(get("x", block(lines)))
            assert (wire.responses, seen_by_aiohttp(server)) == (1, seen)

    asyncio.run(ask())


async def test_the_limit_of_heads_holds_for_all_headers(start_server: StartServer) -> None:
    server = await start_server(settings=HttpSettings(max_head_bytes=1_024))
    await learn_headers(server, CLIENTS["curl"])
    added = b"X-Request-Id: " + b"1" * 1_000
    assert (await exchange(wired(server), get("x", block([*CLIENTS["curl"], added])))).status == 431


HOSTILE = [
    *(b"Host: sidecar", b"Host: elsewhere.example", b"hOST:localhost", b"Host:", b"Host : x"),
    *(b"Connection: close", b"Connection: keep-alive", b"Connection: Upgrade", b"Connection: x"),
    *(b"Proxy-Connection: close", b"Keep-Alive: timeout=1", b"Upgrade: websocket", b"Upgrade: h2c"),
    *(b"Content-Length: 0", b"Content-Length: 4", b"Content-Length: +0", b"Content-Length : 3"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"transfer-encoding:\x0bx"),
    *(b"Content-Encoding: gzip", b"Content-Type: a", b"User-Agent: b", b"ETag: c", b"Server: d"),
    *(b"Max-Forwards: 0", b"Content-Range: e", b"Content-Location: f", b"Expect: 100-continue"),
    *(b"X-Pulsar-ListenerName: inner", b"X-Pulsar-ListenerName: none", b"x-pulsar-listenername:"),
    *(b"Forwarded: for=x", b"Via: 1.1 p", b"X-Forwarded-For: 10.0.0.1", b"X-Real-IP: 10.0.0.1"),
    *(b"X-Envoy-Attempt: 1", b"Sec-WebSocket-Key1: x", b"Trailer: Host", b"HTTP2-Settings: x"),
    *(proof("client"), proof("stranger"), proof("client", b"y" * 32), b"Authorization: Basic eDp5"),
    *(b"Authorization:", b"AUTHORIZATION: bearer x.y.z", b"Authorization\x00: x", b"X-A: \x00"),
    *(b" folded", b"\tfolded", b"no colon", b": no name", b"a b: x", b"X: \xc3\xa9", b"X: \xff"),
    *(b"X: a\rb", b"X: a\nHost: b", b"X: a\n\nGET /x HTTP/1.1", b"X: \x7f", b"X(: y", b"\xe4: y"),
    *(b"X: y\r\n\r\nGET /healthz HTTP/1.1\r\nHost: sidecar", b"", b"A: " + b"a" * 5_000),
    b"X: y\r\n\r\nGET /healthz HTTP/1.0",
    b"\r\n".join([b"A: b"] * 130),
]


@pytest.mark.parametrize(
    "name",
    [*sorted(SINGLETON_HEADERS), "Forwarded", "Via", "X-Real-IP", "X-Forwarded-For", "X-Envoy-A"],
)
def test_headers_that_may_come_once_or_tell_of_a_proxy_are_counted(name: str) -> None:
    line = f"\r\n{name}: x".encode()
    found = {decisive_headers(line * count + b"\r\n\r\n") for count in (1, 2, 3)}
    assert len(found) == 3
    assert not any(one in {None, b""} for one in found)


@pytest.mark.parametrize("guard", GUARDS)
async def test_nothing_else_is_looked_at_where_a_lookup_is_answered(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    asked: set[str] = set()

    class Recording(CIMultiDict[str]):
        def get(self, key: str, *default: Any) -> Any:
            asked.add(key)
            return super().get(key, *default)

        def getall(self, key: str, *default: Any) -> Any:
            asked.add(key)
            return super().getall(key, *default)

        def __contains__(self, key: object) -> bool:
            asked.add(str(key))
            return super().__contains__(key)

    headers = property(lambda request: Recording(request._headers))
    monkeypatch.setattr(web.BaseRequest, "headers", headers)
    server = await start_server(guard=GUARDS[guard])
    for peer in (LOCAL, ELSEWHERE):
        for more in ([], [proof("client")], [proof("client", b"y" * 32)]):
            await learn_headers(server, [*CLIENTS["curl"], *more], peer)
    assert asked >= {"Authorization", "X-Pulsar-ListenerName"}
    asked |= {"Content-Encoding", "Upgrade"}  # aiohttp's parser looks at these as well
    for name in asked:
        assert decisive_headers(f"\r\n{name}: value\r\n\r\n".encode()) == f"{name}: value".encode()


@dataclass(frozen=True)
class Seen:
    replies: tuple[tuple[int, tuple[tuple[str, str], ...], str], ...]
    closed: bool


async def seen_by_client(wire: Wire, head: bytes) -> Seen:
    """Send a lookup with this head and one more; return what comes once all is done."""
    assert wire.protocol is not None
    wire.protocol._lingering_time = 3_600.0  # however slow the machine is
    for data in (get("x", head), get("y", block(CLIENTS["curl"]))):
        wire.send(data)
        quiet = 0
        while quiet < 20:
            before = len(wire.written)
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(wire.written) == before else 0
    replies = [
        (one.status, tuple(sorted({**one.headers, "Date": ""}.items())), one.text)
        for one in await wire.replies()
    ]
    seen = Seen(tuple(replies), wire.closed)
    wire.close()
    return seen


async def compare(guard: str, peer: str, heads: Iterable[list[bytes]]) -> None:
    """Ask with each head where clients' heads are learnt, and where none ever is."""
    async with running_servers() as start_server:
        quick = await start_server(guard=GUARDS[guard])
        slow = await start_server(guard=GUARDS[guard])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slow.server._fast_path, "response_to", lambda *_, **__: None)
            for lines in CLIENTS.values():
                for more in ([], [proof("client")]):
                    await learn_headers(quick, [*lines, *more], LOCAL)
                    await learn_headers(quick, [*lines, *more], ELSEWHERE)
            for lines in heads:
                want = await seen_by_client(wired(slow, peer), block(lines))
                for _ in range(2):
                    assert await seen_by_client(wired(quick, peer), block(lines)) == want


@pytest.mark.parametrize("peer", [LOCAL, ELSEWHERE])
@pytest.mark.parametrize("guard", GUARDS)
async def test_one_more_header_has_the_meaning_it_has_for_aiohttp(guard: str, peer: str) -> None:
    known = [*CLIENTS["curl"], *([proof("client")] if guard == "tokens" else [])]
    more = [[*known, line] for line in [*ADDED, *HOSTILE]]
    others = [[], [proof("stranger")], [proof("client", b"y" * 32)]]
    await compare(guard, peer, [*more, *([*CLIENTS["curl"], *one] for one in others)])


LINES = st.sampled_from([*ADDED, *HOSTILE, proof("client")])


@st.composite
def heads_of_clients(draw: st.DrawFn) -> list[bytes]:
    lines = list(draw(st.sampled_from(sorted(CLIENTS.values()))))
    for line in draw(st.lists(LINES, max_size=4)):
        lines.insert(draw(st.integers(0, len(lines))), line)
    return lines


@settings(max_examples=25, deadline=None)
@given(
    heads=st.lists(heads_of_clients(), min_size=1, max_size=8),
    guard=st.sampled_from(sorted(GUARDS)),
    peer=st.sampled_from([LOCAL, ELSEWHERE]),
)
def test_what_was_learnt_changes_nothing(heads: list[list[bytes]], guard: str, peer: str) -> None:
    asyncio.run(compare(guard, peer, heads))

"""Requests byte for byte, on a connection whose lookup is known, and where aiohttp gets them all.

What two parsers may read in two ways is refused: no request may lend another one its rights, and
none may hide in another.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import jwt
import pytest
from structlog.testing import capture_logs

from loadmanager.adapters.http import operations
from loadmanager.adapters.http.security.guard import Guard, Rights, Tokens
from loadmanager.config.sections import HttpSettings
from loadmanager.core.ids import Namespace
from tests.adapters.http.conftest import Reply, RunningServer, StartServer, get, learn, read_reply

SECRET = b"0123456789abcdef0123456789abcdef"
RIGHTS = Rights(admins=frozenset({"operator"}), lookup_roles=frozenset({"*"}))
ALIVE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
BUNDLES = b"GET /admin/v2/namespaces/public/default/bundles HTTP/1.1\r\nHost: x\r\n"
NEW = b"PUT /admin/v2/namespaces/acme/x HTTP/1.1\r\nHost: x\r\n"
CHUNKED = NEW + b"Transfer-Encoding: chunked\r\n\r\n"
FOUR = b'{"bundles": {"numBundles": 4}}'
WITH_FOUR = NEW + b"Content-Length: %d\r\n\r\n" % len(FOUR) + FOUR + ALIVE
OTHER_HEADERS = b"".join(b"A%d: %s\r\n" % (n, b"a" * 16_000) for n in range(120))
EVIL = b"GET /lookup/v2/topic/persistent/public/default/evil HTTP/1.1\r\nHost: x\r\n\r\n"


def proof(name: str) -> bytes:
    return b"Authorization: Bearer %s\r\n" % jwt.encode({"sub": name}, SECRET, "HS256").encode()


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


class Case(NamedTuple):
    """What is sent, and the statuses that come; after a last "." the connection is closed."""

    name: str
    sent: bytes | Sequence[bytes]
    statuses: str
    reason: str = ""
    guarded: bool = False


def lookup_with(header: bytes) -> bytes:
    return get("x", b"Host: x\r\n" + header + b"\r\n\r\n")


TWO_READINGS = [
    *(b"Content-Length: 0\r\nContent-Length: 46", b"Content-Length: 0, 46", b"Content-Length: +0"),
    *(b"Content-Length: 0x2e", b"Content-Length: -1", b"Content-Length: 99999999999999999999"),
    b"Content-Length: 46\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 46",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    *(b"Transfer-Encoding: identity", b"Transfer-Encoding: xchunked"),
    *(b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding:\x0bchunked"),
    *(b"Transfer-Encoding\t: chunked", b"Content-Length : 46", b"X: y\r\n Content-Length: 46"),
    *(b"X: y\nContent-Length: 46", b"X: y\rContent-Length: 46", b"X: \x00y", b"X\x00: y", b": y"),
    b"Host: y",
]
NO_REQUEST_LINES = [
    *(b"GET /healthz HTTP/1.1 ", b"GET\t/healthz HTTP/1.1", b" GET /healthz HTTP/1.1"),
    *(b"get /healthz HTTP/1.1", b"GET /healthz HTTP/9.9", b"GET /healthz http/1.1"),
    *(b"GET /heal\x00thz HTTP/1.1", b"GET /healthz\x0bHTTP/1.1", b"GET http:///healthz HTTP/1.1"),
    *(b"PRI * HTTP/2.0", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\nA: b"),
]
LENT = BUNDLES + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + proof("operator") + b"\r\n"
TWO = "the request has 2 Authorization headers; expected one"


def all_cases() -> Iterable[Case]:
    for number, header in enumerate(TWO_READINGS):
        head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n"
        yield Case(f"two readings {number}", head + ALIVE, "400.")
        yield Case(f"two readings of a lookup {number}", lookup_with(header) + ALIVE, "400.")
    for number, line in enumerate(NO_REQUEST_LINES):
        yield Case(f"no request line {number}", line + b"\r\nHost: x\r\n\r\n", "400.")
    for data in (b"\x16\x03\x01\x02\x00", b"get / ", b"GET / HTTP/1.1\n"):
        yield Case(f"no head before it ends: {data!r}", data, "400.")
    for first, second in (("client", "operator"), ("operator", "client"), ("client", "client")):
        both = proof(first) + proof(second)
        for what, head in (("bundles", BUNDLES), ("a lookup", get("x", b"Host: x\r\n"))):
            sent = head + both + b"\r\n"
            yield Case(f"proofs of {first} and {second}: {what}", sent, "400", TWO, guarded=True)
    yield Case("a trailer lends nothing", LENT + BUNDLES + b"\r\n", "401.", guarded=True)
    yield Case("nor later", [LENT, BUNDLES + b"\r\n"], "401.", guarded=True)
    yield Case("a chunked request is the last", [CHUNKED + b"0\r\n\r\n", ALIVE], "204.")
    yield Case("in many pieces", [CHUNKED, *chunks(FOUR + b" " * 5_000)], "204.")
    yield Case(
        "trailers have a limit",
        [CHUNKED + b"2\r\n{}\r\n0\r\n", OTHER_HEADERS[:160_000]],
        "400.",
        "the body cannot be read: its framing is too long",
    )
    too_long = "the head of the request is longer than 65536 bytes"
    for what, end in (("whole", b"\r\n"), ("not whole", b"")):
        head = b"GET / HTTP/1.1\r\nHost: x\r\n" + OTHER_HEADERS + end
        yield Case(f"headers beyond the limit, {what}", head[:70_000], "431.", too_long)
    head = ALIVE[:-2] + OTHER_HEADERS[: 4 * 16_006] + b"\r\n"
    yield Case("headers up to the limit", pieces(head, 5_000), "200")
    head = b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    yield Case("a long URL", head, "414.", "the URL is longer than 8190 bytes")
    head = b"GET / HTTP/1.1\r\nA: " + b"a" * 20_000 + b"\r\n\r\n"
    yield Case("a long header", head, "431.", "a header is longer than 16382 bytes")
    head = b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n"
    yield Case("many headers", head, "431.", "there are too many headers")
    yield Case("nonsense", b"nonsense\r\n\r\n", "400.", "the request is not valid HTTP")
    head = b"GET /lookup/v2/topic/\xff/a/b/c HTTP/1.1\r\nHost: x\r\n\r\n"
    yield Case("bytes that are no text", head, "400")
    broken = NEW + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!"
    yield Case("a body that breaks its encoding", broken, "400.")
    yield Case("a whole URL", ALIVE.replace(b"/healthz", b"http://some.where:80/healthz"), "200")
    star = ALIVE.replace(b"GET /healthz", b"OPTIONS *")
    yield Case("no path", star, "400", "the request target must be a path")
    expects = NEW + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    yield Case("a client that waits to be invited", [expects, b"{}"], "100 204")
    yield Case("other expectations", [expects.replace(b"100-continue", b"miracles"), b"{}"], "417")
    long = NEW + b"Content-Length: 200000\r\n\r\n" + b" " * 200_000
    yield Case("a body beyond the limit", long, "413", "the body is longer than 100000 bytes")
    cut = len(WITH_FOUR) - len(ALIVE)
    for at in (cut - 10, cut + 10):
        halves = [WITH_FOUR[:at], WITH_FOUR[at:]]
        yield Case(f"a body and the next request, cut at {at}", halves, "204 200")
    for protocol in (b"h2c", b"websocket"):
        asks = ALIVE[:-2] + b"Connection: Upgrade\r\nUpgrade: %s\r\n\r\n" % protocol
        yield Case(f"an upgrade to {protocol!r}", [asks, ALIVE], "200 200")
    upload = b"POST /redirect/persistent/public/default/x HTTP/1.1\r\nHost: x\r\n"
    upload += b"Content-Length: %d\r\n\r\n" % len(EVIL)
    yield Case("a refused upload is no request", upload + EVIL + ALIVE, "307 200")
    yield Case("nor one that comes later", [upload, EVIL + ALIVE], "307 200")
    yield Case("a thousand at once", ALIVE * 1_000, " ".join(["200"] * 1_000))


def chunks(text: bytes) -> list[bytes]:
    return [b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"]


CASES = [*all_cases()]


async def exchanged(server: RunningServer, sent: Sequence[bytes], count: int) -> list[Reply]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    replies: list[Reply] = []
    try:
        async with asyncio.timeout(30):
            for chunk in sent:
                writer.write(chunk)
                if len(sent) > 1:
                    await asyncio.sleep(0.01)
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while len(replies) < count:
                    replies.append(await read_reply(reader))
    finally:
        writer.close()
    return replies


@pytest.mark.parametrize("fast", [True, False], ids=["fast path", "aiohttp"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_bytes_have_one_meaning(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, case: Case, *, fast: bool
) -> None:
    guard = Guard(RIGHTS, Tokens(SECRET, ("HS256",))) if case.guarded else None
    server = await start_server(guard=guard, settings=HttpSettings(max_body_bytes=100_000))
    if not fast:
        monkeypatch.setattr(server.server._fast_path, "response_to", lambda *_, **__: None)
    elif not case.guarded:
        await learn(server, "x", head=b"Host: x\r\n\r\n")
    wanted = case.statuses.removesuffix(".").split()
    sent = [case.sent] if isinstance(case.sent, bytes) else case.sent
    with capture_logs():
        replies = await exchanged(server, sent, len(wanted) + case.statuses.endswith("."))
    assert [str(reply.status) for reply in replies] == wanted
    if replies[-1].status >= 400:
        assert replies[-1].json()["reason"].startswith(case.reason)
    assert (Namespace("acme/x") in server.lookup.namespaces) is ("204" in wanted)


@pytest.mark.parametrize(
    ("limits", "sent", "said"),
    [
        ((0.2, 60.0), [b"{"], "the body did not come within 0.2 s"),
        ((600.0, 0.2), [b"{"], "nothing of the body came for 0.2 s"),
        ((600.0, 0.4), pieces(b"no JSON, in pieces..", 2), "the body is not JSON"),
    ],
)
async def test_a_body_has_to_come_in_time(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, limits: Any, sent: Any, said: str
) -> None:
    monkeypatch.setattr(operations.body_bytes, "__defaults__", limits)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    async with asyncio.timeout(60):
        writer.write(NEW + b"Content-Length: 20\r\n\r\n")
        for piece in sent:
            writer.write(piece)
            await asyncio.sleep(0.06)
        reply = await read_reply(reader)
    writer.close()
    assert reply.status == (400 if "JSON" in said else 408)
    assert reply.json()["reason"].startswith(said)

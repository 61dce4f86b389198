"""Bytes that two parsers may read in two ways: no request may lend another one its rights."""

import asyncio
from pathlib import Path

import jwt
import pytest
from structlog.testing import capture_logs

from loadmanager.adapters.http.security.guard import Guard, Rights
from loadmanager.adapters.http.security.tokens import Tokens
from tests.adapters.http.conftest import RunningServer, StartServer, read_reply

SECRET = b"0123456789abcdef0123456789abcdef"
LOOKUP = b"/lookup/v2/topic/persistent/public/default/x"
BUNDLES = b"/admin/v2/namespaces/public/default/bundles"


def proof(name: str) -> bytes:
    return b"Authorization: Bearer " + jwt.encode({"sub": name}, SECRET, "HS256").encode()


@pytest.fixture
async def guarded(start_server: StartServer, tmp_path: Path) -> RunningServer:
    (tmp_path / "secret.key").write_bytes(SECRET)
    rights = Rights(admins=frozenset({"operator"}), lookers=frozenset({"*"}))
    return await start_server(guard=Guard(rights, Tokens.of_secret_file(tmp_path / "secret.key")))


async def answers(server: RunningServer, *chunks: bytes) -> list[int]:
    """Return the statuses that one connection gets until the server closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    statuses = []
    try:
        async with asyncio.timeout(20):
            for chunk in chunks:
                writer.write(chunk)
                statuses.append((await read_reply(reader)).status)
            while True:
                statuses.append((await read_reply(reader)).status)
    except (asyncio.IncompleteReadError, ConnectionError):
        return statuses
    finally:
        writer.close()


CHUNKED = b"GET " + LOOKUP + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
ASKS_BUNDLES = b"GET " + BUNDLES + b" HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("together", [True, False])
async def test_a_trailer_is_no_header_of_the_next_request(
    guarded: RunningServer, together: bool
) -> None:
    lends = CHUNKED + b"0\r\n" + proof("operator") + b"\r\n\r\n"
    sent = [lends + ASKS_BUNDLES] if together else [lends, ASKS_BUNDLES]
    assert await answers(guarded, *sent) == [401]


async def test_a_chunked_request_is_the_last_one_of_its_connection(guarded: RunningServer) -> None:
    asks = b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    [reply] = await guarded.send(asks)
    assert (reply.status, reply.headers["Connection"]) == (200, "close")


@pytest.mark.parametrize(
    ("first", "second"), [("client", "operator"), ("operator", "client"), ("client", "client")]
)
async def test_two_proofs_in_one_request_are_refused(
    guarded: RunningServer, first: str, second: str
) -> None:
    head = b"Host: x\r\n" + proof(first) + b"\r\n" + proof(second) + b"\r\n\r\n"
    for path in (BUNDLES, LOOKUP):
        [reply] = await guarded.send(b"GET " + path + b" HTTP/1.1\r\n" + head)
        assert reply.status == 400
        assert reply.json() == {"reason": "the request has 2 Authorization headers; expected one"}


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 0\r\nContent-Length: 46\r\n",
        b"Content-Length: 0, 46\r\n",
        b"Content-Length: +0\r\n",
        b"Content-Length: 0x2e\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 99999999999999999999\r\n",
        b"Content-Length: 46\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 46\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b"Transfer-Encoding\t: chunked\r\n",
        b"Content-Length : 46\r\n",
        b"X: y\r\n Content-Length: 46\r\n",
        b"X: y\nContent-Length: 46\r\n",
        b"X: y\rContent-Length: 46\r\n",
        b"X: \x00y\r\n",
        b"X\x00: y\r\n",
        b": y\r\n",
        b"Host: y\r\n",
    ],
)
async def test_a_head_with_two_readings_is_refused_and_the_connection_closed(
    guarded: RunningServer, framing: bytes
) -> None:
    hidden = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n"
    with capture_logs():
        assert await answers(guarded, head + hidden) == [400]


@pytest.mark.parametrize(
    "line",
    [
        b"GET /healthz HTTP/1.1 \r\n",
        b"GET\t/healthz HTTP/1.1\r\n",
        b" GET /healthz HTTP/1.1\r\n",
        b"get /healthz HTTP/1.1\r\n",
        b"GET /healthz HTTP/9.9\r\n",
        b"GET /healthz http/1.1\r\n",
        b"GET /healthz HTTP/1.1\n",
        b"GET /heal\x00thz HTTP/1.1\r\n",
        b"GET /healthz\x0bHTTP/1.1\r\n",
        b"GET http:///healthz HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_a_request_line_that_is_none_gets_an_error_and_ends_the_connection(
    guarded: RunningServer, line: bytes
) -> None:
    with capture_logs():
        assert await answers(guarded, line + b"Host: x\r\n\r\n") == [400]

"""What of kazoo and aiohttp is overridden or read that their documentation does not promise.

Any release of them may change it, so `pyproject.toml` bounds neither to one minor version; these
tests say what is other than it was when `adapters/zookeeper/kazoo_overrides.py` and
`adapters/http/protocol.py` were tried with it. After a look at the change the digests are renewed:
`python tests/adapters/test_inner_parts.py` prints them.
"""

import asyncio
import hashlib
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import aiohttp
import kazoo
import pytest
from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from packaging.requirements import Requirement

KINDS = {
    kind.__name__: kind
    for kind in (
        *(KazooClient, ConnectionHandler, SequentialThreadingHandler),
        *(web.RequestHandler, web.SockSite, web.BaseSite),
    )
}
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
SOURCES = {
    "KazooClient._call": "ccdf4c17003b",
    "KazooClient._session_callback": "cebb62a546c4",
    "KazooClient._safe_close": "e5b8a440f068",
    "KazooClient.start_async": "f91bcca6891c",
    "KazooClient.stop": "4fe885078e0e",
    "KazooClient.close": "b41ebe10ba73",
    "ConnectionHandler._connect": "c67473628f3e",
    "ConnectionHandler._invoke": "4566a25fb803",
    "ConnectionHandler._submit": "03ff0b1b16ef",
    "ConnectionHandler._write": "4a75e1cd9d63",
    "ConnectionHandler._send_ping": "a633bb022ac8",
    "ConnectionHandler._send_request": "fb268341cf59",
    "ConnectionHandler._read": "3dee3dc17d26",
    "ConnectionHandler._read_header": "0b4a8174004c",
    "ConnectionHandler._read_socket": "ead9cff6c0a8",
    "ConnectionHandler._read_response": "a0725364d26d",
    "ConnectionHandler._read_watch_event": "32623f9b9406",
    "ConnectionHandler._socket_error_handling": "f34a606aee74",
    "ConnectionHandler.zk_loop": "df35a1dd8643",
    "ConnectionHandler._connect_loop": "4d40785ef14a",
    "ConnectionHandler._connect_attempt": "85fed4df97e0",
    "SequentialThreadingHandler.create_connection": "814a2f50f187",
    "SequentialThreadingHandler.select": "dadeb495f8c6",
    "SequentialThreadingHandler.start": "6cd3f16d8a5d",
    "SequentialThreadingHandler.stop": "5e8d590e9ebe",
    "SequentialThreadingHandler.dispatch_callback": "c89f4c71f68b",
    "RequestHandler.connection_made": "44d50b5763b2",
    "RequestHandler.connection_lost": "df2fe6e95fd0",
    "RequestHandler.data_received": "1ee57ebe052e",
    "RequestHandler.resume_writing": "7db135e0841e",
    "RequestHandler.finish_response": "b7eb53db8f4b",
    "RequestHandler.close": "84518f965e19",
    "RequestHandler.force_close": "38d0e1e798e4",
    "RequestHandler.handle_error": "94962ffef500",
    "RequestHandler.start": "2e565fd40c8e",
    "RequestHandler._pause_reading_for_buffer": "8a07d84ad8d4",
    "RequestHandler._resume_reading_for_buffer": "61aa4b49c6e1",
    "RequestHandler._resume_reading_if_drained": "27f2a6fbbb3a",
    "SockSite.start": "9a6b6f426d31",
    "BaseSite.start": "8dcebeed1ae0",
}
"""The digest of the source of each method that is overridden, or called without being public."""


def digest(method: str) -> str:
    kind, _, name = method.partition(".")
    found = getattr(KINDS[kind], name, None)
    source = "" if found is None else inspect.getsource(found)
    return hashlib.sha256(source.encode()).hexdigest()[:12]


@pytest.mark.parametrize("method", SOURCES)
def test_what_is_built_on_is_as_it_was_tried(method: str) -> None:
    versions = f"kazoo {version('kazoo')}, aiohttp {version('aiohttp')}"
    assert digest(method) == SOURCES[method], f"{versions}: {method} has changed, or is gone"


@pytest.mark.parametrize(
    "name",
    [
        *("_connection", "_conn_retry", "_session_id", "_session_passwd", "_state", "last_zxid"),
        *("_pending", "_queue", "_stopped", "_data_watchers", "_child_watchers"),
        *("_session_timeout",),
    ],
)
def test_kazoo_has_the_attributes_that_are_read(name: str) -> None:
    client = KazooClient(hosts="127.0.0.1:1")
    assert hasattr(client, name), f"kazoo {version('kazoo')} has no KazooClient.{name}"


@pytest.mark.parametrize("name", ["_socket", "_read_sock", "_write_sock", "_xid"])
def test_kazoos_connection_has_the_attributes_that_are_used(name: str) -> None:
    connection = KazooClient(hosts="127.0.0.1:1")._connection
    assert hasattr(connection, name), f"kazoo {version('kazoo')} has no ConnectionHandler.{name}"


@pytest.mark.parametrize(
    "name",
    [
        *("_messages", "_buffer_paused", "_reading_paused", "max_line_size", "max_field_size"),
        *("transport", "writing_paused", "keepalive_timeout"),
    ],
)
async def test_the_protocol_has_the_attributes_that_are_read(name: str) -> None:
    async def answer(_request: web.BaseRequest) -> web.StreamResponse:
        raise NotImplementedError

    made = web.RequestHandler(web.Server(answer), loop=asyncio.get_running_loop())
    assert hasattr(made, name), f"aiohttp {version('aiohttp')} has no RequestHandler.{name}"


def test_a_parsed_head_can_be_made_the_last_of_its_connection() -> None:
    missing = {"chunked", "headers", "should_close"} - set(dir(RawRequestMessage))
    assert not missing, f"aiohttp {version('aiohttp')} has no RawRequestMessage.{missing}"
    assert callable(RawRequestMessage._replace)


def test_a_body_says_how_much_of_it_came_and_whether_it_ended() -> None:
    assert EMPTY_PAYLOAD.is_eof()
    assert "total_bytes" in inspect.getsource(StreamReader.feed_data), (
        f"aiohttp {version('aiohttp')}: StreamReader does not count total_bytes; "
        "chunked bodies are bounded by it"
    )


def test_a_site_keeps_what_a_site_with_a_limit_of_handshakes_reads() -> None:
    places = {*web.SockSite.__slots__, *web.BaseSite.__slots__}
    missing = {"_sock", "_ssl_context", "_backlog", "_server"} - places
    assert not missing, f"aiohttp {version('aiohttp')} has no SockSite.{missing}"


@pytest.mark.parametrize("package", [aiohttp, kazoo])
def test_security_releases_can_be_taken_at_once(package: ModuleType) -> None:
    name = package.__name__
    listed = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    (wanted,) = (one for one in map(Requirement, listed) if one.name == name)
    major, minor, *_ = map(int, version(name).split("."))
    assert wanted.specifier.contains(version(name))
    assert wanted.specifier.contains(f"{major}.{minor + 1}")
    assert not wanted.specifier.contains(f"{major + 1}.0")


if __name__ == "__main__":
    for each in SOURCES:
        print(f'    "{each}": "{digest(each)}",')  # noqa: T201 - to be pasted above

"""What of aiohttp is built on that its documentation does not promise.

A new minor version may rename any of it: then these tests say what, and pyproject.toml keeps
such a version out until they pass with it.
"""

import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[3] / "pyproject.toml"
METHODS = {
    "_pause_reading_for_buffer": "holds a client back that sends too far ahead",
    "_resume_reading_for_buffer": "lets it go on",
    "_resume_reading_if_drained": "is replaced: aiohttp never has more than one request",
    "connection_made": "is extended by the limits of connections",
    "connection_lost": "gives back what the connection took",
    "data_received": "is extended by the fast path and the limits of heads",
    "finish_response": "says when a response is out and the next request may be parsed",
    "force_close": "is extended: nothing is read any more",
    "handle_error": "is replaced: refusals are JSON",
    "resume_writing": "says that the client reads",
}
ATTRIBUTES = {
    "_messages": "holds what the parser made of the bytes it got",
    "_buffer_paused": "says whether reading is held back",
    "_reading_paused": "says whether a body waits for its reader",
    "max_line_size": "tells a long URL from a long header",
    "max_field_size": "the same",
    "transport": "is where refusals are written",
}


def handler() -> web.RequestHandler:
    async def answer(_request: web.BaseRequest) -> web.StreamResponse:
        raise NotImplementedError

    return web.RequestHandler(web.Server(answer), loop=asyncio.get_running_loop())


async def test_the_protocol_has_the_methods_that_are_extended() -> None:
    made = handler()
    missing = {name: why for name, why in METHODS.items() if not callable(getattr(made, name, 0))}
    assert not missing, f"aiohttp {version('aiohttp')} has no RequestHandler.{missing}"


async def test_the_protocol_has_the_attributes_that_are_read() -> None:
    made = handler()
    missing = {name: why for name, why in ATTRIBUTES.items() if not hasattr(made, name)}
    assert not missing, f"aiohttp {version('aiohttp')} has no RequestHandler.{missing}"


def test_a_parsed_head_can_be_made_the_last_of_its_connection() -> None:
    fields = {"chunked", "headers", "should_close"}
    missing = fields - set(dir(RawRequestMessage))
    assert not missing, f"aiohttp {version('aiohttp')} has no RawRequestMessage.{missing}"
    assert callable(RawRequestMessage._replace)


def test_a_body_says_how_much_of_it_came_and_whether_it_ended() -> None:
    assert EMPTY_PAYLOAD.is_eof()
    assert "total_bytes" in inspect.getsource(StreamReader.feed_data), (
        f"aiohttp {version('aiohttp')}: StreamReader does not count total_bytes; "
        "chunked bodies are bounded by it"
    )


@pytest.mark.parametrize("name", ["aiohttp", "kazoo"])
def test_no_version_is_installed_that_was_not_tried(name: str) -> None:
    listed = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    (wanted,) = (one for one in map(Requirement, listed) if one.name == name)
    major, minor = version(name).split(".")[:2]
    following = f"{major}.{int(minor) + 1}"
    assert wanted.specifier.contains(version(name)), f"{name} {version(name)}: wanted {wanted}"
    assert not wanted.specifier.contains(following), (
        f"{wanted} admits {following}: what we build on may be renamed there"
    )


def test_a_site_keeps_what_a_site_with_a_limit_of_handshakes_reads() -> None:
    places = {*web.SockSite.__slots__, *web.BaseSite.__slots__}
    missing = {"_sock", "_ssl_context", "_backlog", "_server"} - places
    assert not missing, f"aiohttp {version('aiohttp')} has no SockSite.{missing}"
    assert inspect.iscoroutinefunction(web.BaseSite.start)

"""Routing of requests to handlers, by the raw path of the request line.

A topic's name may contain ``/``, which is sent as ``%2F``: decoding before matching would make
two segments of one. So patterns are matched with the raw segments, and each captured segment
is decoded exactly once.
"""

import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from aiohttp import web
from pydantic_core import to_jsonable_python

from loadmanager.core.errors import InvalidName, LoadManagerError
from loadmanager.ports.lookup import (
    Conflict,
    Missing,
    NamespaceTaken,
    NamespaceUnknown,
    NotLeader,
    Unavailable,
    Unfit,
)

SERVER_NAME: Final = "loadmanager"
_JSON_TYPE: Final = "application/json"


class Refused(LoadManagerError):
    """A request is answered with an error status, and ``reason`` as the text for the client."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers or {}


def json_reply(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return ``value`` as a JSON response; models in it are written under their aliases."""
    body = json.dumps(value, separators=(",", ":"), default=_plain).encode()
    return bytes_reply(body, _JSON_TYPE, status, headers)


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else to_jsonable_python(value, by_alias=True)


def text_reply(text: str, status: int = 200) -> web.Response:
    return bytes_reply(text.encode(), "text/plain; charset=utf-8", status)


def bytes_reply(
    body: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    sent = {"Content-Type": content_type, "Server": SERVER_NAME, **(headers or {})}
    return web.Response(body=body, status=status, headers=sent)


def empty_reply(status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, headers={"Server": SERVER_NAME, **(headers or {})})


def refusal_reply(refused: Refused) -> web.Response:
    return json_reply({"reason": str(refused)}, refused.status, refused.headers)


def raw_refusal(refused: Refused) -> bytes:
    body = json.dumps({"reason": str(refused)}, separators=(",", ":")).encode()
    return raw_head(refused.status, _JSON_TYPE, len(body), refused.headers) + body


def raw_head(
    status: int, content_type: str, size_bytes: int, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return the head of a response, for a connection that is closed after it."""
    sent = {
        "Content-Type": content_type,
        "Content-Length": str(size_bytes),
        "Server": SERVER_NAME,
        "Connection": "close",
        **(headers or {}),
    }
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in sent.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def refusal_of(error: LoadManagerError) -> Refused:
    """Return the HTTP refusal for an error of the core or of the application.

    A topic's domain is part of Pulsar's URL paths, so an invalid one is answered as a wrong method
    (405), any other invalid name as a failed precondition (412). Raises `LoadManagerError`: the
    error itself, if a client cannot have caused it.
    """
    match error:
        case Refused():
            return error
        case InvalidName(kind="topic domain"):
            return Refused(405, str(error), {"Allow": "GET"})
        case Unavailable():
            return unavailable(str(error), error.retry_after_s)
        case NamespaceUnknown() | Missing():
            return Refused(404, str(error))
        case NamespaceTaken() | NotLeader() | Conflict():
            return Refused(409, str(error))
        case InvalidName() | Unfit():
            return Refused(412, str(error))
        case _:
            raise error


def unavailable(reason: str, retry_after_s: float) -> Refused:
    """Return a temporary refusal (503); ``Retry-After`` is rounded up to whole seconds."""
    return Refused(503, reason, {"Retry-After": str(max(1, math.ceil(retry_after_s)))})


ANY_METHOD: Final = "*"
_CAPTURES: Final = frozenset({"{}", "{...}"})


class Role(StrEnum):
    """What a caller must be allowed for a request; each includes the ones before it."""

    NOBODY = "none"
    LOOKUP = "lookup"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Target:
    path: str
    query_text: str
    captured: tuple[str, ...] = ()

    def query(self, name: str) -> str:
        """Return the first value of a query parameter, "" without one."""
        pairs = parse_qsl(self.query_text, keep_blank_values=True)
        return next((value for key, value in pairs if key == name), "")

    @property
    def path_and_query(self) -> str:
        return f"{self.path}?{self.query_text}" if self.query_text else self.path


Handler = Callable[[web.BaseRequest, Target], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """``pattern`` is a path whose ``{}`` segments capture one segment each.

    A last segment ``{...}`` captures the rest of the path, at least one segment. The method
    ``*`` stands for any; ``GET`` serves ``HEAD`` too. ``role`` is the one that the server's guard
    requires of a caller, by default that of administrators. ``operation`` is its declaration.
    """

    method: str
    pattern: str
    handler: Handler
    role: Role = Role.ADMIN
    operation: Any = None


def target_of(raw: str) -> Target:
    """Accepts origin and absolute form. Raises `Refused`: it has no path, or is not ASCII."""
    if not raw.startswith("/"):
        scheme, found, rest = raw.partition("://")
        if not found or scheme.lower() not in {"http", "https"}:
            raise Refused(400, "the request target must be a path")
        raw = "/" + rest.partition("/")[2]
    if not raw.isascii():
        raise Refused(400, "what is not ASCII must be percent-encoded in a URL")
    path, _, query_text = raw.partition("?")
    return Target(path, query_text)


class RouteTable:
    """Finds the route for a method and a raw path.

    If several patterns match the path, a literal segment takes precedence over a captured one at
    the first segment in which they differ: ``/a/mine`` is never a captured ``mine``. Of two
    routes with the same pattern and method the first counts.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Place()
        for route in routes:
            place = self._root
            for part in route.pattern.split("/")[1:]:
                place = place.next.setdefault(part, _Place())
            place.methods.setdefault(route.method, route)

    def find(self, method: str, target: Target) -> tuple[Route, Target]:
        """Raises `Refused`: no route has this path (404), or none of them this method (405)."""
        found = _descend(self._root, target.path.split("/")[1:])
        if found is None:
            raise Refused(404, "there is nothing at this path; /openapi.json lists all paths")
        methods, raw = found
        route = methods.get("GET" if method == "HEAD" else method) or methods.get(ANY_METHOD)
        if route is None:
            allow = {"Allow": ", ".join(methods)}
            if method != "OPTIONS":
                raise Refused(405, f"{method} is not for this path", allow)

            async def options(_request: web.BaseRequest, _target: Target) -> web.StreamResponse:
                return empty_reply(204, allow)

            route = Route(method, target.path, options, Role.NOBODY)
        captured = tuple(decoded(segment) for segment in raw)
        return route, Target(target.path, target.query_text, captured)


@dataclass(slots=True)
class _Place:
    """One segment of the patterns: the segments that may follow, and the routes that end here."""

    next: "dict[str, _Place]" = field(default_factory=dict)
    methods: dict[str, Route] = field(default_factory=dict)


def _descend(place: _Place, segments: Sequence[str]) -> tuple[dict[str, Route], list[str]] | None:
    if not segments:
        return (place.methods, []) if place.methods else None
    first, rest = segments[0], segments[1:]
    word = place.next.get(first) if first not in _CAPTURES else None
    found = _descend(word, rest) if word is not None else None
    if found is None and "{}" in place.next and first:
        inner = _descend(place.next["{}"], rest)
        found = inner and (inner[0], [first, *inner[1]])
    if found is None and "{...}" in place.next:
        found = (place.next["{...}"].methods, list(segments))
    return found


def decoded(segment: str) -> str:
    """Decode a raw path segment once. Raises `Refused`: the decoded bytes are not UTF-8."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise Refused(412, f"path segment {segment!r} is not percent-encoded UTF-8") from None

"""Routing of requests to handlers, by the raw path of the request line.

A topic's name may contain ``/``, which is sent as ``%2F``: decoding before matching would make
two segments of one. So patterns are matched with the raw segments, and each captured segment
is decoded exactly once.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from loadmanager.adapters.http.replies import Refused, empty_reply

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
    requires of a caller, by default that of administrators.
    """

    method: str
    pattern: str
    handler: Handler
    role: Role = Role.ADMIN


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
            raise Refused(404, "there is nothing at this path")
        methods, raw = found
        route = methods.get("GET" if method == "HEAD" else method) or methods.get(ANY_METHOD)
        if route is None:
            allow = {"Allow": ", ".join(methods)}
            if method != "OPTIONS":
                raise Refused(405, f"{method} is not for this path", allow)
            route = Route(method, target.path, _empty_answer(allow), Role.NOBODY)
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


def _empty_answer(headers: Mapping[str, str]) -> Handler:
    async def answer(_request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        return empty_reply(204, headers)

    return answer


def decoded(segment: str) -> str:
    """Decode a raw path segment once. Raises `Refused`: the decoded bytes are not UTF-8."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise Refused(412, f"path segment {segment!r} is not percent-encoded UTF-8") from None

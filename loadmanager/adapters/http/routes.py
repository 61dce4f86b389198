"""Which handler a request is for, decided on the path as it came over the wire.

A topic's name may hold ``/``, which arrives as ``%2F``: decoding before matching
would make two segments of one. So patterns are matched on the raw segments, and each
captured segment is decoded exactly once.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from loadmanager.adapters.http.replies import Refused

ANY_METHOD: Final = "*"


@dataclass(frozen=True, slots=True)
class Target:
    """The path and query of a request, raw, and the segments its route captured, decoded."""

    path: str
    query_text: str
    captured: tuple[str, ...] = ()

    def query(self, name: str) -> str:
        """Return the first value of a query parameter, "" without one."""
        pairs = parse_qsl(self.query_text, keep_blank_values=True)
        return next((value for key, value in pairs if key == name), "")

    @property
    def path_and_query(self) -> str:
        """The raw path, with its query if there is one."""
        return f"{self.path}?{self.query_text}" if self.query_text else self.path


Handler = Callable[[web.BaseRequest, Target], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """``pattern`` is a path whose ``{}`` segments capture one segment each.

    A last segment ``{...}`` captures all that is left, at least one segment. The
    method ``*`` stands for any; ``GET`` serves ``HEAD`` too.
    """

    method: str
    pattern: str
    handler: Handler


def target_of(raw: str) -> Target:
    """Return the target of a request line, in origin form or in absolute form.

    Raises:
        Refused: it is no path, or not ASCII.
    """
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
    """Finds the route for a method and a raw path; the first that fits, in their order."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = [(tuple(route.pattern.split("/")[1:]), route) for route in routes]

    def find(self, method: str, target: Target) -> tuple[Handler, Target]:
        """Return the handler, and the target with what its pattern captured.

        Raises:
            Refused: no route has this path (404), or none of them this method (405).
        """
        segments = target.path.split("/")[1:]
        method = "GET" if method == "HEAD" else method
        allowed: list[str] = []
        for pattern, route in self._routes:
            raw = _captures(pattern, segments)
            if raw is None:
                continue
            if route.method in {method, ANY_METHOD}:
                captured = tuple(decoded(segment) for segment in raw)
                return route.handler, Target(target.path, target.query_text, captured)
            allowed.append(route.method)
        if allowed:
            allow = {"Allow": ", ".join(dict.fromkeys(allowed))}
            raise Refused(405, f"{method} is not for this path", allow)
        raise Refused(404, "there is nothing at this path")


def _captures(pattern: tuple[str, ...], segments: list[str]) -> list[str] | None:
    """Return the segments that fall on ``{}`` and ``{...}``, None if the pattern does not fit."""
    tail: list[str] = []
    if pattern[-1] == "{...}":
        pattern = pattern[:-1]
        segments, tail = segments[: len(pattern)], segments[len(pattern) :]
        if not tail:
            return None
    if len(pattern) != len(segments):
        return None
    captures = []
    for part, segment in zip(pattern, segments, strict=True):
        if part == "{}" and segment:
            captures.append(segment)
        elif part != segment:
            return None
    return captures + tail


def decoded(segment: str) -> str:
    """Return a raw path segment decoded once.

    Raises:
        Refused: the decoded bytes are not UTF-8.
    """
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise Refused(412, f"path segment {segment!r} is not percent-encoded UTF-8") from None

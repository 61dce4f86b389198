"""The live page at ``/``: static files, and the stream of events about the cluster."""

import math
import time
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Final

from aiohttp import web

from loadmanager.adapters.http.live.feed import Feed
from loadmanager.adapters.http.replies import Refused, bytes_reply
from loadmanager.adapters.http.routes import Role, Route, Target
from loadmanager.adapters.http.security.guard import ADMITTED_UNTIL

EVENTS_PATH: Final = "/live/events"
_CONTENT_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class LivePage:
    feed: Feed

    def routes(self) -> list[Route]:
        return [*page_routes(), Route("GET", EVENTS_PATH, self._events, Role.READ)]

    async def _events(self, request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        site = request.headers.get("Sec-Fetch-Site", "same-origin").strip().lower()
        if site not in {"same-origin", "none"}:
            raise Refused(403, f"Sec-Fetch-Site: {site}; pages of other sites may not watch")
        if request.method == "HEAD":
            return bytes_reply(b"", "text/event-stream")
        left_s = request.get(ADMITTED_UNTIL, math.inf) - time.perf_counter()
        return await self.feed.stream(request, left_s)


def page_routes() -> list[Route]:
    routes = []
    for file in files(__package__).joinpath("static").iterdir():
        kind = _CONTENT_TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/live/{file.name}"
            handler = partial(_file, file.read_bytes(), kind)
            routes.append(Route("GET", path, handler, Role.NOBODY))
    return routes


async def _file(
    content: bytes, content_type: str, _request: web.BaseRequest, _target: Target
) -> web.StreamResponse:
    return bytes_reply(content, content_type, headers=_HEADERS)

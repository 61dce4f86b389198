import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Final

from aiohttp import web

from loadmanager.adapters.http.assign_client import HttpAssignClient, Proof
from loadmanager.adapters.http.live.feed import Feed
from loadmanager.adapters.http.replies import Refused, bytes_reply, unavailable
from loadmanager.adapters.http.routes import Role, Route, Target
from loadmanager.adapters.http.security.guard import ADMITTED_UNTIL, PASSED_ON_HEADER

FORWARD_HEADER: Final = "X-Loadmanager-Forward"
"""Requests forwarding; browsers let no page of another site send such a header."""

_MOST_BYTES: Final = 4_194_304
_WITHIN_S: Final = 45.0
_RETRY_AFTER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Forwarder:
    """Forwards requests to the leader's sidecar with the caller's own credentials.

    ``withheld`` returns why no token is sent to the sidecar at a URL, "" if one may be.
    """

    line: HttpAssignClient
    withheld: Callable[[str], str]

    def wanted(self, request: web.BaseRequest, refused: Refused) -> bool:
        return (
            FORWARD_HEADER in request.headers
            and bool(refused.headers.get("Location"))
            and refused.status == 307  # noqa: PLR2004 - HTTP
        )

    async def forward(self, request: web.BaseRequest, refused: Refused) -> web.StreamResponse:
        if request.body_exists:
            raise Refused(400, f"{FORWARD_HEADER}: the request has a body; expected none")
        url, path = _divided(refused.headers["Location"])
        answer = await self.line.ask(
            request.method,
            url,
            path,
            most_bytes=_MOST_BYTES,
            proof=self._proof(request, refused, url),
            within_s=_WITHIN_S,
        )
        if 300 <= answer.status < 400:  # noqa: PLR2004 - HTTP: it no longer leads
            raise unavailable(f"{url} does not lead any more", _RETRY_AFTER_S)
        headers = {"Retry-After": answer.retry_after} if answer.retry_after else {}
        return bytes_reply(
            answer.text.encode(), "application/json", answer.status, {**headers, **_NO_STORE}
        )

    def _proof(self, request: web.BaseRequest, refused: Refused, url: str) -> Proof:
        passed_on = refused.headers.get(PASSED_ON_HEADER)
        if passed_on:
            return Proof(passed_on)
        scheme, _, token = request.headers.get("Authorization", "").strip().partition(" ")
        if scheme.lower() != "bearer" or not token:
            return Proof()
        withheld = self.withheld(url)
        return Proof(withheld=withheld) if withheld else Proof(token.strip())


_NO_STORE: Final = {"Cache-Control": "no-store"}


def _divided(location: str) -> tuple[str, str]:
    scheme, _, rest = location.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority}", slash + path


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

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any, Final

import structlog
from aiohttp import web
from pydantic import BaseModel

from loadmanager.adapters.http.assign_client import Credentials, HttpAssignClient, refusal_text
from loadmanager.adapters.http.routes import (
    SERVER_NAME,
    Refused,
    Role,
    Route,
    Target,
    bytes_reply,
    unavailable,
)
from loadmanager.adapters.http.security.guard import ADMITTED_UNTIL, PASSED_ON_HEADER
from loadmanager.core.errors import LoadManagerError
from loadmanager.ports.lookup import LeaderElsewhere, Unavailable

log = structlog.get_logger()

OVERVIEW_PATH: Final = "/admin/v2/loadmanager/overview"
_MOST_BYTES: Final = 2_097_152
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class OverviewReader:
    """Reads the overview as one event.

    ``read`` returns it as a document, or raises `LeaderElsewhere` and similar errors.
    ``served_by`` is the broker of the sidecar that serves the page; ``line`` requests the overview
    from the leader's sidecar if that is another one.
    """

    read: Callable[[], BaseModel]
    served_by: str
    line: HttpAssignClient | None = None

    async def __call__(self) -> bytes:
        try:
            answer = await self._overview()
        except (LoadManagerError, ValueError) as error:
            return self._event("trouble", {"reason": str(error) or type(error).__name__})
        except Exception as error:
            log.exception("page.overview.failed", error=str(error))
            return self._event("trouble", {"reason": f"unexpected: {error!r}"})
        return self._event("overview", {"overview": answer})

    def _event(self, kind: str, value: dict[str, Any]) -> bytes:
        text = json.dumps({"servedBy": self.served_by, **value}, separators=(",", ":"))
        return f"event: {kind}\ndata: {text}\n\n".encode()

    async def _overview(self) -> dict[str, Any]:
        try:
            return self.read().model_dump(mode="json", by_alias=True)
        except LeaderElsewhere as error:
            if self.line is None:
                raise
            url = error.sidecar_url
        answer = await self.line.ask("GET", url, OVERVIEW_PATH, most_bytes=_MOST_BYTES)
        if answer.status != _OK:
            raise Unavailable(refusal_text(url.rstrip("/") + OVERVIEW_PATH, answer))
        content = json.loads(answer.text)
        if not isinstance(content, dict):
            raise Unavailable(f"{url}: answered {answer.text[:80]!r}; expected an overview")
        return content


_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
    "Server": SERVER_NAME,
}
_END: Final = b"event: end\ndata: {}\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLimits:
    """Limits on the viewers of one server; with more streams than ``most_viewers`` they get 503.

    After ``lasts_s`` a stream ends, and the page connects again, so that a revoked right or an
    expired token takes effect. A viewer has ``write_s`` to read one event.
    """

    interval_s: float = 2.0
    most_viewers: int = 32
    lasts_s: float = 60.0
    write_s: float = 10.0


class Feed:
    """Sends the results of ``read``, whole events that it never fails to return, to viewers."""

    def __init__(
        self, read: Callable[[], Awaitable[bytes]], limits: FeedLimits | None = None
    ) -> None:
        self._read = read
        self._limits = limits or FeedLimits()
        self.viewers = 0
        self._event = b""
        self._number = 0
        self._news = asyncio.Condition()
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    async def stream(
        self, request: web.BaseRequest, left_s: float = math.inf
    ) -> web.StreamResponse:
        """Answer a request with events until its time is over or the viewer disconnects.

        ``left_s`` is the time for which the viewer is authorized.

        A viewer that reads slowly misses events and gets the newest; one that does not read an
        event in time is disconnected. Raises `Refused`: the limit of viewers is reached (503).
        """
        limits = self._limits
        if self._closed or self.viewers >= limits.most_viewers:
            raise unavailable(f"{limits.most_viewers} viewers are connected, the most allowed", 5.0)
        self.viewers += 1
        response = web.StreamResponse(headers=_HEADERS)
        response.force_close()
        try:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_on(), name="live page")
            await response.prepare(request)
            await self._send(response, left_s)
        except (ConnectionError, TimeoutError):
            # Disconnected, or too slow: unwritten data must not be sent later.
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.viewers -= 1
            if not self.viewers and self._reading is not None:
                self._reading.cancel()
                self._reading, self._event = None, b""
        return response

    async def close(self) -> None:
        self._closed = True
        async with self._news:
            self._news.notify_all()

    async def _send(self, response: web.StreamResponse, left_s: float) -> None:
        clock_s = asyncio.get_running_loop().time
        until_s, sent = clock_s() + min(self._limits.lasts_s, left_s), -1
        while not self._closed and clock_s() < until_s:
            if self._number != sent and self._event:
                sent, event = self._number, self._event
                await asyncio.wait_for(response.write(event), self._limits.write_s)
                continue
            async with self._news:
                try:
                    await asyncio.wait_for(self._news.wait(), max(until_s - clock_s(), 0.0))
                except TimeoutError:
                    break
        await asyncio.wait_for(response.write(_END), self._limits.write_s)

    async def _read_on(self) -> None:
        while True:
            self._event = await self._read()
            self._number += 1
            async with self._news:
                self._news.notify_all()
            await asyncio.sleep(self._limits.interval_s)


FORWARD_HEADER: Final = "X-Loadmanager-Forward"
"""Requests forwarding; browsers let no page of another site send such a header."""

_MOST_ANSWER_BYTES: Final = 4_194_304
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
        location = refused.headers["Location"]
        scheme, _, rest = location.partition("://")
        url = f"{scheme}://{rest.partition('/')[0]}"
        path = location.removeprefix(url)
        answer = await self.line.ask(
            request.method,
            url,
            path,
            most_bytes=_MOST_ANSWER_BYTES,
            credentials=self._credentials(request, refused, url),
            within_s=_WITHIN_S,
        )
        if 300 <= answer.status < 400:  # noqa: PLR2004 - HTTP: it no longer leads
            raise unavailable(f"{url} does not lead any more", _RETRY_AFTER_S)
        headers = {"Cache-Control": "no-store"}
        if answer.retry_after:
            headers["Retry-After"] = answer.retry_after
        return bytes_reply(answer.text.encode(), "application/json", answer.status, headers)

    def _credentials(self, request: web.BaseRequest, refused: Refused, url: str) -> Credentials:
        passed_on = refused.headers.get(PASSED_ON_HEADER)
        if passed_on:
            return Credentials(passed_on)
        scheme, _, token = request.headers.get("Authorization", "").strip().partition(" ")
        if scheme.lower() != "bearer" or not token:
            return Credentials()
        withheld = self.withheld(url)
        return Credentials(withheld=withheld) if withheld else Credentials(token.strip())


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
_PAGE_HEADERS: Final = {
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
    return bytes_reply(content, content_type, headers=_PAGE_HEADERS)

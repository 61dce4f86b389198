"""The stream of events that keeps the live page up to date, and what an event says."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp
import structlog
from aiohttp import web
from pydantic import BaseModel

from loadmanager.adapters.http.assign_client import Answer, refusal_text
from loadmanager.adapters.http.replies import SERVER_NAME, unavailable
from loadmanager.core.errors import LoadManagerError
from loadmanager.ports import LeaderElsewhere, Unavailable

log = structlog.get_logger()

OVERVIEW_PATH: Final = "/admin/v2/loadmanager/overview"
_MOST_BYTES: Final = 2_097_152
_OK: Final = 200


class LeaderLine(Protocol):
    """How the leader's sidecar is asked."""

    async def ask(self, method: str, sidecar_url: str, path: str, *, most_bytes: int) -> Answer:
        """Return what the sidecar at a URL answers under a path."""


@dataclass(frozen=True, slots=True)
class OverviewReader:
    """Reads the overview, and puts it into one event.

    ``read`` returns it as a document, or raises `LeaderElsewhere` and the like. ``served_by`` is
    who answers the page; ``line`` asks the leader's sidecar where that is another one.
    """

    read: Callable[[], BaseModel]
    served_by: str
    line: LeaderLine | None = None

    async def __call__(self) -> bytes:
        """Return the event: the overview, or why there is none."""
        try:
            answer = await self._overview()
        except (LoadManagerError, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
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
    """What the viewers of one server may cost.

    Attributes:
        interval_s: between two events.
        most_viewers: at once; more get 503.
        lasts_s: how long one stream lasts. The page then asks again, so that a right that
            was taken away, or a token that ended, is noticed.
        write_s: how long a viewer may take for one event.
    """

    interval_s: float = 2.0
    most_viewers: int = 32
    lasts_s: float = 60.0
    write_s: float = 10.0


class Feed:
    """Gives viewers what ``read`` returns, as server-sent events.

    Args:
        read: returns one whole event in bytes; raises nothing.
        limits: see `FeedLimits`.
    """

    def __init__(
        self, read: Callable[[], Awaitable[bytes]], limits: FeedLimits | None = None
    ) -> None:
        self._read = read
        self._limits = limits or FeedLimits()
        self._viewers = 0
        self._event = b""
        self._number = 0
        self._news = asyncio.Condition()
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def viewers(self) -> int:
        """How many streams are open."""
        return self._viewers

    async def stream(
        self, request: web.BaseRequest, left_s: float = math.inf
    ) -> web.StreamResponse:
        """Answer a request with events until its time is over or the viewer is gone.

        ``left_s`` is for how long the viewer may watch, at most.

        A viewer that reads slowly misses events and gets the newest; one that does not take
        an event in time is dropped.

        Raises:
            Refused: there are as many viewers as there may be (503).
        """
        limits = self._limits
        if self._closed or self._viewers >= limits.most_viewers:
            raise unavailable(f"{limits.most_viewers} viewers are connected, the most allowed", 5.0)
        self._viewers += 1
        response = web.StreamResponse(headers=_HEADERS)
        response.force_close()
        try:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_on(), name="live page")
            await response.prepare(request)
            await self._send(response, left_s)
        except (ConnectionError, TimeoutError):
            # Gone, or too slow: what is left unwritten is not sent after all.
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._viewers -= 1
            if not self._viewers and self._reading is not None:
                self._reading.cancel()
                self._reading, self._event = None, b""
        return response

    async def close(self) -> None:
        """End all streams."""
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

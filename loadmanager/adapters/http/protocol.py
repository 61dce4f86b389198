"""One connection: the express lane first, aiohttp behind it, and refusals as JSON."""

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
from aiohttp import http_exceptions, web

from loadmanager.adapters.http.express import Express, KnownReply
from loadmanager.adapters.http.replies import Refused, refusal_reply
from loadmanager.adapters.http.security.origin import is_loopback_peer

# aiohttp's error tells a long header from a long URL by nothing but the limit.
_HEADER_OVER_URL_BYTES: Final = 8_192
_END: Final = b"\r\n\r\n"
_TRACE_EVERY_S: Final = 60.0

log = structlog.get_logger()


def is_whole_request(data: bytes) -> bool:
    """Return whether ``data`` can be read only as one head, from first to last byte.

    A bare line feed ends a line for some parsers; data with one is never ours to judge.
    """
    return (
        data.endswith(_END) and data.count(_END) == 1 and data.count(b"\n") == data.count(b"\r\n")
    )


class DoorProtocol(web.RequestHandler):
    """aiohttp's protocol for one connection, with the express lane before it."""

    __slots__ = (
        "_aligned",
        "_clock_s",
        "_express",
        "_failures",
        "_from_loopback",
        "_handed_at_s",
        "_whole_request",
    )

    def __init__(
        self,
        manager: web.Server,
        express: Express,
        failures: "Failures",
        loop: asyncio.AbstractEventLoop,
        **kwargs: Any,
    ) -> None:
        super().__init__(manager, loop=loop, **kwargs)
        self._express = express
        self._failures = failures
        self._from_loopback = False
        self._clock_s = loop.time
        self._handed_at_s = loop.time()
        self._aligned = True
        self._whole_request: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note from where the connection comes, which rights depend on."""
        self._from_loopback = is_loopback_peer(transport)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Answer a known lookup at once; hand everything else to aiohttp."""
        if self._aligned and not self._is_due():
            response = self._known_response(data)
            if response is not None and self.transport is not None:
                self.transport.write(response)
                return
        alone = self._aligned and is_whole_request(data)
        self._whole_request = data if alone else None
        self._aligned = False
        self._handed_at_s = self._clock_s()
        super().data_received(data)

    def _known_response(self, data: bytes) -> bytes | None:
        try:
            return self._express.response_to(data, from_loopback=self._from_loopback)
        except Exception:  # noqa: BLE001 - aiohttp's lane meets it again, and there it becomes a logged 500
            return None

    def _is_due(self) -> bool:
        """Return whether aiohttp should see a request again.

        It closes connections on which *it* saw nothing for the keep-alive time, and
        it is the one that waits for a slow reader.
        """
        silent_s = self._clock_s() - self._handed_at_s
        return self.writing_paused or silent_s > self.keepalive_timeout / 2

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Let aiohttp send the response, then see whether it owes anything more."""
        sent, reset = await super().finish_response(request, resp, start_time)
        data, self._whole_request = self._whole_request, None
        if data is None or reset or not sent.keep_alive or request.body_exists:
            return sent, reset
        self._aligned = True
        if isinstance(sent, KnownReply):
            self._express.learn(data, sent.line, sent.until_s, from_loopback=self._from_loopback)
        return sent, reset

    def close(self) -> None:
        """Take no more requests."""
        self._aligned = False
        self._whole_request = None
        super().close()

    def force_close(self) -> None:
        """Close now."""
        self._aligned = False
        self._whole_request = None
        super().force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's signature
    ) -> web.StreamResponse:
        """Return the refusal for what aiohttp could not parse, or our code did not foresee.

        Raises:
            ConnectionError: part of a response is out already.
        """
        refused = _parse_refusal(self, status, exc)
        if refused is None:
            refused = self._unexpected(request, status, exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a response was begun already")
        response = refusal_reply(refused)
        response.force_close()
        return response

    def _unexpected(
        self, request: web.BaseRequest, status: int, exc: BaseException | None
    ) -> Refused:
        reason_id = secrets.token_hex(6)
        log.error(
            "http.request.failed",
            method=request.method,
            path=request.raw_path,
            reason_id=reason_id,
            error=repr(exc),
            exc_info=self._failures.trace_of(exc),
        )
        return Refused(status, f"an unexpected error; it is in the log under {reason_id}")


def _parse_refusal(
    protocol: DoorProtocol, status: int, exc: BaseException | None
) -> Refused | None:
    if status != 400 or not isinstance(exc, http_exceptions.HttpProcessingError):  # noqa: PLR2004 - the status of all parse errors
        return None
    if isinstance(exc, http_exceptions.LineTooLong):
        if exc.args[1] == protocol.max_line_size:
            return Refused(414, f"the URL is longer than {protocol.max_line_size} bytes")
        return Refused(431, f"a header is longer than {protocol.max_field_size} bytes")
    if exc.message == "Too many headers received":
        return Refused(431, "there are too many headers")
    first_line = exc.message.partition("\n")[0].rstrip(": ")
    return Refused(400, f"the request is not valid HTTP: {first_line}")


class Failures:
    """The requests of one server that failed unexpectedly.

    Args:
        clock_s: a monotonic clock.
        count: called for each of them.
    """

    def __init__(self, clock_s: Callable[[], float], count: Callable[[], None]) -> None:
        self._clock_s = clock_s
        self._count = count
        self._traced_at_s = -math.inf

    def trace_of(self, error: BaseException | None) -> BaseException | None:
        """Count a failure, and return it if its trace is to be logged: once a minute at most."""
        self._count()
        now_s = self._clock_s()
        if now_s - self._traced_at_s < _TRACE_EVERY_S:
            return None
        self._traced_at_s = now_s
        return error


class DoorServer(web.Server):
    """Makes a `DoorProtocol` for each connection."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        express: Express,
        *,
        max_body_bytes: int,
        max_url_bytes: int,
        keepalive_s: float,
        count_failure: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()

        def request_of(
            message: Any, payload: Any, protocol: Any, writer: Any, task: Any
        ) -> web.BaseRequest:
            if message.chunked:
                # The parser takes the last trailer for the first header of what comes next.
                message = message._replace(should_close=True)
            return web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=max_body_bytes
            )

        super().__init__(handler, request_factory=request_of, loop=loop)
        self._express = express
        self._failures = Failures(loop.time, count_failure)
        self._event_loop = loop
        self._keepalive_s = keepalive_s
        self._max_url_bytes = max_url_bytes

    def __call__(self) -> DoorProtocol:
        """Return the protocol of a new connection."""
        return DoorProtocol(
            self,
            self._express,
            self._failures,
            self._event_loop,
            keepalive_timeout=self._keepalive_s,
            access_log=None,
            max_line_size=self._max_url_bytes,
            max_field_size=self._max_url_bytes + _HEADER_OVER_URL_BYTES,
            lingering_time=2.0,
        )

"""One connection: the fast path first, then aiohttp, with refusals as JSON.

aiohttp's parser gets one request at a time, and a head only when it is complete. So bytes that a
client sends ahead take only their own memory, and `Heads` limits them.
"""

import asyncio
import math
import resource
import secrets
import socket
import ssl
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import structlog
from aiohttp import http_exceptions, web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from loadmanager.adapters.host.processes import OTHER_FILES
from loadmanager.adapters.http.lookups import FastPath, KnownReply
from loadmanager.adapters.http.routes import Refused, raw_refusal, refusal_reply, unavailable
from loadmanager.adapters.http.security.guard import is_loopback_peer
from loadmanager.config.sections import HttpSettings

# Requests handed over before other tasks run, such as the lease and the session: about ten
# milliseconds of work.
_MAX_UNBEGUN: Final = 64
# Refused clients in turn are told to wait up to 4 s longer, so that they do not retry together.
_RETRY_SPREAD_S: Final = 5


class Admission:
    def __init__(self, limits: HttpSettings, refused: Callable[[str], None]) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Clients leave descriptors to all else that this process opens.
        room = max(files - OTHER_FILES, files // 3) if files >= 0 else limits.max_connections
        most = min(limits.max_connections, room)
        self.limits = limits.model_copy(update={"max_connections": most})
        self.refused = refused
        self._open: dict[HttpProtocol, str] = {}
        self._by_address: Counter[str] = Counter()
        self._unbegun = 0
        self._waiting: deque[HttpProtocol] = deque()
        self._turned_away = 0

    def connected(self, connection: "HttpProtocol", address: str) -> Refused | None:
        """Count a connection; return a refusal if it exceeds a limit, else None."""
        self._open[connection] = address
        self._by_address[address] += 1
        limits = self.limits
        if len(self._open) > limits.max_connections:
            return self._turn_away("connections", f"{limits.max_connections} connections are open")
        most = limits.max_connections_per_address
        if most and self._by_address[address] > most:
            return self._turn_away("address", f"{most} connections of {address} are open")
        return None

    def disconnected(self, connection: "HttpProtocol") -> None:
        address = self._open.pop(connection)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def check_timeouts(self, now_s: float) -> None:
        for connection in list(self._open):
            connection.check_timeouts(now_s)

    @property
    def has_room(self) -> bool:
        return self._unbegun < _MAX_UNBEGUN

    def enqueue(self, connection: "HttpProtocol") -> Refused | None:
        """Queue a connection's request; return a refusal if the queue is full, else None."""
        if len(self._waiting) >= self.limits.max_queued_requests:
            return self._turn_away("requests", f"{len(self._waiting)} requests wait already")
        self._waiting.append(connection)
        return None

    def handed_over(self) -> None:
        """Count a request that was handed to the parser and has no handler yet."""
        self._unbegun += 1

    def begun(self) -> None:
        """Stop counting a request that has a handler now, and hand over waiting ones."""
        self._unbegun -= 1
        while self._waiting and self.has_room:
            self._waiting.popleft().take_turn()

    def _turn_away(self, why: str, text: str) -> Refused:
        self.refused(why)
        self._turned_away += 1
        return unavailable(f"{text}, the most allowed", 1.0 + self._turned_away % _RETRY_SPREAD_S)


_BAD_REQUEST: Final = 400
_TRACE_EVERY_S: Final = 60.0

log = structlog.get_logger()


class Failures:
    def __init__(self, clock_s: Callable[[], float], count: Callable[[], None]) -> None:
        self._clock_s = clock_s
        self._count = count
        self._traced_at_s = -math.inf

    def trace_of(self, error: BaseException | None) -> BaseException | None:
        """Count a failure, and return it if its trace is to be logged, at most once a minute."""
        self._count()
        now_s = self._clock_s()
        if now_s - self._traced_at_s < _TRACE_EVERY_S:
            return None
        self._traced_at_s = now_s
        return error


_END: Final = b"\r\n\r\n"
_CR: Final = 0x0D
_METHODS_BEGIN_WITH: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def is_whole_request(data: bytes) -> bool:
    """Return whether ``data`` is exactly one head, for any parser.

    Data with a bare line feed is not, because that ends a line for some parsers.
    """
    return (
        data.endswith(_END) and data.count(_END) == 1 and data.count(b"\n") == data.count(b"\r\n")
    )


class Heads:
    """The bytes of one connection that wait for the parser.

    The parser gets a head only when it is complete, because it would keep each header twice and
    has no limit for all of them together. Bytes that cannot be a head are passed at once, so that
    the parser reports the error.
    """

    __slots__ = ("_bytes", "_max_bytes", "_searched")

    def __init__(self, max_bytes: int) -> None:
        self._bytes = bytearray()
        self._max_bytes = max_bytes
        self._searched = 0

    def __len__(self) -> int:
        return len(self._bytes)

    def add(self, data: bytes) -> None:
        self._bytes += data

    def head_bytes(self) -> int:
        """Return how many bytes to pass now; `Refused`: the head is longer than allowed (431)."""
        kept = self._bytes
        if not self._searched and kept.startswith((b"\r", b"\n")):
            # Empty lines before a request line are ignored.
            del kept[: len(kept) - len(kept.lstrip(b"\r\n"))]
        if kept and kept[0] not in _METHODS_BEGIN_WITH:
            return len(kept)
        found = kept.find(_END, max(0, self._searched - len(_END) + 1))
        length = found + len(_END) if found >= 0 else 0
        if max(length, 0 if length else len(kept)) > self._max_bytes:
            raise Refused(431, f"the head of the request is longer than {self._max_bytes} bytes")
        if not length:
            start = self._searched
            if start and kept[start - 1] == _CR:
                start -= 1
            if kept.count(b"\n", start) != kept.count(b"\r\n", start):  # one without its return
                return len(kept)
            self._searched = len(kept)
        return length

    def take(self, count: int) -> bytes:
        self._searched = 0
        if count >= len(self._bytes):
            taken, self._bytes = bytes(self._bytes), bytearray()
            return taken
        taken = bytes(memoryview(self._bytes)[:count])
        del self._bytes[:count]
        return taken


HEADER_OVER_URL_BYTES: Final = 8_192


class HttpProtocol(web.RequestHandler):
    def __init__(
        self,
        manager: web.Server,
        fast_path: FastPath | None,
        admission: Admission,
        failures: Failures,
        loop: asyncio.AbstractEventLoop,
        **kwargs: Any,
    ) -> None:
        super().__init__(manager, loop=loop, **kwargs)
        self._fast_path = fast_path
        self._admission = admission
        self._failures = failures
        self._from_loopback = False
        self._clock_s = loop.time
        self._due_after_s = self.keepalive_timeout / 2
        self._handed_at_s = self._sent_at_s = self._head_since_s = loop.time()
        self._unsent_bytes = 0
        self._wire: asyncio.Transport | None = None
        self._heads = Heads(admission.limits.max_head_bytes)
        # Of the request at aiohttp: `_busy` until its response is sent, `_unbegun` until its
        # handler is called, `_last` if no other request may follow it.
        self._busy = self._unbegun = self._last = False
        self._payload: StreamReader = EMPTY_PAYLOAD
        self._body_left = 0
        self._fed_bytes = 0
        # True while a complete head waits until the event loop has room for it.
        self._queued = False
        self._ignoring = False
        self._at_request_boundary = True
        self._whole_request: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._from_loopback = is_loopback_peer(transport)
        self._wire = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        refused = self._admission.connected(self, str(peer[0]) if peer else "")
        if refused is None:
            super().connection_made(transport)
            return
        self._stop_reading()
        self._wire.write(raw_refusal(refused))
        self._wire.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._admission.disconnected(self)
        # A request handed over after the end would keep its room for ever.
        self._stop_reading()
        self.begun()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Answer a known lookup at once; queue all other data for aiohttp."""
        now_s = self._clock_s()
        if self._at_request_boundary and not self._is_due(now_s):
            response = self._known_response(data)
            if response is not None and self.transport is not None:
                self.transport.write(response)
                return
        if not data:  # aiohttp continues with a body that it had paused
            super().data_received(data)
            self._advance()
            return
        alone = self._at_request_boundary and is_whole_request(data)
        self._at_request_boundary = False
        self._whole_request = None
        self._handed_at_s = now_s
        fits = len(data) <= self._admission.limits.max_head_bytes
        if alone and fits and self._admission.has_room:
            self._whole_request = data
            self._hand_over(data)
        elif not self._ignoring:
            self._take_in(data)

    def check_timeouts(self, now_s: float) -> None:
        """Close if the client has exceeded the timeout of a head, or of reading its response."""
        if self._wire is None:
            return
        limits = self._admission.limits
        unsent_bytes = self._wire.get_write_buffer_size()
        if not unsent_bytes or unsent_bytes < self._unsent_bytes:
            self._sent_at_s = now_s
        self._unsent_bytes = unsent_bytes
        if now_s - self._sent_at_s > limits.write_s:
            self._admission.refused("unread")
            self._stop_reading()
            self._wire.abort()
        elif now_s - self._head_since_s > limits.head_s:
            self._admission.refused("slow")
            if self._heads:
                why = f"the head of the request did not come within {limits.head_s:g} s"
                self._refuse(Refused(408, why))
            else:
                self.force_close()

    def resume_writing(self) -> None:
        self._sent_at_s = self._clock_s()
        super().resume_writing()

    def begun(self) -> None:
        if self._unbegun:
            self._unbegun = False
            self._admission.begun()

    def take_turn(self) -> None:
        self._queued = False
        if not self._ignoring:
            self._advance()

    def _take_in(self, data: bytes) -> None:
        if self._last:
            self._feed_last(data)
            return
        body = data[: self._body_left]
        if body:
            self._body_left -= len(body)
            super().data_received(body)
        if len(body) < len(data):
            if not self._heads and not self._busy:
                self._head_since_s = self._handed_at_s
            self._heads.add(data[len(body) :])
        self._advance()

    def _advance(self) -> None:
        """Hand over the next request if it is complete, aiohttp has none, and there is room."""
        owes = self._busy or self._body_left or not self._payload.is_eof()
        if not self._ignoring and not owes and not self._queued and not self._last and self._heads:
            try:
                length = self._heads.head_bytes()
                if length:
                    self._hand_over_or_wait(length)
                elif self._head_since_s == math.inf:
                    self._head_since_s = self._clock_s()
            except Refused as refused:
                self._refuse(refused)
                return
        self._hold_back()

    def _hand_over_or_wait(self, length: int) -> None:
        if not self._admission.has_room:
            self._head_since_s = math.inf
            refused = self._admission.enqueue(self)
            if refused is not None:
                raise refused
            self._queued = True
            return
        self._hand_over(self._heads.take(length))
        if self._last:
            self._feed_last(self._heads.take(len(self._heads)))
        elif self._body_left and self._heads:
            body = self._heads.take(self._body_left)
            self._body_left -= len(body)
            super().data_received(body)

    def _hand_over(self, data: bytes) -> None:
        """Pass one head to aiohttp, and determine the body that belongs to it."""
        self._head_since_s = math.inf
        self._busy = self._unbegun = True
        self._admission.handed_over()
        super().data_received(data)
        if not self._messages:
            self._refuse(Refused(400, "the request is not valid HTTP"))
            return
        message, self._payload = self._messages[-1]
        if self._payload.is_eof() or not isinstance(message, RawRequestMessage):
            return
        length = "" if message.chunked else message.headers.get("Content-Length", "")
        self._body_left = int(length) if length else 0
        self._last = not length

    def _feed_last(self, data: bytes) -> None:
        """Pass a chunked body to aiohttp; its frames and trailers have the limit of a head."""
        if self._payload.is_eof() or not data:
            return
        self._fed_bytes += len(data)
        super().data_received(data)
        framing_bytes = self._fed_bytes - self._payload.total_bytes
        if not self._reading_paused and framing_bytes > self._admission.limits.max_head_bytes:
            self._admission.refused("framing")
            if self._busy:
                self._payload.set_exception(web.RequestPayloadError("its framing is too long"))
                self._stop_reading()
            else:
                self.force_close()

    def _hold_back(self) -> None:
        """Stop reading from a client that sends too far ahead, until its request is handed over."""
        full = len(self._heads) > self._admission.limits.max_head_bytes
        if full and not self._buffer_paused:
            self._pause_reading_for_buffer()
        elif not full and self._buffer_paused:
            self._resume_reading_for_buffer()

    def _resume_reading_if_drained(self) -> None:
        """Replace aiohttp's rule, because aiohttp never has more than one request here."""
        self._hold_back()

    def _refuse(self, refused: Refused) -> None:
        """Send a refusal without aiohttp, which has no request of the connection, and close."""
        self._stop_reading()
        if self.transport is not None:
            self.transport.write(raw_refusal(refused))
        self.force_close()

    def _stop_reading(self) -> None:
        self._ignoring = True
        self._at_request_boundary = False
        self._whole_request = None
        self._head_since_s = math.inf

    def _known_response(self, data: bytes) -> bytes | None:
        if self._fast_path is None:
            return None
        try:
            return self._fast_path.response_to(data, from_loopback=self._from_loopback)
        except Exception:  # noqa: BLE001 - the aiohttp handler raises it too, and logs it as a 500
            return None

    def _is_due(self, now_s: float) -> bool:
        """Return whether aiohttp has to handle the next request.

        aiohttp closes connections without requests of its own for the keep-alive time, and only
        aiohttp waits for a slow reader.
        """
        return self.writing_paused or now_s - self._handed_at_s > self._due_after_s

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        sent, reset = await super().finish_response(request, resp, start_time)
        self._busy = False
        data, self._whole_request = self._whole_request, None
        if reset or not sent.keep_alive:
            self._last = True
        elif data is None or request.body_exists:
            self._advance()
        else:
            self._at_request_boundary = True
            if isinstance(sent, KnownReply) and self._fast_path is not None:
                self._fast_path.learn(
                    data, sent.line, sent.until_s, from_loopback=self._from_loopback
                )
        return sent, reset

    def close(self) -> None:
        self._stop_reading()
        super().close()

    def force_close(self) -> None:
        self._stop_reading()
        super().force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's signature
    ) -> web.StreamResponse:
        """Raises `ConnectionError`: part of a response has been sent already."""
        refused = self._refusal_for(request, status, exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a response was begun already")
        response = refusal_reply(refused)
        response.force_close()
        return response

    def _refusal_for(
        self, request: web.BaseRequest, status: int, error: BaseException | None
    ) -> Refused:
        """Return the refusal for the client; an unexpected error is logged under an id."""
        if status != _BAD_REQUEST or not isinstance(error, http_exceptions.HttpProcessingError):
            reason_id = secrets.token_hex(6)
            log.error(
                "http.request.failed",
                method=request.method,
                path=request.raw_path,
                reason_id=reason_id,
                error=repr(error),
                exc_info=self._failures.trace_of(error),
            )
            return Refused(status, f"an unexpected error; it is in the log under {reason_id}")
        if isinstance(error, http_exceptions.LineTooLong):
            # Only the limit in the error tells a long URL from a long header.
            if error.args[1] == self.max_line_size:
                return Refused(414, f"the URL is longer than {self.max_line_size} bytes")
            return Refused(431, f"a header is longer than {self.max_field_size} bytes")
        if error.message == "Too many headers received":
            return Refused(431, "there are too many headers")
        first_line = error.message.partition("\n")[0].rstrip(": ")
        return Refused(400, f"the request is not valid HTTP: {first_line}")


_CHECK_EVERY_S: Final = 1.0


class ConnectionServer(web.Server):
    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        fast_path: FastPath | None,
        admission: Admission,
        count_failure: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        most_bytes = admission.limits.max_body_bytes

        def request_of(
            message: Any, payload: Any, protocol: Any, writer: Any, task: Any
        ) -> web.BaseRequest:
            if message.chunked:
                # The parser would take the last trailer for the first header of the next request.
                message = message._replace(should_close=True)
            protocol.begun()
            return web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=most_bytes
            )

        super().__init__(handler, request_factory=request_of, loop=loop)
        self._fast_path = fast_path
        self._admission = admission
        self._failures = Failures(loop.time, count_failure)
        self._event_loop = loop

    def __call__(self) -> HttpProtocol:
        limits = self._admission.limits
        return HttpProtocol(
            self,
            self._fast_path,
            self._admission,
            self._failures,
            self._event_loop,
            keepalive_timeout=limits.keepalive_s,
            access_log=None,
            max_line_size=limits.max_url_bytes,
            max_field_size=limits.max_url_bytes + HEADER_OVER_URL_BYTES,
            lingering_time=2.0,
        )

    @asynccontextmanager
    async def listening(
        self, sockets: Iterable[socket.socket], tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[None]:
        """Serve clients within the limits; at the end requests under way may take ``stop_s``."""
        limits, loop = self._admission.limits, self._event_loop
        # asyncio's default is a minute, and before the end of a handshake no other timeout applies.
        handshake_s = limits.head_s if tls else None
        servers = [
            await loop.create_server(
                self, sock=one, ssl=tls, backlog=limits.backlog, ssl_handshake_timeout=handshake_s
            )
            for one in sockets
        ]
        watching = asyncio.create_task(self._watch(), name="connections")
        try:
            yield
        finally:
            watching.cancel()
            for one in servers:
                one.close()
            await asyncio.sleep(0)  # What has arrived is begun.
            self.pre_shutdown()
            await self.shutdown(limits.stop_s)

    async def _watch(self) -> None:
        """Close connections that exceed a timeout; never returns."""
        limits = self._admission.limits
        every_s = min(_CHECK_EVERY_S, limits.head_s / 4, limits.write_s / 4)
        while True:
            await asyncio.sleep(every_s)
            self._admission.check_timeouts(self._event_loop.time())

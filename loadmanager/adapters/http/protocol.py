"""One connection: the fast path first, then aiohttp, with refusals as JSON.

aiohttp's parser gets one request at a time, and a head only when it is complete. So bytes that a
client sends ahead take only their own memory, and `Heads` limits them.
"""

import asyncio
import math
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from loadmanager.adapters.http.admission import Admission
from loadmanager.adapters.http.failures import Failures, refusal_for
from loadmanager.adapters.http.fast_path import FastPath, KnownReply
from loadmanager.adapters.http.heads import Heads, is_whole_request
from loadmanager.adapters.http.replies import Refused, raw_refusal, refusal_reply
from loadmanager.adapters.http.security.origin import is_loopback_peer

HEADER_OVER_URL_BYTES: Final = 8_192


class HttpProtocol(web.RequestHandler):
    __slots__ = (
        "_admission",
        "_aligned",
        "_body_left",
        "_busy",
        "_clock_s",
        "_deaf",
        "_due_after_s",
        "_failures",
        "_fast_path",
        "_fed_bytes",
        "_from_loopback",
        "_handed_at_s",
        "_head_since_s",
        "_heads",
        "_last",
        "_payload",
        "_queued",
        "_sent_at_s",
        "_unbegun",
        "_unsent_bytes",
        "_whole_request",
        "_wire",
    )

    def __init__(
        self,
        manager: web.Server,
        fast_path: FastPath,
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
        self._deaf = False
        self._aligned = True
        self._whole_request: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._from_loopback = is_loopback_peer(transport)
        self._wire = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        refused = self._admission.connected(self, str(peer[0]) if peer else "")
        if refused is None:
            super().connection_made(transport)
            return
        self._deafen()
        self._wire.write(raw_refusal(refused))
        self._wire.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._admission.disconnected(self)
        self.begun()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Answer a known lookup at once; queue all other data for aiohttp."""
        now_s = self._clock_s()
        if self._aligned and not self._is_due(now_s):
            response = self._known_response(data)
            if response is not None and self.transport is not None:
                self.transport.write(response)
                return
        if not data:  # aiohttp continues with a body that it had paused
            super().data_received(data)
            self._advance()
            return
        alone = self._aligned and is_whole_request(data)
        self._aligned = False
        self._whole_request = None
        self._handed_at_s = now_s
        fits = len(data) <= self._admission.limits.max_head_bytes
        if alone and fits and self._admission.has_room:
            self._whole_request = data
            self._hand_over(data)
        elif not self._deaf:
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
            self._deafen()
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
        if not self._deaf:
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
        if not owes and not self._queued and not self._last and self._heads:
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
                self._deafen()
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
        self._deafen()
        if self.transport is not None:
            self.transport.write(raw_refusal(refused))
        self.force_close()

    def _deafen(self) -> None:
        self._deaf = True
        self._aligned = False
        self._whole_request = None
        self._head_since_s = math.inf

    def _known_response(self, data: bytes) -> bytes | None:
        try:
            return self._fast_path.response_to(data, from_loopback=self._from_loopback)
        except Exception:  # noqa: BLE001 - aiohttp's lane meets it again, and there it becomes a logged 500
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
            self._aligned = True
            if isinstance(sent, KnownReply):
                self._fast_path.learn(
                    data, sent.line, sent.until_s, from_loopback=self._from_loopback
                )
        return sent, reset

    def close(self) -> None:
        self._deafen()
        super().close()

    def force_close(self) -> None:
        self._deafen()
        super().force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's signature
    ) -> web.StreamResponse:
        """Return the refusal of a request that aiohttp cannot parse, or of an unexpected error.

        Raises `ConnectionError`: part of a response has been sent already.
        """
        refused = refusal_for(
            request,
            status,
            exc,
            self._failures,
            line_bytes=self.max_line_size,
            field_bytes=self.max_field_size,
        )
        if request.writer.output_size > 0:
            raise ConnectionError("a response was begun already")
        response = refusal_reply(refused)
        response.force_close()
        return response

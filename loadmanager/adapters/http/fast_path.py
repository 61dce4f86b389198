"""Known lookups are answered before they are parsed.

Clients ask for the same topics over and over, with the same headers each time. What
aiohttp has parsed once and we have answered from memory need not be parsed again: a
request is its first line and a block of headers, both are looked up as the bytes they
are, and the answer is written at once. Everything else goes to aiohttp untouched.

What makes this safe:

- A block of headers is learnt only from a request that aiohttp itself parsed and we
  answered from memory, and only if it can change neither the answer nor the framing: it
  names no listener, brings no body and leaves the connection open.
- A first line finds an answer only through `Answers`, which checks the picture.
- A connection is served here only while aiohttp owes it nothing (`HttpProtocol`): all
  that was handed over was one whole request, and its response is out. A connection
  that ever pipelines, sends bodies or splits a request is aiohttp's from then on.

- Where callers must prove who they are, their proof is among the headers: a block is learnt
  from a caller who was admitted, for as long as that proof is good (`Caller.until_s`). A
  proof that is the connection's, a client certificate, is never learnt.
- What this host may do others may not, and the other way round: a block counts for
  connections from as near as the one it was learnt on.
"""

import math
import time
from email.utils import formatdate
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from loadmanager.adapters.http.answers import Answers
from loadmanager.adapters.http.recent import Recent
from loadmanager.telemetry.lookups import LookupMetrics

LISTENER_HEADER: Final = "X-Pulsar-ListenerName"
_MAX_HEAD_BYTES: Final = 2_048
_MAX_HEADS: Final = 1_024


class KnownReply(web.StreamResponse):
    """A remembered answer on its way through aiohttp, for HTTP/1.1 requests that keep alive.

    ``line`` is the first line under which the answer is remembered; ``until_s`` says how
    long, on ``time.perf_counter``, the same headers come from a caller who may have it.
    The response is written as it was rendered: building headers again would cost a third
    of the request.
    """

    def __init__(self, response: bytes, line: bytes, until_s: float = math.inf) -> None:
        super().__init__()
        self._response = response
        self.line = line
        self.until_s = until_s

    @property
    def keep_alive(self) -> bool:
        """Always: it is not made for other requests."""
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Write everything, and wait if the client reads slowly.

        Raises:
            ConnectionResetError: the client has gone.
        """
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client closed the connection before its answer")
        transport.write(self._response)
        if request.protocol.writing_paused:
            await request.writer.drain()
        return request.writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: it is written."""


class FastPath:
    """Knows which raw requests have a remembered answer."""

    def __init__(self, answers: Answers, metrics: LookupMetrics) -> None:
        self._answers = answers
        self._metrics = metrics
        # By whether the other end is on this host.
        self._heads: tuple[Recent[bytes, float], Recent[bytes, float]] = (
            Recent(_MAX_HEADS),
            Recent(_MAX_HEADS),
        )
        self._date = b""
        self._date_until_s = 0.0

    def response_to(self, data: bytes, *, from_loopback: bool) -> bytes | None:
        """Return the whole response to ``data`` if that is one known lookup request."""
        line_end = data.find(b"\r\n")
        until_s = self._heads[from_loopback].get(data[line_end:])
        if until_s is None or until_s <= time.perf_counter():
            return None
        return self.response_under(data[:line_end])

    def response_under(self, line: bytes) -> bytes | None:
        """Return the whole response to a plain request with this first line, if known."""
        started_s = time.perf_counter()
        answer = self._answers.known(line)
        if answer is None:
            return None
        if started_s >= self._date_until_s:
            self._date = formatdate(usegmt=True).encode()
            self._date_until_s = started_s + 1.0
        response = answer.before_date + self._date + answer.after_date
        self._metrics.answered(time.perf_counter() - started_s)
        return response

    def learn(self, data: bytes, line: bytes, until_s: float, *, from_loopback: bool) -> None:
        """Remember the headers of ``data``, a whole request with nothing special in them.

        ``line`` is the first line its answer is remembered under; ``until_s`` says how
        long a caller with these headers and from as near may have answers.
        """
        head_bytes = len(data) - len(line)
        same = data.startswith(line) and data.startswith(b"\r\n", len(line))
        if same and head_bytes <= _MAX_HEAD_BYTES and until_s > time.perf_counter():
            self._heads[from_loopback].put(data[len(line) :], until_s)

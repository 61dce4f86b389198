"""Answers known lookups without parsing them.

Clients look up the same topics again and again. A request is its first line and a block of
headers; few of the headers affect the answer to a lookup, and aiohttp need not parse the others.
A request that aiohttp parsed once, and that was answered from memory, is answered again at once if
its first line and those few headers are the same. All other requests go to aiohttp unchanged.

What makes this safe:

- No header is interpreted here. `decisive_headers` returns the unchanged bytes of those that
  affect the answer, its authorization or the framing. They are learned only from a request that
  aiohttp parsed and that was answered from memory, and only if they change neither the answer
  nor the framing: they name no listener, announce no body and leave the connection open.
- Headers are ignored only in a head that consists of ``name: value`` lines in ASCII, within the
  limits of the server and of aiohttp.
- A first line finds an answer only through `Answers`, which checks the cluster state.
- A connection is served here only while aiohttp has no request of it (`HttpProtocol`): each one
  handed over was whole, and its response has been sent. A connection that ever pipelines, sends
  bodies or splits a request is served by aiohttp from then on.
- Where callers must authenticate, their credentials are among the decisive headers: those are
learned from an admitted caller, for as long as its credentials are valid (`Caller.until_s`).
  A proof that is the connection's, a client certificate, is never learned.
- This host has other rights than others: headers learned on a connection from this host count
  only for connections from this host, and those of others only for others.
"""

import math
import re
import time
from email.utils import formatdate
from functools import lru_cache
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from loadmanager.adapters.http.answers import Answers
from loadmanager.adapters.http.recent import Recent
from loadmanager.telemetry.metrics import LookupMetrics

LISTENER_HEADER: Final = "X-Pulsar-ListenerName"
_MAX_HEAD_BYTES: Final = 4_096
_MAX_ADMITTED: Final = 1_024
_MAX_MEMOIZED: Final = 256

# Fewer lines than the 128 that aiohttp takes.
_PLAIN: Final = re.compile(rb"(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]++:[\t\x20-\x7e]*+){1,100}\r\n\r\n")
# First the headers whose values matter. Of the others only the names matter: some must not be
# repeated, some show that a proxy forwarded the request. A common prefix speeds up the search.
_DECISIVE: Final = re.compile(
    rb"""
    \n (?= [acefhmpstuvx] ) (
        (?: authorization | con(?: nection | tent-(?: encoding | length ) ) | host
          | proxy-connection | sec-websocket-key1 | transfer-encoding | upgrade
          | x-pulsar-listenername ) : [^\r]*
      | (?: content-(?: location | range | type ) | etag | forwarded | max-forwards | server
          | user-agent | via | x-(?: envoy- | forwarded- | real-ip ) [^:]* ) :
    )
    """,
    re.IGNORECASE | re.VERBOSE,
)


@lru_cache(_MAX_MEMOIZED)
def decisive_headers(headers: bytes) -> bytes | None:
    """Return the headers of a lookup that affect its answer, None if any header is unusual.

    ``headers`` is all that follows the first line, from its line end to the empty line.
    """
    if _PLAIN.fullmatch(headers) is None:
        return None
    return b"\n".join(_DECISIVE.findall(headers))


class KnownReply(web.StreamResponse):
    """A remembered answer as a response of aiohttp, for HTTP/1.1 requests with keep-alive.

    ``line`` is the first line under which the answer is remembered; ``until_s`` is the time, on
    ``time.perf_counter``, until which the same headers come from an authorized caller. The
    response is written as it was rendered, because building headers again would take a third of
    the request's time.
    """

    def __init__(self, response: bytes, line: bytes, until_s: float = math.inf) -> None:
        super().__init__()
        self._response = response
        self.line = line
        self.until_s = until_s

    @property
    def keep_alive(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client closed the connection before its answer")
        transport.write(self._response)
        if request.protocol.writing_paused:
            await request.writer.drain()
        return request.writer

    async def write_eof(self, data: bytes = b"") -> None: ...


class FastPath:
    def __init__(self, answers: Answers, metrics: LookupMetrics, max_head_bytes: int) -> None:
        self._answers = answers
        self._metrics = metrics
        self._max_bytes = min(max_head_bytes, _MAX_HEAD_BYTES)
        # The end of validity of decisive headers, by whether the other end is on this host.
        self._admitted: tuple[Recent[bytes, float], Recent[bytes, float]] = (
            Recent(_MAX_ADMITTED),
            Recent(_MAX_ADMITTED),
        )
        self._date = b""
        self._date_until_s = 0.0

    def response_to(self, data: bytes, *, from_loopback: bool) -> bytes | None:
        line_end = data.find(b"\r\n")
        decisive = self._decisive(data, line_end)
        if decisive is None:
            return None
        until_s = self._admitted[from_loopback].get(decisive)
        if until_s is None or until_s <= time.perf_counter():
            return None
        return self.response_under(data[:line_end])

    def response_under(self, line: bytes) -> bytes | None:
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
        """Remember the decisive headers of ``data``, a whole request that was answered.

        ``line`` is the first line that its answer is remembered under; ``until_s`` is the time
        until which a caller with these headers, from this host or not, is authorized.
        """
        decisive = self._decisive(data, len(line)) if data.startswith(line) else None
        if decisive is not None and until_s > time.perf_counter():
            self._admitted[from_loopback].put(decisive, until_s)

    def _decisive(self, data: bytes, line_end: int) -> bytes | None:
        return decisive_headers(data[line_end:]) if len(data) <= self._max_bytes else None

"""Answers lookups, and known ones without parsing them.

Clients look up the same topics again and again. A request is its first line and a block of
headers; few of the headers affect the answer to a lookup, and aiohttp need not parse the others.
A request that aiohttp parsed once, and that was answered from memory, is answered again at once if
its first line and those few headers are the same. All other requests go to aiohttp unchanged.

Answers are rendered once per owner and found again by the request's first line. Each carries the
version of the cluster state that it was made from, and is reused only under that version. Under a
newer one the owner is resolved again, which costs a hash and two dictionary accesses, and the text
is rendered again only if the owner has changed.

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

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate
from functools import lru_cache
from typing import Final, Generic, TypeVar

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11
from pydantic import Field

from loadmanager.adapters.http.operations import TEXT, Document, Query, Reply, Resource, operation
from loadmanager.adapters.http.routes import (
    ANY_METHOD,
    SERVER_NAME,
    Refused,
    Role,
    Route,
    Target,
    empty_reply,
    text_reply,
    unavailable,
)
from loadmanager.config.sections import LookupSettings
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BundleId, TopicName, topic_from_parts
from loadmanager.core.load import BrokerUrls
from loadmanager.ports.lookup import LookupService, Owner
from loadmanager.telemetry.metrics import LookupMetrics

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most ``max_entries`` entries, in two generations.

    When the young generation is full it replaces the old one, whose entries are dropped; an entry
    found in the old generation moves to the young one. Every operation is one or two dictionary
    accesses: an exact order of use would cost more on each hit than a hit saves.
    """

    __slots__ = ("_generation_size", "_old", "_young")

    def __init__(self, max_entries: int) -> None:
        self._generation_size = max(1, max_entries // 2)
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        value = self._young.get(key)
        if value is None and self._old:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        if len(self._young) >= self._generation_size and key not in self._young:
            self._old = self._young
            self._young = {}
        self._old.pop(key, None)
        self._young[key] = value

    def drop(self, key: K) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)


# Answers to longer lines are not remembered: 65,536 of this length fit in about 40 MB.
_MAX_LINE_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Answer:
    """The response that names ``owner``, ready to send.

    ``before_date`` and ``after_date`` are the whole response except for the value of its
    ``Date`` header; ``headers`` and ``body`` are its parts, for callers that frame it themselves.
    """

    owner: Owner
    headers: Mapping[str, str]
    body: bytes
    before_date: bytes
    after_date: bytes


@dataclass(slots=True)
class _Remembered:
    version: int
    topic: TopicName
    listener: str
    answer: Answer


class Answers:
    def __init__(self, lookup: LookupService, max_entries: int = 65_536) -> None:
        self._lookup = lookup
        self._by_line: Recent[bytes, _Remembered] = Recent(max_entries)
        self._by_bundle: Recent[tuple[BundleId, str], Answer] = Recent(max_entries)

    def known(self, line: bytes) -> Answer | None:
        entry = self._by_line.get(line)
        if entry is None:
            return None
        version = self._lookup.cluster_state_version
        if entry.version != version:
            owner = self._lookup.owner_if_known(entry.topic)
            if owner is None or (entry.listener and entry.listener not in owner.listeners):
                self._by_line.drop(line)
                return None
            entry.answer, entry.version = self.naming(owner, entry.listener), version
        return entry.answer

    def of_topic(self, topic: TopicName, listener: str, line: bytes | None) -> Answer | None:
        """Return the answer for ``topic`` from the cluster state, None if no owner is known.

        ``line`` is the first line of the request if the answer depends only on it; the answer
        is then remembered under it. Raises `Refused`: the owner has no listener of that name.
        """
        version = self._lookup.cluster_state_version
        owner = self._lookup.owner_if_known(topic)
        if owner is None:
            return None
        answer = self.naming(owner, listener)
        if line is not None and len(line) <= _MAX_LINE_BYTES:
            self._by_line.put(line, _Remembered(version, topic, listener, answer))
        return answer

    def naming(self, owner: Owner, listener: str) -> Answer:
        """Return the answer that names ``owner``, from memory if it is the same owner."""
        key = (owner.bundle, listener)
        answer = self._by_bundle.get(key)
        if answer is None or (answer.owner is not owner and answer.owner != owner):
            answer = render(owner, listener)
            self._by_bundle.put(key, answer)
        return answer


def render(owner: Owner, listener: str) -> Answer:
    """Return Pulsar's ``LookupData``, with every field.

    An absent URL is an empty string: C++ clients crash on a missing key. ``nativeUrl`` and
    ``brokerUrlSsl`` are older names that some clients still read.
    """
    urls = urls_through(owner, listener)
    data = {
        "brokerUrl": urls.broker_url,
        "brokerUrlTls": urls.broker_url_tls,
        "httpUrl": urls.http_url,
        "httpUrlTls": urls.http_url_tls,
        "nativeUrl": urls.broker_url,
        "brokerUrlSsl": "",
    }
    body = json.dumps(data, separators=(",", ":")).encode()
    headers = {
        "Content-Type": "application/json",
        "X-Loadmanager-Bundle": owner.bundle,
        "X-Loadmanager-Fencing-Token": str(owner.fencing_token),
        "X-Loadmanager-Epoch": str(owner.epoch),
        "Server": SERVER_NAME,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 200 OK\r\n{lines}Content-Length: {len(body)}\r\nDate: "
    return Answer(owner, headers, body, head.encode(), b"\r\n\r\n" + body)


def urls_through(owner: Owner, listener: str) -> BrokerUrls:
    """Return the owner's URLs for clients that requested a named listener.

    A listener's binary URLs replace the broker's; so do its HTTP URLs if it has any. Raises
    `Refused`: the owner has no listener of that name.
    """
    if not listener:
        return owner.urls
    named = owner.listeners.get(listener)
    if named is None:
        known = ", ".join(sorted(owner.listeners)) or "none"
        raise Refused(
            412, f"broker {owner.broker} has no listener {listener!r}; its listeners: {known}"
        )
    if named.http_url or named.http_url_tls:
        return named
    return replace(owner.urls, broker_url=named.broker_url, broker_url_tls=named.broker_url_tls)


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


LOOKUP_PREFIX: Final = "/lookup/v2/topic/"
_TOPIC_PATH: Final = "{domain}/{tenant}/{namespace}/{topic}"
REDIRECT_PREFIX: Final = "/redirect"
_TOPIC_SEGMENTS: Final = 4
# Refused clients in turn are told to wait up to 4 s longer, so that they do not retry together.
_RETRY_SPREAD_S: Final = 5


class LookupData(Document):
    """The URLs of a topic's owner. A URL that the owner does not have is an empty string."""

    broker_url: str
    broker_url_tls: str
    http_url: str
    http_url_tls: str
    native_url: str
    broker_url_ssl: str


class LookupQuery(Query):
    """The parameters of a lookup."""

    listener_name: str = Field("", alias="listenerName")
    """The name of an advertised listener, through which the client connects."""


class Lookups(Resource, tag="lookup"):
    """Answers lookups from memory, from the cluster state, or through the application.

    Only the last of these waits, so only it counts as pending: a lookup whose owner is known is
    answered even if the limit of waiting lookups is reached.
    """

    def __init__(
        self,
        lookup: LookupService,
        answers: Answers,
        fast_path: FastPath,
        metrics: LookupMetrics,
        settings: LookupSettings,
    ) -> None:
        self._lookup = lookup
        self._answers = answers
        self._fast_path = fast_path
        self._metrics = metrics
        self.settings = settings
        self._pending = 0
        self._refused = 0

    def routes(self) -> list[Route]:
        return [
            *super().routes(),
            Route("GET", "/lookup/v2/destination/{...}", self.name_with_cluster, Role.LOOKUP),
            Route(ANY_METHOD, REDIRECT_PREFIX + "/{...}", self.redirect_to_owner, Role.LOOKUP),
        ]

    def remembered(self, request: web.BaseRequest) -> KnownReply | None:
        line = _plain_line(request)
        if line is None or not request.keep_alive or request.version != HttpVersion11:
            return None
        response = self._fast_path.response_under(line)
        return None if response is None else KnownReply(response, line)

    @operation(
        f"GET {LOOKUP_PREFIX}{_TOPIC_PATH}",
        Reply(200, "The owner and its URLs.", LookupData),
        Reply(404, "The namespace does not exist."),
        Reply(405, "The domain of the topic is not known."),
        Reply(
            412, "The name of the topic is not valid, or the owner does not advertise the listener."
        ),
        role=Role.LOOKUP,
        query=LookupQuery,
        raw=True,
    )
    async def owner(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        """Find the broker that serves a topic."""
        started_s = time.perf_counter()
        try:
            topic = topic_from_parts(*target.captured)
            listener = target.query("listenerName") or request.headers.get(LISTENER_HEADER, "")
            answer = self._answers.of_topic(topic, listener, _plain_line(request))
            if answer is None:
                answer = self._answers.naming(await self._find_owner(topic), listener)
        except LoadManagerError:
            self._metrics.failed(time.perf_counter() - started_s)
            raise
        self._metrics.answered(time.perf_counter() - started_s)
        return web.Response(body=answer.body, headers=answer.headers)

    @operation(
        f"GET {LOOKUP_PREFIX}{_TOPIC_PATH}/bundle",
        Reply(200, "The range of the bundle, without quotes, as Pulsar's brokers return it.", TEXT),
        Reply(404, "The namespace does not exist."),
        Reply(405, "The domain of the topic is not known."),
        role=Role.LOOKUP,
        raw=True,
    )
    async def bundle(self, _request: web.BaseRequest, target: Target) -> web.StreamResponse:
        """Find the bundle of a topic."""
        found = await self._lookup.bundle_of(topic_from_parts(*target.captured))
        return text_reply(found.rpartition("/")[2])

    async def name_with_cluster(
        self, _request: web.BaseRequest, _target: Target
    ) -> web.StreamResponse:
        raise Refused(404, f"topic names have no cluster any more; ask {LOOKUP_PREFIX}...")

    async def redirect_to_owner(
        self, _request: web.BaseRequest, target: Target
    ) -> web.StreamResponse:
        """Send the client to the same path on the owner; its last four segments are the topic."""
        if len(target.captured) < _TOPIC_SEGMENTS:
            raise Refused(404, "the path must end in {domain}/{tenant}/{namespace}/{topic}")
        owner = await self._find_owner(topic_from_parts(*target.captured[-_TOPIC_SEGMENTS:]))
        if not owner.urls.http_url:
            raise Refused(412, f"broker {owner.broker} has no HTTP URL to redirect to")
        kept = target.path_and_query.removeprefix(REDIRECT_PREFIX)
        return empty_reply(307, {"Location": owner.urls.http_url.rstrip("/") + kept})

    async def _find_owner(self, topic: TopicName) -> Owner:
        owner = self._lookup.owner_if_known(topic)
        if owner is not None:
            return owner
        if self._pending >= self.settings.max_concurrent:
            self._refused += 1
            raise unavailable(
                f"{self._pending} lookups are pending, the most allowed",
                self.settings.retry_after_s + self._refused % _RETRY_SPREAD_S,
            )
        self._pending += 1
        self._metrics.pending(self._pending)
        try:
            return await self._lookup.find_owner(topic)
        finally:
            self._pending -= 1
            self._metrics.pending(self._pending)


def _plain_line(request: web.BaseRequest) -> bytes | None:
    """Return the first line of a lookup if its answer depends on nothing else in the request."""
    raw = request.raw_path
    plain = request.method == "GET" and raw.startswith(LOOKUP_PREFIX) and raw.isascii()
    if not plain or LISTENER_HEADER in request.headers:
        return None
    return f"GET {raw} HTTP/1.1".encode()

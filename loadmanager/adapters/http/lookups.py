import time
from typing import Final

from aiohttp import web
from aiohttp.http import HttpVersion11
from pydantic import Field

from loadmanager.adapters.http.fast_path import LISTENER_HEADER, Answers, FastPath, KnownReply
from loadmanager.adapters.http.operations import TEXT, Document, Query, Reply, Resource, operation
from loadmanager.adapters.http.routes import (
    ANY_METHOD,
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
from loadmanager.core.ids import TopicName, topic_from_parts
from loadmanager.ports.lookup import LookupService, Owner
from loadmanager.telemetry.metrics import LookupMetrics

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

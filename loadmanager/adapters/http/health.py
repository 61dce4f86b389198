from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from pydantic import Field

from loadmanager.adapters.http.health_listener import readiness_answer
from loadmanager.adapters.http.operations import TEXT, Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query
from loadmanager.adapters.http.replies import Refused, bytes_reply, json_reply, text_reply
from loadmanager.adapters.http.routes import Role, Target
from loadmanager.ports.lookup import LookupService


class Readiness(Document):
    """Whether this sidecar is ready, and the reasons if it is not."""

    ready: bool
    reasons: list[str]
    troubles: list[str] = Field(default_factory=list)
    """Other problems, such as that history cannot be written; absent if there are none."""


class Watching(Resource, tag="watching"):
    """Answers ``/metrics``, ``/healthz`` and ``/readyz``."""

    def __init__(self, lookup: LookupService, registry: CollectorRegistry) -> None:
        self._lookup = lookup
        self._registry = registry

    @operation(
        "GET",
        "/metrics",
        Reply(200, "The metrics as text, or as OpenMetrics if the client accepts that.", TEXT),
        raw=True,
    )
    async def metrics(self, request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Get all metrics, for Prometheus."""
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return bytes_reply(encode(self._registry), content_type)

    @operation("GET", "/healthz", Reply(200, "`ok`.", TEXT), role=Role.NOBODY, raw=True)
    async def alive(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Check whether the process answers at all."""
        return text_reply("ok")

    @operation(
        "GET",
        "/readyz",
        Reply(200, "The sidecar is ready.", Readiness),
        Reply(503, "The sidecar is not ready; `reason` says why."),
        role=Role.NOBODY,
        raw=True,
    )
    async def ready(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Check whether this sidecar can answer lookups and its broker has a lease."""
        status, body = readiness_answer(self._lookup.readiness())
        return json_reply(body, status)


class Leader(Document):
    """The broker whose sidecar leads the cluster."""

    broker_id: str
    service_url: str


class HealthQuery(Query):
    """Parameters that Pulsar's clients send."""

    topic_version: str = Field("", alias="topicVersion")
    """`V1` or `V2`. This parameter has no effect."""


class Health(Resource, tag="brokers"):
    """Answers for this sidecar, from the cluster state that lookups are answered from."""

    def __init__(self, lookup: LookupService, version: str) -> None:
        self._lookup = lookup
        self._version = version

    @operation(
        "GET",
        "/admin/v2/brokers/leaderBroker",
        Reply(200, "The leader's broker.", Leader),
        Reply(404, "No leader is elected."),
    )
    async def leader_broker(self) -> Leader:
        """Get the broker whose sidecar leads the cluster."""
        leader = self._lookup.leader
        if leader is None:
            raise Refused(404, "Couldn't find leader broker")
        return Leader(broker_id=leader.broker, service_url=leader.service_url)

    @operation(
        "GET",
        "/admin/v2/brokers/health",
        Reply(200, "`ok`.", TEXT),
        Reply(503, "Lookups cannot be answered; `reason` says why."),
        role=Role.NOBODY,
        query=HealthQuery,
    )
    @operation(
        "GET",
        "/admin/v2/brokers/ready",
        Reply(200, "`ok`.", TEXT),
        Reply(503, "Lookups cannot be answered; `reason` says why."),
        role=Role.NOBODY,
    )
    async def health(self) -> str:
        """Check whether lookups can be answered from a current cluster state."""
        readiness = self._lookup.readiness()
        if not readiness.ready:
            raise Refused(503, "; ".join(readiness.reasons) or "not ready")
        return "ok"

    @operation(
        "GET", "/admin/v2/brokers/version", Reply(200, "The version.", TEXT), role=Role.NOBODY
    )
    async def version(self) -> str:
        """Get this sidecar's version."""
        return self._version

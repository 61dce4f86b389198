from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from pydantic import Field

from loadmanager.adapters.http.health_answers import readiness_answer
from loadmanager.adapters.http.operations import TEXT, Document, Reply, Resource, operation
from loadmanager.adapters.http.replies import bytes_reply, json_reply, text_reply
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

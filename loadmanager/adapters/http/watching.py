"""What those who watch over the sidecar ask: metrics, liveness, readiness."""

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel, Field

from loadmanager.adapters.http.health_answers import readiness_answer
from loadmanager.adapters.http.operations import TEXT, Reply, Resource, operation
from loadmanager.adapters.http.replies import bytes_reply, json_reply, text_reply
from loadmanager.adapters.http.routes import Role, Target
from loadmanager.ports import LookupService

_TAG = "watching"


class Readiness(BaseModel):
    """Whether this sidecar can answer for the cluster; if not, why not."""

    ready: bool
    reasons: list[str]
    troubles: list[str] = Field(
        default_factory=list,
        description="What it cannot do besides, such as writing history; only if there is any.",
    )


class Watching(Resource):
    """Answers ``/metrics``, ``/healthz`` and ``/readyz``."""

    def __init__(self, lookup: LookupService, registry: CollectorRegistry) -> None:
        self._lookup = lookup
        self._registry = registry

    @operation(
        "GET",
        "/metrics",
        tag=_TAG,
        summary="All metrics, for Prometheus.",
        role=Role.READ,
        replies=(Reply(200, "Text, or OpenMetrics to those who accept it.", TEXT),),
        raw=True,
    )
    async def metrics(self, request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Expose all metrics, as OpenMetrics to those who accept it."""
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return bytes_reply(encode(self._registry), content_type)

    @operation(
        "GET",
        "/healthz",
        tag=_TAG,
        summary="Whether the process answers at all.",
        role=Role.NOBODY,
        replies=(Reply(200, "`ok`.", TEXT),),
        raw=True,
    )
    async def alive(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Say that the event loop runs: that this is answered is the answer."""
        return text_reply("ok")

    @operation(
        "GET",
        "/readyz",
        tag=_TAG,
        summary="Whether lookups can be answered from a current picture, and the broker is leased.",
        role=Role.NOBODY,
        replies=(
            Reply(200, "Both.", Readiness),
            Reply(503, "Not both; `reason` says why."),
        ),
        raw=True,
    )
    async def ready(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Tell whether this sidecar can do its work, and if not, why."""
        status, body = readiness_answer(self._lookup.readiness())
        return json_reply(body, status)

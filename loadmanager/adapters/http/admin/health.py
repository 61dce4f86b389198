"""The brokers of the cluster, and how this one is."""

from aiohttp import web
from pydantic import BaseModel, Field

from loadmanager.adapters.http.operations import TEXT, Call, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query
from loadmanager.adapters.http.replies import Refused, json_reply, text_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.ports import LookupService

_TAG = "brokers"


class Leader(BaseModel):
    """Who leads."""

    broker_id: str = Field(serialization_alias="brokerId")
    service_url: str = Field(serialization_alias="serviceUrl")


class HealthQuery(Query):
    """What Pulsar's clients say along; both kinds of topic are fine here."""

    topic_version: str = Field("", alias="topicVersion", description="`V1` or `V2`; no matter.")


class Health(Resource):
    """Answers for this sidecar, from the picture that lookups are answered from."""

    def __init__(self, lookup: LookupService, version: str) -> None:
        self._lookup = lookup
        self._version = version

    @operation(
        "GET",
        "/admin/v2/brokers/leaderBroker",
        tag=_TAG,
        summary="Who leads the cluster.",
        role=Role.READ,
        replies=(
            Reply(200, "The leader's broker.", Leader),
            Reply(404, "No leader is elected now."),
        ),
    )
    async def leader_broker(self, _call: Call) -> web.StreamResponse:
        """Tell who leads."""
        leader = self._lookup.leader
        if leader is None:
            raise Refused(404, "Couldn't find leader broker")
        return json_reply({"brokerId": leader.broker, "serviceUrl": leader.service_url})

    @operation(
        "GET",
        "/admin/v2/brokers/health",
        tag=_TAG,
        summary="Whether lookups can be answered from a current picture.",
        role=Role.NOBODY,
        replies=(Reply(200, "`ok`.", TEXT), Reply(503, "Not now; `reason` says why.")),
        query=HealthQuery,
    )
    @operation(
        "GET",
        "/admin/v2/brokers/ready",
        tag=_TAG,
        summary="The same as health.",
        role=Role.NOBODY,
        replies=(Reply(200, "`ok`.", TEXT), Reply(503, "Not now; `reason` says why.")),
    )
    async def health(self, _call: Call) -> web.StreamResponse:
        """Say ``ok`` if lookups can be answered from a current picture."""
        readiness = self._lookup.readiness()
        if not readiness.ready:
            raise Refused(503, "; ".join(readiness.reasons) or "not ready")
        return text_reply("ok")

    @operation(
        "GET",
        "/admin/v2/brokers/version",
        tag=_TAG,
        summary="This sidecar's version.",
        role=Role.NOBODY,
        replies=(Reply(200, "The version.", TEXT),),
    )
    async def version(self, _call: Call) -> web.StreamResponse:
        """Tell this sidecar's version."""
        return text_reply(self._version)

from pydantic import Field

from loadmanager.adapters.http.operations import TEXT, Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query
from loadmanager.adapters.http.replies import Refused
from loadmanager.adapters.http.routes import Role
from loadmanager.ports.lookup import LookupService


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

"""The brokers of the cluster, what they own, and what this one carries."""

from typing import Any, Final, Literal

from aiohttp import web
from pydantic import Field

from loadmanager.adapters.http.admin.names import broker_in
from loadmanager.adapters.http.operations import Call, Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query
from loadmanager.adapters.http.replies import json_reply
from loadmanager.adapters.http.topics_client import TOPICS_PATH, topics_to_json
from loadmanager.core.ids import parse_namespace
from loadmanager.ports import BrokerService, TopicService

_STATS: Final = "broker stats"
_BROKERS: Final = Reply(200, "The ids of the brokers, `host:port`, sorted.", list[str])
_NO_CLUSTER: Final = Reply(404, "The cluster is another one.")


class OwnedBundle(Document):
    """Why a broker owns a bundle, as Pulsar has it."""

    assignment: Literal["shared", "primary", "secondary"] = Field(
        serialization_alias="broker_assignment"
    )
    """Whether the broker is a primary or secondary one of the isolation policy, or `shared` without
    a policy."""
    is_controlled: bool
    """Whether an isolation policy governs the bundle."""
    is_active: bool


class StatsQuery(Query):
    """Which topics are listed."""

    namespace: str = ""
    """Lists only topics of this `tenant/namespace`; not in Pulsar."""


class Brokers(Resource, tag="brokers"):
    """Answers for ``/admin/v2/brokers`` and ``/admin/v2/broker-stats``."""

    def __init__(self, brokers: BrokerService, topics: TopicService) -> None:
        self._brokers = brokers
        self._topics = topics

    @operation("GET", "/admin/v2/brokers", _BROKERS)
    @operation("GET", "/admin/v2/brokers/{cluster}", _BROKERS, _NO_CLUSTER)
    async def registered(self, call: Call) -> web.StreamResponse:
        """List the registered brokers."""
        return json_reply(list(await self._brokers.registered(call.path.get("cluster"))))

    @operation(
        "GET",
        "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces",
        Reply(200, "The ground of ownership, by bundle.", dict[str, OwnedBundle]),
        Reply(404, "The cluster is another one, or the broker is not registered."),
    )
    async def owned(self, call: Call) -> web.StreamResponse:
        """List the bundles that a broker owns."""
        owned = await self._brokers.owned(call.path["cluster"], broker_in(call))
        return json_reply(
            {
                bundle: {
                    "broker_assignment": why,
                    "is_controlled": why != "shared",
                    "is_active": True,
                }
                for bundle, why in owned.items()
            }
        )

    @operation(
        "GET",
        "/admin/v2/broker-stats/load-report",
        Reply(200, "Pulsar's `LocalBrokerData`.", dict[str, Any]),
        tag=_STATS,
    )
    async def load_report(self, _call: Call) -> web.StreamResponse:
        """Get the last load report of this sidecar's broker."""
        return json_reply(dict(await self._brokers.load_report()))

    @operation(
        "GET",
        TOPICS_PATH,
        Reply(200, "The rates, by namespace, bundle range, domain and topic.", dict[str, Any]),
        Reply(412, "The name of the namespace is not valid."),
        tag=_STATS,
        query=StatsQuery,
    )
    async def topics(self, call: Call) -> web.StreamResponse:
        """List the open topics of this sidecar's broker, with their rates.

        A broker with very many topics may report only the busiest ones.
        """
        query: StatsQuery = call.query
        namespace = parse_namespace(query.namespace) if query.namespace else None
        return json_reply(topics_to_json(await self._topics.own(namespace)))

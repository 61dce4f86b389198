"""The brokers of the cluster, what they own, and what this one carries."""

from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from loadmanager.adapters.http.admin.names import broker_in
from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query
from loadmanager.adapters.http.replies import json_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.adapters.http.topics_client import TOPICS_PATH, topics_to_json
from loadmanager.core.ids import parse_namespace
from loadmanager.ports import BrokerService, TopicService

_TAG: Final = "brokers"
_STATS: Final = "broker stats"
_BROKERS: Final = Reply(200, "Their ids, `host:port`, sorted.", list[str])
_NO_CLUSTER: Final = Reply(404, "There is no such cluster here.")


class OwnedBundle(BaseModel):
    """Why a broker owns a bundle, as Pulsar has it."""

    assignment: Literal["shared", "primary", "secondary"] = Field(
        serialization_alias="broker_assignment",
        description="By an isolation policy, or `shared` without one.",
    )
    is_controlled: bool = Field(description="Whether an isolation policy is about it.")
    is_active: bool


class StatsQuery(Query):
    """Of which topics the stats are told."""

    namespace: str = Field("", description="Only those of this one, `tenant/namespace`; our own.")


class Brokers(Resource):
    """Answers for ``/admin/v2/brokers`` and ``/admin/v2/broker-stats``."""

    def __init__(self, brokers: BrokerService, topics: TopicService) -> None:
        self._brokers = brokers
        self._topics = topics

    @operation(
        "GET",
        "/admin/v2/brokers",
        tag=_TAG,
        summary="The registered brokers.",
        role=Role.READ,
        replies=(_BROKERS,),
    )
    @operation(
        "GET",
        "/admin/v2/brokers/{cluster}",
        tag=_TAG,
        summary="The registered brokers of a cluster.",
        role=Role.READ,
        replies=(_BROKERS, _NO_CLUSTER),
    )
    async def registered(self, call: Call) -> web.StreamResponse:
        """Tell who is registered."""
        return json_reply(list(await self._brokers.registered(call.path.get("cluster"))))

    @operation(
        "GET",
        "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces",
        tag=_TAG,
        summary="The bundles a broker owns.",
        role=Role.READ,
        replies=(
            Reply(200, "By bundle, why the broker owns it.", dict[str, OwnedBundle]),
            Reply(404, "There is no such cluster here, or no such broker is registered."),
        ),
    )
    async def owned(self, call: Call) -> web.StreamResponse:
        """Tell what a broker owns."""
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
        tag=_STATS,
        summary="The last load report of this sidecar's broker.",
        role=Role.READ,
        replies=(Reply(200, "Pulsar's `LocalBrokerData`.", dict[str, Any]),),
    )
    async def load_report(self, _call: Call) -> web.StreamResponse:
        """Tell what this broker carries, as it stands in ZooKeeper."""
        return json_reply(dict(await self._brokers.load_report()))

    @operation(
        "GET",
        TOPICS_PATH,
        tag=_STATS,
        summary="The topics that this sidecar's broker has open, with their rates.",
        role=Role.READ,
        replies=(
            Reply(200, "By namespace, range, domain and topic.", dict[str, Any]),
            Reply(412, "The namespace's name cannot be one."),
        ),
        query=StatsQuery,
    )
    async def topics(self, call: Call) -> web.StreamResponse:
        """Tell the open topics; of very many, a broker may tell only the busiest."""
        query: StatsQuery = call.query
        namespace = parse_namespace(query.namespace) if query.namespace else None
        return json_reply(topics_to_json(await self._topics.own(namespace)))

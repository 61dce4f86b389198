"""Topics as the brokers have them open, and where they lie in their bundle."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel, Field

from loadmanager.adapters.http.admin.names import namespace_in
from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Flag, Query
from loadmanager.adapters.http.replies import json_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.core.ids import Namespace, TopicName, parse_full_topic, parse_topic
from loadmanager.ports import TopicMode, TopicService

_TAG: Final = "topics"


class TopicsQuery(Query):
    """Which topics are told."""

    mode: TopicMode = Field("PERSISTENT", description="Of which domains; the default is Pulsar's.")
    include_system: Flag = Field(
        default=False, alias="includeSystemTopic", description="Of no effect: there are none."
    )


class PositionsQuery(Query):
    """Of which topics the positions are told."""

    topics: list[str] = Field(
        default_factory=list,
        description="Full names, or names within the namespace; without any, all open ones.",
    )


class HashPositions(BaseModel):
    """Where topics lie on the hash circle."""

    namespace: str
    bundle: str
    hash_positions: dict[str, int] = Field(serialization_alias="hashPositions")


class Topics(Resource):
    """Answers for the topics of namespaces and bundles."""

    def __init__(self, service: TopicService) -> None:
        self._service = service

    @operation(
        "GET",
        "/admin/v2/namespaces/{tenant}/{namespace}/topics",
        tag=_TAG,
        summary="The topics of a namespace.",
        role=Role.LOOKUP,
        replies=(
            Reply(200, "Their full names, partitions one by one.", list[str]),
            Reply(404, "There is no such namespace."),
        ),
        query=TopicsQuery,
    )
    async def topics(self, call: Call) -> web.StreamResponse:
        """Tell the topics that brokers have open, and every partition of partitioned ones."""
        query: TopicsQuery = call.query
        found = await self._service.of_namespace(namespace_in(call), query.mode)
        return json_reply([str(topic) for topic in found])

    @operation(
        "GET",
        "/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/topicHashPositions",
        tag=_TAG,
        summary="Where the topics of a bundle lie, to choose positions for a split.",
        role=Role.READ,
        replies=(
            Reply(200, "Positions from 0 to 4294967295, by full name.", HashPositions),
            Reply(404, "There is no such namespace, or it has no such bundle."),
            Reply(412, "A topic's name cannot be one, or is of another namespace."),
        ),
        query=PositionsQuery,
    )
    async def positions(self, call: Call) -> web.StreamResponse:
        """Tell where topics lie; those of other bundles are left out."""
        query: PositionsQuery = call.query
        namespace, bundle = namespace_in(call), call.path["bundle"]
        topics = [_topic(namespace, text) for given in query.topics for text in given.split(",")]
        found = await self._service.positions(namespace, bundle, topics)
        told = {str(topic): at for topic, at in found.items()}
        return json_reply({"namespace": namespace, "bundle": bundle.lower(), "hashPositions": told})


def _topic(namespace: Namespace, text: str) -> TopicName:
    if "/" in text:
        return parse_topic(text)
    return parse_full_topic(f"persistent://{namespace}/{text}")

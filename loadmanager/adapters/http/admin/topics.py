"""Topics as the brokers have them open, and where they lie in their bundle."""

from aiohttp import web
from pydantic import Field

from loadmanager.adapters.http.admin.names import namespace_in
from loadmanager.adapters.http.operations import Call, Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Flag, Query
from loadmanager.adapters.http.replies import json_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.core.ids import Namespace, TopicName, parse_full_topic, parse_topic
from loadmanager.ports import TopicMode, TopicService


class TopicsQuery(Query):
    """Which topics are listed."""

    mode: TopicMode = "PERSISTENT"
    """The domain of the topics; the default is Pulsar's."""
    include_system: Flag = Field(default=False, alias="includeSystemTopic")
    """Of no effect: there are no system topics."""


class PositionsQuery(Query):
    """The topics whose positions are listed."""

    topics: list[str] = Field(default_factory=list)
    """Full names, or names within the namespace; by default all open topics."""


class HashPositions(Document):
    """The hash positions of topics."""

    namespace: str
    bundle: str
    hash_positions: dict[str, int]


class Topics(Resource, tag="topics"):
    """Answers for the topics of namespaces and bundles."""

    def __init__(self, service: TopicService) -> None:
        self._service = service

    @operation(
        "GET",
        "/admin/v2/namespaces/{tenant}/{namespace}/topics",
        Reply(200, "The full names of the topics, each partition by itself.", list[str]),
        Reply(404, "The namespace does not exist."),
        role=Role.LOOKUP,
        query=TopicsQuery,
    )
    async def topics(self, call: Call) -> web.StreamResponse:
        """List the topics of a namespace.

        The list holds the topics that brokers have open, and every partition of partitioned ones.
        """
        query: TopicsQuery = call.query
        found = await self._service.of_namespace(namespace_in(call), query.mode)
        return json_reply([str(topic) for topic in found])

    @operation(
        "GET",
        "/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/topicHashPositions",
        Reply(
            200, "The positions from 0 to 4294967295, by the full name of the topic.", HashPositions
        ),
        Reply(404, "The namespace does not exist, or has no such bundle."),
        Reply(412, "The name of a topic is not valid, or belongs to another namespace."),
        query=PositionsQuery,
    )
    async def positions(self, call: Call) -> web.StreamResponse:
        """List the hash positions of a bundle's topics, to choose positions for a split.

        Topics of other bundles are left out.
        """
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

from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import Field

from loadmanager.adapters.http.operations import Document, Method, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Flag, Query
from loadmanager.adapters.http.routes import Role
from loadmanager.admin.topics import PartitionRequests
from loadmanager.core.ids import DOMAINS, TopicName
from loadmanager.ports.lookup import LookupService

_MOST: Final = 100_000


class Partitioned(Document):
    """The number of partitions of a topic."""

    partitions: int = Field(ge=0)
    """The number of partitions; 0 if the topic is not partitioned."""


class PartitionsQuery(Query):
    """Parameters that Pulsar's clients send."""

    authoritative: Flag = False
    """This parameter has no effect, because every sidecar can answer."""
    may_create: Flag = Field(default=False, alias="checkAllowAutoCreation")
    """This parameter has no effect, because topics need no creation."""


class RemovalQuery(Query):
    """Parameters that Pulsar's clients send."""

    force: Flag = False
    """This parameter has no effect."""
    authoritative: Flag = False
    """This parameter has no effect, because every sidecar can answer."""


PartitionCount = Annotated[int, Field(ge=1, le=_MOST)]


class PartitionedMetadata(Document):
    """The number of partitions in its newer form. The properties are ignored."""

    partitions: PartitionCount
    properties: dict[str, str] | None = None


def _in_each_domain(method: str, *replies: Reply, **declared: Any) -> Callable[[Method], Method]:
    """Declare a method for the three domains of topics, which are words in the path."""

    def declare(function: Method) -> Method:
        for domain in reversed(DOMAINS):
            path = f"/admin/v2/{domain}/{{tenant}}/{{namespace}}/{{topic}}/partitions"
            function = operation(method, path, *replies, **declared)(function)
        return function

    return declare


class Partitions(Resource, tag="topics"):
    def __init__(self, lookup: LookupService, service: PartitionRequests) -> None:
        self._lookup = lookup
        self._service = service

    @_in_each_domain(
        "GET",
        Reply(200, "The number of partitions.", Partitioned),
        Reply(404, "The namespace does not exist."),
        role=Role.LOOKUP,
        query=PartitionsQuery,
    )
    async def partitions(self, topic: TopicName) -> Partitioned:
        """Get the number of partitions of a topic."""
        return Partitioned(partitions=await self._lookup.partitions(topic))

    @_in_each_domain(
        "PUT",
        Reply(204, "The topic is partitioned."),
        Reply(404, "The namespace does not exist."),
        Reply(409, "The topic has partitions already."),
    )
    async def create(self, topic: TopicName, body: PartitionCount | PartitionedMetadata) -> None:
        """Make a topic a partitioned topic.

        The body is the number of partitions, or an object that contains it.
        """
        count = body if isinstance(body, int) else body.partitions
        await self._service.create(topic, count)

    @_in_each_domain(
        "DELETE",
        Reply(204, "The topic has no partitions."),
        Reply(404, "The topic has no partitions."),
        Reply(409, "Another client changed it at the same time."),
        query=RemovalQuery,
    )
    async def remove(self, topic: TopicName) -> None:
        """Remove the partitions of a topic; brokers keep open what they have open."""
        await self._service.delete(topic)

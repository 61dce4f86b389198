"""How many partitions topics have."""

from collections.abc import Callable
from typing import Annotated, Final

from aiohttp import web
from pydantic import BaseModel, Field

from loadmanager.adapters.http.operations import Call, Method, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Flag, Query
from loadmanager.adapters.http.replies import empty_reply, json_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.core.ids import DOMAINS, TopicName, topic_from_parts
from loadmanager.ports import LookupService, PartitionService

_TAG: Final = "topics"
_MOST: Final = 100_000


class Partitioned(BaseModel):
    """How many partitions a topic has."""

    partitions: int = Field(description="0: the topic is not partitioned.", ge=0)


class PartitionsQuery(Query):
    """What Pulsar's clients say along."""

    authoritative: Flag = Field(default=False, description="Of no effect: every sidecar knows.")
    may_create: Flag = Field(
        default=False,
        alias="checkAllowAutoCreation",
        description="Of no effect: topics need no creation.",
    )


class RemovalQuery(Query):
    """What Pulsar's clients say along."""

    force: Flag = Field(default=False, description="Of no effect.")
    authoritative: Flag = Field(default=False, description="Of no effect: every sidecar can.")


PartitionCount = Annotated[int, Field(ge=1, le=_MOST)]


class PartitionedMetadata(BaseModel):
    """The newer form of the same, with properties that nobody reads."""

    partitions: PartitionCount
    properties: dict[str, str] | None = None


def _in_each_domain(method: str, **declared: object) -> Callable[[Method], Method]:
    """Declare a method for the three domains of topics, which are words in the path."""

    def declare(function: Method) -> Method:
        for domain in reversed(DOMAINS):
            path = f"/admin/v2/{domain}/{{tenant}}/{{namespace}}/{{topic}}/partitions"
            function = operation(method, path, **declared)(function)  # type: ignore[arg-type]  # passed on as given
        return function

    return declare


class Partitions(Resource):
    """Answers ``/admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions``."""

    def __init__(self, lookup: LookupService, service: PartitionService) -> None:
        self._lookup = lookup
        self._service = service

    @_in_each_domain(
        "GET",
        tag=_TAG,
        summary="How many partitions a topic has.",
        role=Role.LOOKUP,
        replies=(
            Reply(200, "The number.", Partitioned),
            Reply(404, "There is no such namespace."),
        ),
        query=PartitionsQuery,
    )
    async def partitions(self, call: Call) -> web.StreamResponse:
        """Tell how many partitions a topic has; no client starts without knowing."""
        return json_reply({"partitions": await self._lookup.partitions(_topic(call))})

    @_in_each_domain(
        "PUT",
        tag=_TAG,
        summary="Make a topic a partitioned one.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It is."),
            Reply(404, "There is no such namespace."),
            Reply(409, "It has partitions already."),
        ),
        body=PartitionCount | PartitionedMetadata,
    )
    async def create(self, call: Call) -> web.StreamResponse:
        """Set how many partitions a topic has: a bare number, or an object with it."""
        given: int | PartitionedMetadata = call.body
        count = given if isinstance(given, int) else given.partitions
        await self._service.create(_topic(call), count)
        return empty_reply(204)

    @_in_each_domain(
        "DELETE",
        tag=_TAG,
        summary="Forget the partitions of a topic.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It is not partitioned any more."),
            Reply(404, "It has no partitions."),
            Reply(409, "Others changed it meanwhile."),
        ),
        query=RemovalQuery,
    )
    async def remove(self, call: Call) -> web.StreamResponse:
        """Forget how many partitions a topic has; what brokers have open stays open."""
        await self._service.delete(_topic(call))
        return empty_reply(204)


def _topic(call: Call) -> TopicName:
    domain = call.target.path.split("/")[3]
    names = (call.path[name] for name in ("tenant", "namespace", "topic"))
    return topic_from_parts(domain, *names)

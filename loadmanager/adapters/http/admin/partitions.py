"""How many partitions topics have."""

from collections.abc import Callable
from typing import Final

from aiohttp import web
from pydantic import BaseModel, Field

from loadmanager.adapters.http.operations import Call, Method, Reply, operation, routes_of
from loadmanager.adapters.http.parameters import Flag, Query
from loadmanager.adapters.http.replies import json_reply
from loadmanager.adapters.http.routes import Role, Route
from loadmanager.core.ids import DOMAINS, TopicName, topic_from_parts
from loadmanager.ports import LookupService

_TAG: Final = "topics"


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


def _in_each_domain(method: str, **declared: object) -> Callable[[Method], Method]:
    """Declare a method for the three domains of topics, which are words in the path."""

    def declare(function: Method) -> Method:
        for domain in reversed(DOMAINS):
            path = f"/admin/v2/{domain}/{{tenant}}/{{namespace}}/{{topic}}/partitions"
            function = operation(method, path, **declared)(function)  # type: ignore[arg-type]  # passed on as given
        return function

    return declare


class Partitions:
    """Answers ``/admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions``."""

    def __init__(self, lookup: LookupService) -> None:
        self._lookup = lookup

    def routes(self) -> list[Route]:
        """Return the routes of this file."""
        return routes_of(self)

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


def _topic(call: Call) -> TopicName:
    domain = call.target.path.split("/")[3]
    names = (call.path[name] for name in ("tenant", "namespace", "topic"))
    return topic_from_parts(domain, *names)

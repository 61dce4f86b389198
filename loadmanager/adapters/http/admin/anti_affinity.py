"""Anti-affinity groups of namespaces."""

from typing import Annotated, Final

from aiohttp import web
from pydantic import Field, StringConstraints

from loadmanager.adapters.http.admin.names import namespace_in
from loadmanager.adapters.http.operations import TEXT, Call, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query
from loadmanager.adapters.http.replies import empty_reply, json_reply, text_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.core.ids import parse_namespace
from loadmanager.ports import AffinityService

_TAG: Final = "anti-affinity"
_PATH: Final = "/admin/v2/namespaces/{tenant}/{namespace}/antiAffinity"
_UNKNOWN: Final = Reply(404, "There is no such namespace.")
_LONGEST: Final = 200

GroupName = Annotated[
    str, StringConstraints(min_length=1, max_length=_LONGEST, pattern=r"^[-=:.A-Za-z0-9_]+$")
]


class GroupQuery(Query):
    """Which namespaces of a group are told."""

    tenant: str = Field("", alias="property", description="Only those of this tenant.")


class AntiAffinity(Resource):
    """Answers for ``.../antiAffinity``."""

    def __init__(self, service: AffinityService) -> None:
        self._service = service

    @operation(
        "POST",
        _PATH,
        tag=_TAG,
        summary="Put a namespace into an anti-affinity group.",
        role=Role.ADMIN,
        replies=(Reply(204, "It is in it."), _UNKNOWN, Reply(409, "Others changed it meanwhile.")),
        body=GroupName,
    )
    async def put(self, call: Call) -> web.StreamResponse:
        """Put a namespace into a group; the body is its name, as a JSON text."""
        group: str = call.body
        await self._service.put(namespace_in(call), group)
        return empty_reply(204)

    @operation(
        "GET",
        _PATH,
        tag=_TAG,
        summary="The anti-affinity group of a namespace.",
        role=Role.READ,
        replies=(Reply(200, "Its bare name.", TEXT), Reply(204, "It is in none."), _UNKNOWN),
    )
    async def group(self, call: Call) -> web.StreamResponse:
        """Tell the group."""
        group = await self._service.group(namespace_in(call))
        return text_reply(group) if group else empty_reply(204)

    @operation(
        "DELETE",
        _PATH,
        tag=_TAG,
        summary="Take a namespace out of its anti-affinity group.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It is in none (any more)."),
            _UNKNOWN,
            Reply(409, "Others changed it meanwhile."),
        ),
    )
    async def remove(self, call: Call) -> web.StreamResponse:
        """Take a namespace out of its group."""
        await self._service.put(namespace_in(call), "")
        return empty_reply(204)

    @operation(
        "GET",
        "/admin/v2/namespaces/{cluster}/antiAffinity/{group}",
        tag=_TAG,
        summary="The namespaces of an anti-affinity group.",
        role=Role.READ,
        replies=(
            Reply(200, "Them, sorted by tenant and name.", list[str]),
            Reply(412, "The cluster is not this one, or the tenant's name cannot be one."),
        ),
        query=GroupQuery,
    )
    async def members(self, call: Call) -> web.StreamResponse:
        """Tell who is in a group."""
        query: GroupQuery = call.query
        if query.tenant:
            parse_namespace(f"{query.tenant}/any")
        found = await self._service.members(call.path["cluster"], call.path["group"], query.tenant)
        return json_reply(list(found))

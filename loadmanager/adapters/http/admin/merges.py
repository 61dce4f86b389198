"""Making one bundle of two neighbours: what Pulsar has not got."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel, Field

from loadmanager.adapters.http.admin.names import namespace_in
from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.parameters import PATH_PARAMETERS, Query
from loadmanager.adapters.http.replies import json_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.ports import MergeService

_RANGE: Final = PATH_PARAMETERS["bundle"]


class MergeQuery(Query):
    """With which neighbour a bundle is merged."""

    neighbour: str = Field(
        "",
        alias="with",
        description="The range of the bundle right above or below it; else the one above.",
    )


class MergedBundle(BaseModel):
    """What two bundles have become."""

    bundle: str = Field(description="Its range.")


class Merges(Resource):
    """Answers ``PUT /admin/v2/loadmanager/namespaces/{tenant}/{namespace}/{bundle}/merge``."""

    def __init__(self, service: MergeService) -> None:
        self._service = service

    @operation(
        "PUT",
        "/admin/v2/loadmanager/namespaces/{tenant}/{namespace}/{bundle}/merge",
        tag="bundles",
        summary="Make one bundle of two neighbours.",
        role=Role.ADMIN,
        replies=(
            Reply(200, "They are one in the namespace's boundaries.", MergedBundle),
            Reply(404, "There is no such namespace, or it has no such bundle (any more)."),
            Reply(409, "One of the two is being split or merged, or is on its way."),
            Reply(
                412,
                "They are not adjacent, nobody owns one of them, their whole would be split "
                "again at once, or neither owner may have both.",
            ),
        ),
        query=MergeQuery,
        leader=True,
    )
    async def merge(self, call: Call) -> web.StreamResponse:
        """Have a bundle merged with its neighbour.

        Both go to the owner of the busier one first. Lookups wait while they are merged.
        """
        query: MergeQuery = call.query
        whole = await self._service.merge(
            namespace_in(call), call.path["bundle"], query.neighbour or None
        )
        return json_reply({"bundle": whole.rpartition("/")[2]})

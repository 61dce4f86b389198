"""Making one bundle of two neighbours: what Pulsar has not got."""

from typing import Final

from aiohttp import web
from pydantic import Field

from loadmanager.adapters.http.admin.names import namespace_in
from loadmanager.adapters.http.operations import Call, Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import PATH_PARAMETERS, Query
from loadmanager.adapters.http.replies import json_reply
from loadmanager.ports import MergeService

_RANGE: Final = PATH_PARAMETERS["bundle"]


class MergeQuery(Query):
    """The neighbour with which a bundle is merged."""

    neighbour: str = Field("", alias="with")
    """The range of the bundle right above or below it; the one above by default."""


class MergedBundle(Document):
    """The bundle that a merge made."""

    bundle: str
    """The range of the bundle."""


class Merges(Resource, tag="bundles"):
    """Answers ``PUT /admin/v2/loadmanager/namespaces/{tenant}/{namespace}/{bundle}/merge``."""

    def __init__(self, service: MergeService) -> None:
        self._service = service

    @operation(
        "PUT",
        "/admin/v2/loadmanager/namespaces/{tenant}/{namespace}/{bundle}/merge",
        Reply(200, "The two bundles are one in the boundaries of the namespace.", MergedBundle),
        Reply(404, "The namespace does not exist, or has no such bundle."),
        Reply(409, "One of the two is being moved, split or merged."),
        Reply(
            412,
            "They are not adjacent, nobody owns one of them, their whole would be split "
            "again at once, or neither owner may have both.",
        ),
        query=MergeQuery,
        leader=True,
    )
    async def merge(self, call: Call) -> web.StreamResponse:
        """Merge a bundle with its neighbour.

        Both go to the owner of the busier one first. Lookups wait while they are merged.
        """
        query: MergeQuery = call.query
        whole = await self._service.merge(
            namespace_in(call), call.path["bundle"], query.neighbour or None
        )
        return json_reply({"bundle": whole.rpartition("/")[2]})

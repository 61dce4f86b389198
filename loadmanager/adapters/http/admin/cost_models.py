"""What traffic was found to cost, for the leader to decide by: published, told, removed."""

from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, Field

from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.replies import empty_reply, json_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.core.cost.document import costs_of, costs_to_json
from loadmanager.core.errors import MalformedContent
from loadmanager.core.wire.fields import Fields
from loadmanager.ports import CostModelService, Unfit

_TAG: Final = "cost model"
_PATH: Final = "/admin/v2/loadmanager/cost-model"
_NONE: Final = Reply(404, "None is published.")


class PublishQuery(BaseModel):
    """Whether to publish what was learned elsewhere."""

    force: bool = Field(
        default=False, description="Publish costs that were learned from another cluster, too."
    )


class CostModels(Resource):
    """Answers under ``/admin/v2/loadmanager/cost-model``."""

    def __init__(self, service: CostModelService) -> None:
        self._service = service

    @operation(
        "GET",
        _PATH,
        tag=_TAG,
        summary="The cost model that is published.",
        role=Role.READ,
        replies=(Reply(200, "The document, as its file has it.", dict[str, Any]), _NONE),
    )
    async def published(self, _call: Call) -> web.StreamResponse:
        """Tell the document as it stands in ZooKeeper."""
        return json_reply(costs_to_json(await self._service.published()))

    @operation(
        "PUT",
        _PATH,
        tag=_TAG,
        summary="Publish a cost model.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It stands; the leader uses it from its next round on."),
            Reply(409, "It was learned from another cluster."),
            Reply(412, "It is no cost model, or too large; the reason names the field."),
        ),
        query=PublishQuery,
        body=dict[str, Any],
    )
    async def publish(self, call: Call) -> web.StreamResponse:
        """Put what the pipeline's `costs` wrote in the place of the model before.

        What is not good enough in it is not decided by; `loadmanager cost-model show` tells.
        """
        try:
            document = costs_of(Fields("the body", call.body))
        except MalformedContent as error:
            raise Unfit(str(error)) from error
        await self._service.publish(document, force=call.query.force)
        return empty_reply(204)

    @operation(
        "DELETE",
        _PATH,
        tag=_TAG,
        summary="Let the leader compute by shares of the traffic again.",
        role=Role.ADMIN,
        replies=(Reply(204, "None is published any more."), _NONE),
    )
    async def remove(self, _call: Call) -> web.StreamResponse:
        """Remove the cost model."""
        await self._service.remove()
        return empty_reply(204)

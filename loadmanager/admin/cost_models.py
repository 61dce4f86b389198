"""The cost model that the leader decides by: publish, show, remove."""

from typing import Any, Final

from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
from loadmanager.common.cost_model_watch import CostModelRequests
from loadmanager.core.cost.document import costs_of, costs_to_json
from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import Fields
from loadmanager.ports.administration import Unfit

_PATH: Final = "/admin/v2/loadmanager/cost-model"
_NONE: Final = Reply(404, "No cost model is published.")


class PublishQuery(Document):
    """Whether to publish costs that were learned elsewhere."""

    force: bool = False
    """Whether to publish costs that were learned from another cluster, too."""


class CostModels(Resource, tag="cost model"):
    """Answers under ``/admin/v2/loadmanager/cost-model``."""

    def __init__(self, service: CostModelRequests) -> None:
        self._service = service

    @operation(
        "GET",
        _PATH,
        Reply(200, "The cost model, in the format of its file.", dict[str, Any]),
        _NONE,
    )
    async def published(self) -> dict[str, Any]:
        """Get the published cost model."""
        return costs_to_json(await self._service.published())

    @operation(
        "PUT",
        _PATH,
        Reply(204, "The cost model is published; the leader uses it from its next round."),
        Reply(409, "The cost model was learned from another cluster."),
        Reply(412, "The body is not a cost model, or is too large; the reason names the field."),
    )
    async def publish(self, query: PublishQuery, body: dict[str, Any]) -> None:
        """Publish a cost model, which replaces the former one.

        The body is the document that the pipeline's `costs` writes. The leader ignores the
        parts of it that are not accurate enough; `loadmanager cost-model show` lists them.
        """
        try:
            document = costs_of(Fields("the body", body))
        except MalformedContent as error:
            raise Unfit(str(error)) from error
        await self._service.publish(document, force=query.force)

    @operation("DELETE", _PATH, Reply(204, "No cost model is published now."), _NONE)
    async def remove(self) -> None:
        """Remove the cost model; the leader computes by shares of the traffic again."""
        await self._service.remove()

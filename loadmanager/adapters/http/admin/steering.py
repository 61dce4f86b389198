"""Pausing the leader, having it only say what it would do, and letting it go on."""

from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from loadmanager.adapters.http.admin.drains import Wish
from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.replies import empty_reply, json_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.ports import SteeringService

_TAG: Final = "balancing"
_PATH: Final = "/admin/v2/loadmanager/balancing"
_DONE: Final = (Reply(204, "It is so, and stays so for every leader to come."),)


class BalancingState(BaseModel):
    """How far the leader goes by itself."""

    mode: Literal["active", "observing", "paused"]
    since_ms: int = Field(serialization_alias="sinceMs", description="0 if nobody ever asked.")
    by: str
    reason: str


class Steers(Resource):
    """Answers under ``/admin/v2/loadmanager/balancing``."""

    def __init__(self, service: SteeringService) -> None:
        self._service = service

    @operation(
        "GET",
        _PATH,
        tag=_TAG,
        summary="How far the leader goes by itself.",
        role=Role.READ,
        replies=(Reply(200, "The mode, and who wanted it.", BalancingState),),
    )
    async def state(self, _call: Call) -> web.StreamResponse:
        """Tell the mode as it stands in ZooKeeper."""
        return json_reply(balancing_to_json(await self._service.state()))

    @operation(
        "PUT",
        f"{_PATH}/pause",
        tag=_TAG,
        summary="Let rounds move nothing and split nothing.",
        role=Role.ADMIN,
        replies=_DONE,
        query=Wish,
    )
    async def pause(self, call: Call) -> web.StreamResponse:
        """Pause the rounds of this and every later leader.

        Bundles that nobody owns are still placed, draining brokers emptied, and requests
        to unload or split carried out.
        """
        return await self._put(call, BalancingMode.PAUSED)

    @operation(
        "PUT",
        f"{_PATH}/observe",
        tag=_TAG,
        summary="Let rounds decide and record, and order nothing.",
        role=Role.ADMIN,
        replies=_DONE,
        query=Wish,
    )
    async def observe(self, call: Call) -> web.StreamResponse:
        """Have rounds only tell what they would move; otherwise as paused."""
        return await self._put(call, BalancingMode.OBSERVING)

    @operation(
        "PUT",
        f"{_PATH}/resume",
        tag=_TAG,
        summary="Let rounds move bundles again.",
        role=Role.ADMIN,
        replies=_DONE,
        query=Wish,
    )
    async def resume(self, call: Call) -> web.StreamResponse:
        """Go on as configured."""
        return await self._put(call, BalancingMode.ACTIVE)

    async def _put(self, call: Call, mode: BalancingMode) -> web.StreamResponse:
        wish: Wish = call.query
        await self._service.put(mode, **wish.told())
        return empty_reply(204)


def balancing_to_json(balancing: Balancing) -> dict[str, Any]:
    """Return the mode as a JSON object."""
    return {
        "mode": balancing.mode.value,
        "sinceMs": balancing.since_ms,
        "by": balancing.by,
        "reason": balancing.reason,
    }

"""Pausing the leader, having it only say what it would do, and letting it go on."""

from typing import Final

from aiohttp import web

from loadmanager.adapters.http.operations import Call, Document, Reply, Resource, operation
from loadmanager.adapters.http.replies import empty_reply, json_reply
from loadmanager.admin.drains import Wish
from loadmanager.common.balancing_mode import BalancingModeRequests
from loadmanager.core.balancing import BalancingMode

_PATH: Final = "/admin/v2/loadmanager/balancing"
_DONE: Final = (Reply(204, "The mode is set, for this and every later leader."),)


class BalancingState(Document):
    """The balancing mode."""

    mode: BalancingMode
    since_ms: int
    """0 if the mode was never set."""
    by: str
    reason: str


class Steers(Resource, tag="balancing"):
    """Answers under ``/admin/v2/loadmanager/balancing``."""

    def __init__(self, service: BalancingModeRequests) -> None:
        self._service = service

    @operation("GET", _PATH, Reply(200, "The mode, with its author and reason.", BalancingState))
    async def state(self, _call: Call) -> web.StreamResponse:
        """Get the balancing mode."""
        return json_reply(BalancingState.model_validate(await self._service.state()))

    @operation("PUT", f"{_PATH}/pause", *_DONE, query=Wish)
    async def pause(self, call: Call) -> web.StreamResponse:
        """Pause the rounds of this and every later leader: they move and split nothing.

        Bundles without an owner are still placed, draining brokers are still emptied, and requests
        to unload or split are still carried out.
        """
        return await self._put(call, BalancingMode.PAUSED)

    @operation("PUT", f"{_PATH}/observe", *_DONE, query=Wish)
    async def observe(self, call: Call) -> web.StreamResponse:
        """Let rounds decide and record, and order nothing.

        What a paused leader carries out is carried out in this mode as well.
        """
        return await self._put(call, BalancingMode.OBSERVING)

    @operation("PUT", f"{_PATH}/resume", *_DONE, query=Wish)
    async def resume(self, call: Call) -> web.StreamResponse:
        """Let rounds move bundles again."""
        return await self._put(call, BalancingMode.ACTIVE)

    async def _put(self, call: Call, mode: BalancingMode) -> web.StreamResponse:
        wish: Wish = call.query
        await self._service.put(mode, **wish.kept())
        return empty_reply(204)

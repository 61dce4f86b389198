from typing import Final

from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
from loadmanager.admin.drains import AuthorQuery
from loadmanager.common.documents import BalancingModeRequests
from loadmanager.core.balancing import Balancing, BalancingMode

_PATH: Final = "/admin/v2/loadmanager/balancing"
_DONE: Final = (Reply(204, "The mode is set, for this and every later leader."),)


class BalancingState(Document):
    """The balancing mode."""

    mode: BalancingMode
    since_ms: int
    """The time when the mode was set, in milliseconds since 1970; 0 if it never was."""
    by: str
    reason: str


class BalancingModes(Resource, tag="balancing"):
    def __init__(self, service: BalancingModeRequests) -> None:
        self._service = service

    @operation("GET", _PATH, Reply(200, "The mode, with its author and reason.", BalancingState))
    async def state(self) -> Balancing:
        """Get the balancing mode."""
        return await self._service.state()

    @operation("PUT", f"{_PATH}/pause", *_DONE)
    async def pause(self, query: AuthorQuery) -> None:
        """Pause the rounds of this and every later leader, which then move and split nothing.

        Bundles without an owner are still placed, draining brokers are still emptied, and requests
        to unload or split are still carried out.
        """
        await self._service.put(BalancingMode.PAUSED, **query.kept())

    @operation("PUT", f"{_PATH}/observe", *_DONE)
    async def observe(self, query: AuthorQuery) -> None:
        """Have rounds decide and record their decisions, but order no moves.

        The leader carries out the same as while it is paused.
        """
        await self._service.put(BalancingMode.OBSERVING, **query.kept())

    @operation("PUT", f"{_PATH}/resume", *_DONE)
    async def resume(self, query: AuthorQuery) -> None:
        """Let rounds move bundles again."""
        await self._service.put(BalancingMode.ACTIVE, **query.kept())

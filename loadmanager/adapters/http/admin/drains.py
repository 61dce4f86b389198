"""Emptying a broker, and letting it take bundles again."""

from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, Field

from loadmanager.adapters.http.admin.names import broker_in
from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query
from loadmanager.adapters.http.replies import empty_reply, json_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.ports import DrainService, DrainStatus

_BROKER: Final = "/admin/v2/loadmanager/brokers/{broker}"
_PATH: Final = f"{_BROKER}/drain"
_LONGEST: Final = 500
_TAG: Final = "draining"
_UNKNOWN: Final = Reply(404, "No such broker is registered.")


class Wish(Query):
    """Who wants something, and why; kept for those who ask later."""

    by: str = Field("", description=f"Who wants it; up to {_LONGEST} characters are kept.")
    reason: str = Field("", description=f"Why; up to {_LONGEST} characters are kept.")

    def told(self) -> dict[str, str]:
        """Return both, cut to what is kept."""
        return {"by": self.by[:_LONGEST], "reason": self.reason[:_LONGEST]}


class Marked(BaseModel):
    """The wish to have a broker emptied."""

    since_ms: int = Field(serialization_alias="sinceMs")
    by: str
    reason: str


class DrainState(BaseModel):
    """How far a broker is from being empty."""

    broker: str
    registered: bool
    draining: bool = Field(description="What the broker says: its sidecar has seen the mark.")
    bundles_left: int = Field(serialization_alias="bundlesLeft")
    marked: Marked | None


class Drains(Resource):
    """Answers ``/admin/v2/loadmanager/brokers/{broker}[/drain]``."""

    def __init__(self, service: DrainService) -> None:
        self._service = service

    @operation(
        "PUT",
        _PATH,
        tag=_TAG,
        summary="Have a broker emptied, and keep it empty.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It is marked; the leader moves its bundles, a few at a time."),
            _UNKNOWN,
        ),
        query=Wish,
    )
    async def mark(self, call: Call) -> web.StreamResponse:
        """Mark the broker; a mark that stands already is kept."""
        wish: Wish = call.query
        await self._service.mark(broker_in(call), **wish.told())
        return empty_reply(204)

    @operation(
        "DELETE",
        _PATH,
        tag=_TAG,
        summary="Let a broker take bundles again.",
        role=Role.ADMIN,
        replies=(Reply(204, "It has no mark (any more)."),),
    )
    async def unmark(self, call: Call) -> web.StreamResponse:
        """Take the mark away; without one there is nothing to do."""
        await self._service.unmark(broker_in(call))
        return empty_reply(204)

    @operation(
        "GET",
        _BROKER,
        tag=_TAG,
        summary="How many bundles are left on a broker, and who wants it empty.",
        role=Role.READ,
        replies=(
            Reply(200, "The state.", DrainState),
            Reply(404, "No such broker is registered or marked."),
        ),
    )
    async def status(self, call: Call) -> web.StreamResponse:
        """Tell how many bundles are left on the broker."""
        return json_reply(drain_status_to_json(await self._service.status(broker_in(call))))


def drain_status_to_json(status: DrainStatus) -> dict[str, Any]:
    """Return a status as a JSON object; ``marked`` is null without a mark."""
    mark = status.mark
    return {
        "broker": status.broker,
        "registered": status.registered,
        "draining": status.draining,
        "bundlesLeft": status.bundles_left,
        "marked": mark and {"sinceMs": mark.since_ms, "by": mark.by, "reason": mark.reason},
    }

"""Emptying a broker, and letting it take bundles again."""

from typing import Final

from aiohttp import web
from pydantic import Field

from loadmanager.adapters.http.admin.names import broker_in
from loadmanager.adapters.http.operations import Call, Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query
from loadmanager.adapters.http.replies import empty_reply, json_reply
from loadmanager.ports import DrainService

_BROKER: Final = "/admin/v2/loadmanager/brokers/{broker}"
_PATH: Final = f"{_BROKER}/drain"
_LONGEST: Final = 500
_UNKNOWN: Final = Reply(404, "The broker is not registered.")


class Wish(Query):
    """The author of a request and the reason, which later queries return."""

    by: str = ""
    """The author of the request; up to 500 characters are kept."""
    reason: str = ""
    """The reason; up to 500 characters are kept."""

    def told(self) -> dict[str, str]:
        """Return both, cut to what is kept."""
        return {"by": self.by[:_LONGEST], "reason": self.reason[:_LONGEST]}


class Marked(Document):
    """The drain mark of a broker."""

    since_ms: int
    by: str
    reason: str


class DrainState(Document):
    """The drain status of a broker."""

    broker: str
    registered: bool
    draining: bool
    """Whether its own report says so: its sidecar has seen the mark."""
    bundles_left: int
    marked: Marked | None = Field(validation_alias="mark")


class Drains(Resource, tag="draining"):
    """Answers ``/admin/v2/loadmanager/brokers/{broker}[/drain]``."""

    def __init__(self, service: DrainService) -> None:
        self._service = service

    @operation(
        "PUT",
        _PATH,
        Reply(204, "The broker is marked; the leader moves its bundles, a few at a time."),
        _UNKNOWN,
        query=Wish,
    )
    async def mark(self, call: Call) -> web.StreamResponse:
        """Drain a broker, and keep it empty.

        A mark that stands already is kept.
        """
        wish: Wish = call.query
        await self._service.mark(broker_in(call), **wish.told())
        return empty_reply(204)

    @operation("DELETE", _PATH, Reply(204, "The broker has no mark."))
    async def unmark(self, call: Call) -> web.StreamResponse:
        """Let a broker take bundles again.

        A broker without a mark is left as it is.
        """
        await self._service.unmark(broker_in(call))
        return empty_reply(204)

    @operation(
        "GET",
        _BROKER,
        Reply(200, "The drain status.", DrainState),
        Reply(404, "The broker is neither registered nor marked."),
    )
    async def status(self, call: Call) -> web.StreamResponse:
        """Get the number of bundles that are left on a broker, and its drain mark."""
        return json_reply(DrainState.model_validate(await self._service.status(broker_in(call))))

"""Emptying a broker, and letting it take bundles again."""

from typing import Any, Final

from aiohttp import web

from loadmanager.adapters.http.replies import Refused, empty_reply, json_reply
from loadmanager.adapters.http.routes import Route, Target
from loadmanager.core.ids import parse_broker
from loadmanager.ports import BrokerUnknown, DrainService, DrainStatus

_PATH: Final = "/admin/v2/loadmanager/brokers/{}/drain"
_LONGEST: Final = 500


class Drains:
    """Answers ``/admin/v2/loadmanager/brokers/{broker}/drain``."""

    def __init__(self, service: DrainService) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the routes of this file."""
        return [
            Route("PUT", _PATH, self.mark),
            Route("DELETE", _PATH, self.unmark),
            Route("GET", _PATH, self.status),
        ]

    async def mark(self, _request: web.BaseRequest, target: Target) -> web.StreamResponse:
        """Have the broker emptied; who wants it and why come as ``by`` and ``reason``."""
        told = {name: target.query(name)[:_LONGEST] for name in ("by", "reason")}
        try:
            await self._service.mark(parse_broker(target.captured[0]), **told)
        except BrokerUnknown as error:
            raise Refused(404, str(error)) from error
        return empty_reply(204)

    async def unmark(self, _request: web.BaseRequest, target: Target) -> web.StreamResponse:
        """Let the broker take bundles again."""
        await self._service.unmark(parse_broker(target.captured[0]))
        return empty_reply(204)

    async def status(self, _request: web.BaseRequest, target: Target) -> web.StreamResponse:
        """Tell how many bundles are left on the broker."""
        try:
            status = await self._service.status(parse_broker(target.captured[0]))
        except BrokerUnknown as error:
            raise Refused(404, str(error)) from error
        return json_reply(drain_status_to_json(status))


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

"""Unloading bundles by hand, as Pulsar's admin REST has it."""

from typing import Final

from aiohttp import web

from loadmanager.adapters.http.accounts import at_the_leader
from loadmanager.adapters.http.replies import Refused, empty_reply
from loadmanager.adapters.http.routes import Route, Target
from loadmanager.core.ids import BrokerId, parse_broker, parse_namespace
from loadmanager.ports import BundleUnknown, UnloadRefused, UnloadService

_SCHEMES: Final = ("http://", "https://")


class Unloads:
    """Answers ``PUT /admin/v2/namespaces/{tenant}/{namespace}[/{bundle}]/unload``."""

    def __init__(self, service: UnloadService) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the routes of this file."""
        return [
            Route("PUT", "/admin/v2/namespaces/{}/{}/unload", at_the_leader(self.unload)),
            Route("PUT", "/admin/v2/namespaces/{}/{}/{}/unload", at_the_leader(self.unload)),
        ]

    async def unload(self, target: Target) -> web.StreamResponse:
        """Have bundles move; 204 when their next owners have them, 307 to the leader."""
        tenant, name, *ranges = target.captured
        destination = _destination(target.query("destinationBroker")) if ranges else None
        try:
            await self._service.unload(
                parse_namespace(f"{tenant}/{name}"), ranges[0] if ranges else None, destination
            )
        except BundleUnknown as error:
            raise Refused(404, str(error)) from error
        except UnloadRefused as error:
            raise Refused(409, str(error)) from error
        return empty_reply(204)


def _destination(text: str) -> BrokerId | None:
    """Return the broker named by its id or by its web service's URL, None for no name."""
    text = text.strip()
    for scheme in _SCHEMES:
        if text.lower().startswith(scheme):
            return parse_broker(text[len(scheme) :].rstrip("/"))
    return parse_broker(text) if text else None

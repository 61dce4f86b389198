"""Unloading bundles by hand: Pulsar's admin paths, and one that says where a bundle went."""

from typing import Annotated, Final

from aiohttp import web
from pydantic import Field, PlainSerializer

from loadmanager.adapters.http.admin.names import namespace_in
from loadmanager.adapters.http.operations import Call, Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Flag, Query
from loadmanager.adapters.http.replies import empty_reply, json_reply
from loadmanager.core.ids import BrokerId, parse_broker
from loadmanager.ports import UnloadService

_SCHEMES: Final = ("http://", "https://")


class UnloadQuery(Query):
    """How all bundles of a namespace are unloaded."""

    authoritative: Flag = False
    """Of no effect: redirects go to the leader."""


class BundleUnloadQuery(UnloadQuery):
    """How one bundle is unloaded."""

    destination: str = Field("", alias="destinationBroker")
    """Where the bundle is to go: a broker's id, `host:port`, or the URL of its web service.
    Isolation, anti-affinity and load do not count then."""


class UnloadedBundle(Document):
    """The result of an unload."""

    bundle: str
    source: str | None
    """The former owner; null if the bundle had none."""
    target: str | None
    """The present owner; null if the bundle has none, or was split meanwhile."""
    took_s: Annotated[float, PlainSerializer(lambda took_s: round(took_s, 4), float)]
    """Seconds from the order until the new owner served it."""


class Unloads(Resource, tag="bundles"):
    """Answers ``PUT /admin/v2/namespaces/{tenant}/{namespace}[/{bundle}]/unload``.

    The same below ``/admin/v2/loadmanager`` answers with where the bundle went.
    """

    def __init__(self, service: UnloadService) -> None:
        self._service = service

    @operation(
        "PUT",
        "/admin/v2/namespaces/{tenant}/{namespace}/unload",
        Reply(204, "The next owners serve the bundles; bundles without an owner were left alone."),
        Reply(404, "The namespace does not exist."),
        query=UnloadQuery,
        leader=True,
    )
    async def unload_all(self, call: Call) -> web.StreamResponse:
        """Move all bundles of a namespace to other brokers, a few at a time."""
        await self._service.unload(namespace_in(call), None, None)
        return empty_reply(204)

    @operation(
        "PUT",
        "/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/unload",
        Reply(204, "The next owner serves the bundle, or the bundle had no owner."),
        Reply(404, "The namespace does not exist, or has no such bundle."),
        Reply(409, "The destination is not registered, is draining, or does not report."),
        query=BundleUnloadQuery,
        leader=True,
    )
    async def unload(self, call: Call) -> web.StreamResponse:
        """Move one bundle to another broker.

        Without a destination, the bundle moves to the best broker other than its owner.
        """
        query: BundleUnloadQuery = call.query
        destination = _destination(query.destination)
        await self._service.unload(namespace_in(call), call.path["bundle"], destination)
        return empty_reply(204)

    @operation(
        "PUT",
        "/admin/v2/loadmanager/namespaces/{tenant}/{namespace}/{bundle}/unload",
        Reply(200, "The next owner serves the bundle, or the bundle has no owner.", UnloadedBundle),
        Reply(404, "The namespace does not exist, or has no such bundle."),
        Reply(409, "The destination is not registered, is draining, or does not report."),
        query=BundleUnloadQuery,
        leader=True,
    )
    async def unload_and_tell(self, call: Call) -> web.StreamResponse:
        """Move one bundle to another broker, and return where it went."""
        query: BundleUnloadQuery = call.query
        destination = _destination(query.destination)
        (one,) = await self._service.unload(namespace_in(call), call.path["bundle"], destination)
        return json_reply(UnloadedBundle.model_validate(one))


def _destination(text: str) -> BrokerId | None:
    """Return the broker named by its id or by its web service's URL, None for no name."""
    text = text.strip()
    for scheme in _SCHEMES:
        if text.lower().startswith(scheme):
            return parse_broker(text[len(scheme) :].rstrip("/"))
    return parse_broker(text) if text else None

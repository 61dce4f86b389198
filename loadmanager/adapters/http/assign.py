"""The leader's answers to other sidecars' requests for the owner of a bundle."""

from typing import Any, Final

from aiohttp import web

from loadmanager.adapters.http.bodies import json_object
from loadmanager.adapters.http.replies import Refused, json_reply
from loadmanager.adapters.http.routes import Role, Route, Target
from loadmanager.core.bounds import Bound
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BundleId, parse_bundle
from loadmanager.ports.lookup import LookupService

ASSIGN_PATH: Final = "/loadmanager/v1/assign"
SERVED_PATH: Final = "/loadmanager/v1/served"

_WITHIN_S: Final = Bound(0.0, 10.0, "seconds from 0 to 10")


class AssignResource:
    """Answers ``POST /loadmanager/v1/assign`` and ``/loadmanager/v1/served``.

    By the epoch in an answer the client recognizes a leader that has been replaced.
    """

    def __init__(self, lookup: LookupService) -> None:
        self._lookup = lookup

    def routes(self) -> list[Route]:
        """Return the routes of this file."""
        # They do what a lookup does, so they need the same role.
        return [
            Route("POST", ASSIGN_PATH, self.assign, Role.LOOKUP),
            Route("POST", SERVED_PATH, self.served, Role.LOOKUP),
        ]

    async def assign(self, request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Place the bundle named in the body."""
        broker = await self._lookup.assign(_bundle(await json_object(request)))
        return self._reply(broker=broker)

    async def served(self, request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Place the bundle named in the body, and answer once it is served.

        The broker is null if it is not within the ``within_s`` of the body.
        """
        body = await json_object(request)
        bundle = _bundle(body)
        within_s: Any = body.get("within_s")
        if not _WITHIN_S.holds(within_s):
            raise Refused(400, f"within_s = {within_s!a:.80}; expected {_WITHIN_S.expected}")
        holder = await self._lookup.until_served(bundle, within_s)
        if holder is None:
            return self._reply(broker=None, fencing_token=None)
        return self._reply(broker=holder.broker, fencing_token=holder.fencing_token)

    def _reply(self, **answer: object) -> web.StreamResponse:
        leader = self._lookup.leader
        return json_reply({**answer, "epoch": leader.epoch if leader else 0})


def _bundle(body: dict[str, object]) -> BundleId:
    given = body.get("bundle")
    if not isinstance(given, str):
        raise Refused(400, f"bundle = {given!r}; expected a text")
    try:
        return parse_bundle(given)
    except InvalidName as error:
        raise Refused(400, str(error)) from error

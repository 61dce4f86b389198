"""The leader's answers to other sidecars' requests for the owner of a bundle."""

from aiohttp import web

from loadmanager.adapters.http.bodies import json_object
from loadmanager.adapters.http.replies import Refused, json_reply
from loadmanager.adapters.http.routes import Role, Route, Target
from loadmanager.core.bounds import Bound
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import parse_bundle
from loadmanager.ports.lookup import LookupService

_SERVED_WITHIN_S = Bound(0.0, 10.0, "seconds from 0 to 10")

ASSIGN_PATH = "/loadmanager/v1/assign"


class AssignResource:
    """Answers ``POST /loadmanager/v1/assign``."""

    def __init__(self, lookup: LookupService) -> None:
        self._lookup = lookup

    def routes(self) -> list[Route]:
        """Return the routes of this file."""
        # It does what a lookup does, so it needs the same role.
        return [Route("POST", ASSIGN_PATH, self.assign, Role.LOOKUP)]

    async def assign(self, request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Place the bundle named in the body, and wait for its owner if the body says so.

        By the epoch the client recognizes the answer of a leader that has been replaced. The
        broker is null if the time was over before the decision.
        """
        body = await json_object(request)
        given, served_within_s = body.get("bundle"), body.get("served_within_s", 0.0)
        if not _SERVED_WITHIN_S.holds(served_within_s):
            expected = _SERVED_WITHIN_S.expected
            raise Refused(400, f"served_within_s = {served_within_s!a:.80}; expected {expected}")
        if not isinstance(given, str):
            raise Refused(400, f"bundle = {given!r}; expected a text")
        try:
            bundle = parse_bundle(given)
        except InvalidName as error:
            raise Refused(400, str(error)) from error
        broker = await self._lookup.assign(bundle, served_within_s)
        leader = self._lookup.leader
        return json_reply({"broker": broker, "epoch": leader.epoch if leader else 0})

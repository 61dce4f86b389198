from typing import Final

from aiohttp import web

from loadmanager.adapters.http.parameters import json_object
from loadmanager.adapters.http.replies import Refused, json_reply
from loadmanager.adapters.http.routes import Role, Route, Target
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import parse_bundle
from loadmanager.ports.lookup import LookupService

ASSIGN_PATH: Final = "/loadmanager/v1/assign"


class AssignResource:
    def __init__(self, lookup: LookupService) -> None:
        self._lookup = lookup

    def routes(self) -> list[Route]:
        # It does what a lookup does, so it needs the same role.
        return [Route("POST", ASSIGN_PATH, self.assign, Role.LOOKUP)]

    async def assign(self, request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Place the bundle named in the body.

        By the epoch the client recognizes the answer of a leader that has been replaced.
        """
        given = (await json_object(request)).get("bundle")
        if not isinstance(given, str):
            raise Refused(400, f"bundle = {given!r}; expected a text")
        try:
            bundle = parse_bundle(given)
        except InvalidName as error:
            raise Refused(400, str(error)) from error
        broker = await self._lookup.assign(bundle)
        leader = self._lookup.leader
        return json_reply({"broker": broker, "epoch": leader.epoch if leader else 0})

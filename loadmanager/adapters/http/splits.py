"""Splitting a bundle by hand, as Pulsar's admin REST has it."""

import json
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from loadmanager.adapters.http.replies import Refused, empty_reply
from loadmanager.adapters.http.routes import Route, Target
from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.ids import parse_namespace
from loadmanager.core.orders import SplitOrder
from loadmanager.ports import (
    BundleUnknown,
    NotLeader,
    SplitRefused,
    SplitService,
    Unavailable,
)

DEFAULT_ALGORITHM: Final = "range_equally_divide"


class Splits:
    """Answers ``PUT /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split``."""

    def __init__(self, service: SplitService, default_algorithm: str = DEFAULT_ALGORITHM) -> None:
        self._service = service
        self._default_algorithm = default_algorithm

    def routes(self) -> list[Route]:
        """Return the routes of this file."""
        return [Route("PUT", "/admin/v2/namespaces/{}/{}/{}/split", self.split)]

    async def split(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        """Have the bundle cut; 204 when its parts are there, 307 to the leader's sidecar."""
        tenant, name, chosen = target.captured
        algorithm = target.query("splitAlgorithmName") or self._default_algorithm
        order = SplitOrder(algorithm, _positions(await request.read()))
        try:
            await self._service.split(parse_namespace(f"{tenant}/{name}"), chosen, order)
        except NotLeader as error:
            return self._to_leader(request, error)
        except BundleUnknown as error:
            raise Refused(404, str(error)) from error
        except SplitRefused as error:
            raise Refused(412, str(error)) from error
        return empty_reply(204)

    def _to_leader(self, request: web.BaseRequest, error: NotLeader) -> web.StreamResponse:
        leader = self._service.leader
        if leader is None:
            raise Unavailable("no leader is elected") from error
        here = urlsplit(request.raw_path)
        location = f"{leader.sidecar_url}{here.path}" + (f"?{here.query}" if here.query else "")
        return empty_reply(307, {"Location": location})


def _positions(body: bytes) -> tuple[int, ...]:
    """Return the positions in a request's body: none, or a JSON array of whole numbers."""
    if not body.strip():
        return ()
    try:
        given = json.loads(body)
    except ValueError as error:
        raise Refused(
            400, f"the body is no JSON ({error}); expected an array of positions"
        ) from None
    if given is None:
        return ()
    if not isinstance(given, list) or not all(
        type(at) is int and 0 <= at <= FULL_RANGE_END for at in given
    ):
        raise Refused(
            400, f"positions {given!r:.80}; expected whole numbers up to {FULL_RANGE_END}"
        )
    return tuple(given)

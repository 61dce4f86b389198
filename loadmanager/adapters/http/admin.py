"""The part of Pulsar's admin REST that clients and tools ask a load manager for."""

import re
from typing import Any, Final

from aiohttp import web

from loadmanager.adapters.http.bodies import json_object
from loadmanager.adapters.http.replies import Refused, empty_reply, json_reply, text_reply
from loadmanager.adapters.http.routes import Route, Target
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import DOMAINS, Namespace, parse_namespace, topic_from_parts
from loadmanager.ports import LookupService

_BOUND: Final = re.compile(r"0x[0-9a-fA-F]{1,8}")
# The boundaries of one namespace live in one znode, and a znode holds 1 MB.
_MAX_BUNDLES: Final = 65_536


class Admin:
    """Answers under ``/admin/v2``."""

    def __init__(self, lookup: LookupService, *, default_bundles: int, version: str) -> None:
        self._lookup = lookup
        self._default_bundles = default_bundles
        self._version = version

    def routes(self) -> list[Route]:
        """Return the routes of this file."""
        topics = [
            Route("GET", f"/admin/v2/{domain}/{{}}/{{}}/{{}}/partitions", self.partitions)
            for domain in DOMAINS
        ]
        return [
            *topics,
            Route("PUT", "/admin/v2/namespaces/{}/{}", self.create_namespace),
            Route("GET", "/admin/v2/namespaces/{}/{}/bundles", self.bundles),
            Route("GET", "/admin/v2/brokers/leaderBroker", self.leader_broker),
            Route("GET", "/admin/v2/brokers/health", self.health),
            Route("GET", "/admin/v2/brokers/ready", self.health),
            Route("GET", "/admin/v2/brokers/version", self.version),
        ]

    async def partitions(self, _request: web.BaseRequest, target: Target) -> web.StreamResponse:
        """Tell how many partitions a topic has; no client starts without knowing."""
        domain = target.path.split("/")[3]
        topic = topic_from_parts(domain, *target.captured)
        return json_reply({"partitions": await self._lookup.partitions(topic)})

    async def create_namespace(
        self, request: web.BaseRequest, target: Target
    ) -> web.StreamResponse:
        """Create a namespace; of its policies only the bundles are ours."""
        namespace = parse_namespace("/".join(target.captured))
        policies = await json_object(request)
        await self._lookup.create_namespace(
            boundaries_of(namespace, policies.get("bundles"), self._default_bundles)
        )
        return empty_reply(204)

    async def bundles(self, _request: web.BaseRequest, target: Target) -> web.StreamResponse:
        """Tell the boundaries of a namespace's bundles."""
        boundaries = await self._lookup.boundaries(parse_namespace("/".join(target.captured)))
        bounds = [f"0x{bound:08x}" for bound in boundaries.bounds]
        return json_reply({"boundaries": bounds, "numBundles": len(bounds) - 1})

    async def leader_broker(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Tell who leads."""
        leader = self._lookup.leader
        if leader is None:
            raise Refused(404, "Couldn't find leader broker")
        return json_reply({"brokerId": leader.broker, "serviceUrl": leader.service_url})

    async def health(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Say ``ok`` if lookups can be answered from a current picture."""
        readiness = self._lookup.readiness()
        if not readiness.ready:
            raise Refused(503, "; ".join(readiness.reasons) or "not ready")
        return text_reply("ok")

    async def version(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Tell this sidecar's version."""
        return text_reply(self._version)


def boundaries_of(namespace: Namespace, bundles: object, default_count: int) -> Boundaries:
    """Return the boundaries that a policies object's ``bundles`` asks for.

    As in Pulsar, ``boundaries`` win over ``numBundles``, in any order and with
    repetitions; they must reach from ``0x00000000`` to ``0xffffffff``.

    Raises:
        Refused: the object is malformed (400) or asks for what cannot be (412).
    """
    if bundles is None:
        return Boundaries.even(namespace, default_count)
    if not isinstance(bundles, dict):
        raise Refused(400, f"bundles = {bundles!r}; expected an object")
    given = bundles.get("boundaries")
    if given:
        return Boundaries(namespace, _bounds(given))
    return Boundaries.even(namespace, _count(bundles.get("numBundles"), default_count))


def _count(given: Any, default_count: int) -> int:
    if given is None:
        return default_count
    if type(given) is not int:
        raise Refused(400, f"bundles.numBundles = {given!r}; expected a whole number")
    if not 0 < given <= _MAX_BUNDLES:
        raise Refused(412, f"bundles.numBundles = {given}; expected 1 to {_MAX_BUNDLES}")
    return given


def _bounds(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list):
        raise Refused(400, f"bundles.boundaries = {given!r}; expected an array")
    wrong = next(
        (bound for bound in given if not isinstance(bound, str) or not _BOUND.fullmatch(bound)),
        None,
    )
    if wrong is not None:
        raise Refused(412, f"bundles.boundaries holds {wrong!r}; expected texts like 0x40000000")
    if len(given) > _MAX_BUNDLES + 1:
        raise Refused(412, f"bundles.boundaries has {len(given)}; at most {_MAX_BUNDLES + 1}")
    return tuple(sorted({int(bound, 16) for bound in given}))

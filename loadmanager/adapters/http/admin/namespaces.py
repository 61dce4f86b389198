"""Namespaces and their bundles."""

import re
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from loadmanager.adapters.http.admin.names import namespace_in
from loadmanager.adapters.http.operations import Call, Reply, operation, routes_of
from loadmanager.adapters.http.replies import Refused, empty_reply, json_reply
from loadmanager.adapters.http.routes import Role, Route
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace
from loadmanager.ports import LookupService

_BOUND: Final = re.compile(r"0x[0-9a-fA-F]{1,8}")
# The boundaries of one namespace live in one znode, and a znode holds 1 MB.
_MAX_BUNDLES: Final = 65_536
_TAG: Final = "namespaces"


class Bundles(BaseModel):
    """How a namespace is cut into bundles."""

    boundaries: list[str] | None = Field(
        None,
        description="The bounds, from `0x00000000` to `0xffffffff`; they win over numBundles.",
    )
    num_bundles: int | None = Field(
        None,
        alias="numBundles",
        description="So many bundles of equal width.",
        json_schema_extra={"minimum": 1, "maximum": _MAX_BUNDLES},
    )


class Policies(BaseModel):
    """A namespace's policies; of Pulsar's many we use the bundles, and keep the others."""

    model_config = ConfigDict(extra="allow")

    bundles: Bundles | None = None


class Namespaces:
    """Answers under ``/admin/v2/namespaces``."""

    def __init__(self, lookup: LookupService, *, default_bundles: int) -> None:
        self._lookup = lookup
        self._default_bundles = default_bundles

    def routes(self) -> list[Route]:
        """Return the routes of this file."""
        return routes_of(self)

    @operation(
        "PUT",
        "/admin/v2/namespaces/{tenant}/{namespace}",
        tag=_TAG,
        summary="Create a namespace, with its bundles.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It is created."),
            Reply(409, "It exists."),
            Reply(412, "The name cannot be one, or the bundles do not tile the circle."),
        ),
        body=Policies,
        body_optional=True,
    )
    async def create(self, call: Call) -> web.StreamResponse:
        """Create a namespace; of its policies only the bundles are ours."""
        namespace = namespace_in(call)
        policies: Policies | None = call.body
        bundles = policies.bundles if policies else None
        await self._lookup.create_namespace(
            boundaries_of(namespace, bundles, self._default_bundles)
        )
        return empty_reply(204)

    @operation(
        "GET",
        "/admin/v2/namespaces/{tenant}/{namespace}/bundles",
        tag=_TAG,
        summary="The boundaries of a namespace's bundles.",
        role=Role.READ,
        replies=(
            Reply(200, "The boundaries.", Bundles),
            Reply(404, "There is no such namespace."),
        ),
    )
    async def bundles(self, call: Call) -> web.StreamResponse:
        """Tell the boundaries of a namespace's bundles."""
        return json_reply(bundles_to_json(await self._lookup.boundaries(namespace_in(call))))


def bundles_to_json(boundaries: Boundaries) -> dict[str, Any]:
    """Return boundaries as Pulsar's `BundlesData`."""
    bounds = [f"0x{bound:08x}" for bound in boundaries.bounds]
    return {"boundaries": bounds, "numBundles": len(bounds) - 1}


def boundaries_of(namespace: Namespace, bundles: Bundles | None, default_count: int) -> Boundaries:
    """Return the boundaries that a policies object's ``bundles`` asks for.

    As in Pulsar, ``boundaries`` win over ``numBundles``, in any order and with
    repetitions; they must reach from ``0x00000000`` to ``0xffffffff``.

    Raises:
        Refused: the bundles are what cannot be (412).
    """
    if bundles is not None and bundles.boundaries:
        return Boundaries(namespace, _bounds(bundles.boundaries))
    count = bundles.num_bundles if bundles is not None else None
    if count is None:
        return Boundaries.even(namespace, default_count)
    if not 0 < count <= _MAX_BUNDLES:
        raise Refused(412, f"bundles.numBundles = {count}; expected 1 to {_MAX_BUNDLES}")
    return Boundaries.even(namespace, count)


def _bounds(given: list[str]) -> tuple[int, ...]:
    if len(given) > _MAX_BUNDLES + 1:
        raise Refused(412, f"bundles.boundaries has {len(given)}; at most {_MAX_BUNDLES + 1}")
    wrong = next((bound for bound in given if not _BOUND.fullmatch(bound)), None)
    if wrong is not None:
        raise Refused(412, f"bundles.boundaries holds {wrong!r}; expected texts like 0x40000000")
    return tuple(sorted({int(bound, 16) for bound in given}))

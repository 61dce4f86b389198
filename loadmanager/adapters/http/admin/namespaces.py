"""Namespaces and their bundles."""

import re
from typing import Any, Final

from aiohttp import web
from pydantic import ConfigDict, Field

from loadmanager.adapters.http.admin.names import namespace_in
from loadmanager.adapters.http.operations import Call, Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Flag, Query
from loadmanager.adapters.http.replies import Refused, empty_reply, json_reply
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace, parse_namespace
from loadmanager.core.wire.namespaces import bundles_to_json
from loadmanager.ports import LookupService, NamespaceService

_BOUND: Final = re.compile(r"0x[0-9a-fA-F]{1,8}")
# A new namespace's boundaries are written twice in one commit, and that holds 1 MB.
_MAX_BUNDLES: Final = 32_768


class Bundles(Document):
    """The bundles of a namespace."""

    boundaries: list[str] | None = None
    """The boundaries, from `0x00000000` to `0xffffffff`; they take precedence over numBundles."""
    num_bundles: int | None = Field(
        None, alias="numBundles", json_schema_extra={"minimum": 0, "maximum": _MAX_BUNDLES}
    )
    """The number of bundles of equal width; 0 for the default."""


class Policies(Document):
    """The policies of a namespace; only the bundles are used, and the others are kept."""

    model_config = ConfigDict(extra="allow")

    bundles: Bundles | None = None


class DeletionQuery(Query):
    """How a namespace is deleted."""

    force: Flag = False
    """Also deletes a namespace with topics."""
    authoritative: Flag = False
    """Of no effect: redirects go to the leader."""


class Namespaces(Resource, tag="namespaces"):
    """Answers under ``/admin/v2/namespaces``."""

    def __init__(
        self, lookup: LookupService, service: NamespaceService, *, default_bundles: int
    ) -> None:
        self._lookup = lookup
        self._service = service
        self._default_bundles = default_bundles

    @operation(
        "GET",
        "/admin/v2/namespaces/{tenant}",
        Reply(200, "As `tenant/namespace`, sorted.", list[str]),
        Reply(404, "The tenant does not exist."),
    )
    async def of_tenant(self, call: Call) -> web.StreamResponse:
        """List the namespaces of a tenant."""
        tenant = call.path["tenant"]
        parse_namespace(f"{tenant}/any")
        return json_reply(list(await self._service.of_tenant(tenant)))

    @operation(
        "PUT",
        "/admin/v2/namespaces/{tenant}/{namespace}",
        Reply(204, "The namespace is created, and its tenant if that did not exist."),
        Reply(
            409,
            "The namespace exists, or brokers still hold bundles of a deleted one of that name.",
        ),
        Reply(412, "The name is not valid, or the bundles do not cover the whole hash range."),
        body=Policies | None,
        body_optional=True,
    )
    async def create(self, call: Call) -> web.StreamResponse:
        """Create a namespace with its bundles.

        Of the policies only the bundles are used; the others are kept as they are.
        """
        namespace = namespace_in(call)
        policies: Policies = call.body or Policies()
        given = policies.model_dump(mode="json", exclude={"bundles"}, exclude_none=True)
        boundaries = boundaries_of(namespace, policies.bundles, self._default_bundles)
        await self._service.create(boundaries, given)
        return empty_reply(204)

    @operation(
        "DELETE",
        "/admin/v2/namespaces/{tenant}/{namespace}",
        Reply(204, "The namespace is deleted, and its brokers have released the bundles."),
        Reply(404, "The namespace does not exist."),
        Reply(409, "The namespace has topics, or other clients kept changing it."),
        query=DeletionQuery,
        leader=True,
    )
    async def delete(self, call: Call) -> web.StreamResponse:
        """Delete a namespace and all its bundles.

        A namespace with topics is deleted only with `force`. Topics are those that brokers reported
        last and those with partitions.
        """
        query: DeletionQuery = call.query
        await self._service.delete(namespace_in(call), force=query.force)
        return empty_reply(204)

    @operation(
        "GET",
        "/admin/v2/namespaces/{tenant}/{namespace}",
        Reply(200, "The policies.", dict[str, Any]),
        Reply(404, "The namespace does not exist."),
    )
    @operation(
        "GET",
        "/admin/v2/namespaces/{tenant}/{namespace}/policies",
        Reply(200, "The policies.", dict[str, Any]),
        Reply(404, "The namespace does not exist."),
    )
    async def policies(self, call: Call) -> web.StreamResponse:
        """Get the policies of a namespace, with its present bundles."""
        return json_reply(dict(await self._service.policies(namespace_in(call))))

    @operation(
        "GET",
        "/admin/v2/namespaces/{tenant}/{namespace}/bundles",
        Reply(200, "The boundaries.", Bundles),
        Reply(404, "The namespace does not exist."),
    )
    async def bundles(self, call: Call) -> web.StreamResponse:
        """Get the boundaries of a namespace's bundles."""
        return json_reply(bundles_to_json(await self._lookup.boundaries(namespace_in(call))))


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
    if not count:
        return Boundaries.even(namespace, default_count)
    if not 0 < count <= _MAX_BUNDLES:
        raise Refused(412, f"bundles.numBundles = {count}; expected 0 to {_MAX_BUNDLES}")
    return Boundaries.even(namespace, count)


def _bounds(given: list[str]) -> tuple[int, ...]:
    if len(given) > _MAX_BUNDLES + 1:
        raise Refused(412, f"bundles.boundaries has {len(given)}; at most {_MAX_BUNDLES + 1}")
    wrong = next((bound for bound in given if not _BOUND.fullmatch(bound)), None)
    if wrong is not None:
        raise Refused(412, f"bundles.boundaries holds {wrong!r}; expected texts like 0x40000000")
    return tuple(sorted({int(bound, 16) for bound in given}))

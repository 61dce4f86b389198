"""Anti-affinity groups of namespaces."""

from collections.abc import Sequence
from typing import Annotated, Final

from aiohttp import web
from pydantic import Field, StringConstraints

from loadmanager.adapters.http.operations import (
    TEXT,
    Call,
    Reply,
    Resource,
    namespace_in,
    operation,
)
from loadmanager.adapters.http.parameters import Query
from loadmanager.adapters.http.replies import empty_reply, json_reply, text_reply
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, as_unavailable
from loadmanager.core import znodes
from loadmanager.core.ids import Namespace, parse_namespace
from loadmanager.core.wire import decode_anti_affinity
from loadmanager.core.wire.policies import with_anti_affinity
from loadmanager.ports import NamespaceUnknown, Unfit


class AffinityRequests:
    """Anti-affinity groups: namespaces of one group are kept apart."""

    def __init__(self, context: Context, cluster: str) -> None:
        self._documents = Documents(context.coordination)
        self._cluster = cluster

    async def group(self, namespace: Namespace) -> str:
        """Return the group of a namespace, "" for none.

        Raises:
            NamespaceUnknown: it does not exist.
        """
        path = znodes.local_policies(namespace)
        data = await self._documents.read(path)
        if data is None:
            raise NamespaceUnknown(f"namespace {namespace} does not exist")
        with as_unavailable(path, "read"):
            return decode_anti_affinity(path, data)

    async def put(self, namespace: Namespace, group: str) -> None:
        """Put a namespace into a group, "" into none; raises as `group`."""
        path = znodes.local_policies(namespace)

        def edit(data: bytes | None) -> bytes:
            if data is None:
                raise NamespaceUnknown(f"namespace {namespace} does not exist")
            if decode_anti_affinity(path, data) == group:
                return data
            return with_anti_affinity(path, data, group)

        await self._documents.change(path, edit)

    async def members(self, cluster: str, group: str, tenant: str) -> Sequence[Namespace]:
        """Return the namespaces of a group, of one tenant or with "" of all.

        Raises:
            Unfit: ``cluster`` is not this one.
        """
        if cluster != self._cluster:
            raise Unfit(f"cluster {cluster} is not this one, {self._cluster}")
        tenants = [tenant] if tenant else await self._documents.names(znodes.LOCAL_POLICIES)
        found = []
        for one in tenants:
            for name in await self._documents.names(f"{znodes.LOCAL_POLICIES}/{one}"):
                namespace = Namespace(f"{one}/{name}")
                data = await self._documents.read(znodes.local_policies(namespace))
                with as_unavailable(znodes.local_policies(namespace), "read"):
                    is_member = bool(data) and decode_anti_affinity("", data or b"") == group
                if is_member:
                    found.append(namespace)
        return found


_PATH: Final = "/admin/v2/namespaces/{tenant}/{namespace}/antiAffinity"
_UNKNOWN: Final = Reply(404, "The namespace does not exist.")
_LONGEST: Final = 200

GroupName = Annotated[
    str, StringConstraints(min_length=1, max_length=_LONGEST, pattern=r"^[-=:.A-Za-z0-9_]+$")
]


class GroupQuery(Query):
    """Which namespaces of a group are listed."""

    tenant: str = Field("", alias="property")
    """Lists only namespaces of this tenant."""


class AntiAffinity(Resource, tag="anti-affinity"):
    """Answers for ``.../antiAffinity``."""

    def __init__(self, service: AffinityRequests) -> None:
        self._service = service

    @operation(
        "POST",
        _PATH,
        Reply(204, "The namespace is in the group."),
        _UNKNOWN,
        Reply(409, "Another client changed it at the same time."),
        body=GroupName,
    )
    async def put(self, call: Call) -> web.StreamResponse:
        """Put a namespace into an anti-affinity group.

        The body is the name of the group, as a JSON string.
        """
        group: str = call.body
        await self._service.put(namespace_in(call), group)
        return empty_reply(204)

    @operation(
        "GET",
        _PATH,
        Reply(200, "The name of the group, without quotes.", TEXT),
        Reply(204, "The namespace is in no group."),
        _UNKNOWN,
    )
    async def group(self, call: Call) -> web.StreamResponse:
        """Get the anti-affinity group of a namespace."""
        group = await self._service.group(namespace_in(call))
        return text_reply(group) if group else empty_reply(204)

    @operation(
        "DELETE",
        _PATH,
        Reply(204, "The namespace is in no group."),
        _UNKNOWN,
        Reply(409, "Another client changed it at the same time."),
    )
    async def remove(self, call: Call) -> web.StreamResponse:
        """Take a namespace out of its anti-affinity group."""
        await self._service.put(namespace_in(call), "")
        return empty_reply(204)

    @operation(
        "GET",
        "/admin/v2/namespaces/{cluster}/antiAffinity/{group}",
        Reply(200, "The namespaces, sorted by tenant and name.", list[str]),
        Reply(412, "The cluster is another one, or the name of the tenant is not valid."),
        query=GroupQuery,
    )
    async def members(self, call: Call) -> web.StreamResponse:
        """List the namespaces of an anti-affinity group."""
        query: GroupQuery = call.query
        if query.tenant:
            parse_namespace(f"{query.tenant}/any")
        found = await self._service.members(call.path["cluster"], call.path["group"], query.tenant)
        return json_reply(list(found))

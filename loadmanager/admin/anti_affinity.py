from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from loadmanager.adapters.http.operations import TEXT, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, as_unavailable
from loadmanager.core import znodes
from loadmanager.core.ids import Namespace, parse_namespace
from loadmanager.core.wire.policies import decode_anti_affinity, with_anti_affinity
from loadmanager.ports.administration import Unfit
from loadmanager.ports.lookup import NamespaceUnknown

_PATH: Final = "/admin/v2/namespaces/{tenant}/{namespace}/antiAffinity"
_UNKNOWN: Final = Reply(404, "The namespace does not exist.")
_CHANGED: Final = Reply(409, "Another client changed it at the same time.")
_LONGEST: Final = 200

GroupName = Annotated[
    str, StringConstraints(min_length=1, max_length=_LONGEST, pattern=r"^[-=:.A-Za-z0-9_]+$")
]


class GroupQuery(Query):
    """Which namespaces of a group are listed."""

    tenant: str = Field("", alias="property")
    """Lists only namespaces of this tenant."""


class AntiAffinity(Resource, tag="anti-affinity"):
    def __init__(self, context: Context, cluster: str) -> None:
        self._documents = Documents(context.coordination)
        self._cluster = cluster

    @operation("POST", _PATH, Reply(204, "The namespace is in the group."), _UNKNOWN, _CHANGED)
    async def put(self, namespace: Namespace, body: GroupName) -> None:
        """Put a namespace into an anti-affinity group.

        The body is the name of the group, as a JSON string.
        """
        await self._put(namespace, body)

    @operation(
        "GET",
        _PATH,
        Reply(200, "The name of the group, without quotes.", TEXT),
        Reply(204, "The namespace is in no group."),
        _UNKNOWN,
    )
    async def group(self, namespace: Namespace) -> str | None:
        """Get the anti-affinity group of a namespace."""
        path = znodes.local_policies(namespace)
        data = await self._documents.read(path)
        if data is None:
            raise NamespaceUnknown(f"namespace {namespace} does not exist")
        with as_unavailable(path, "read"):
            return decode_anti_affinity(path, data) or None

    @operation("DELETE", _PATH, Reply(204, "The namespace is in no group."), _UNKNOWN, _CHANGED)
    async def remove(self, namespace: Namespace) -> None:
        """Take a namespace out of its anti-affinity group."""
        await self._put(namespace, "")

    @operation(
        "GET",
        "/admin/v2/namespaces/{cluster}/antiAffinity/{group}",
        Reply(200, "The namespaces, sorted by tenant and name.", list[str]),
        Reply(412, "The cluster is another one, or the name of the tenant is not valid."),
    )
    async def members(self, cluster: str, group: str, query: GroupQuery) -> Sequence[Namespace]:
        """List the namespaces of an anti-affinity group."""
        if query.tenant:
            parse_namespace(f"{query.tenant}/any")
        if cluster != self._cluster:
            raise Unfit(f"cluster {cluster} is not this one, {self._cluster}")
        found = []
        for tenant in (
            [query.tenant] if query.tenant else await self._documents.names(znodes.LOCAL_POLICIES)
        ):
            for name in await self._documents.names(f"{znodes.LOCAL_POLICIES}/{tenant}"):
                namespace = Namespace(f"{tenant}/{name}")
                data = await self._documents.read(znodes.local_policies(namespace))
                with as_unavailable(znodes.local_policies(namespace), "read"):
                    is_member = bool(data) and decode_anti_affinity("", data or b"") == group
                if is_member:
                    found.append(namespace)
        return found

    async def _put(self, namespace: Namespace, group: str) -> None:
        path = znodes.local_policies(namespace)

        def edit(data: bytes | None) -> bytes:
            if data is None:
                raise NamespaceUnknown(f"namespace {namespace} does not exist")
            if decode_anti_affinity(path, data) == group:
                return data
            return with_anti_affinity(path, data, group)

        await self._documents.change(path, edit)

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

import structlog
from pydantic import ConfigDict, Field, StringConstraints

from loadmanager.adapters.http.operations import (
    TEXT,
    Document,
    Flag,
    Query,
    Reply,
    Resource,
    operation,
)
from loadmanager.adapters.http.routes import Refused
from loadmanager.common.cluster_state import boundaries_of
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, as_unavailable
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.fields import parse_object
from loadmanager.core.ids import Namespace, namespace_of, parse_namespace
from loadmanager.core.wire.policies import (
    bundles_to_json,
    decode_anti_affinity,
    encode_boundaries,
    encode_policies,
    encode_tenant,
    with_anti_affinity,
)
from loadmanager.leader.term import Leadership
from loadmanager.ports.coordination import Check, CoordinationError, Create, Delete, Operation
from loadmanager.ports.lookup import Conflict, Missing, NamespaceTaken, NamespaceUnknown, Unfit

log = structlog.get_logger()

_LEAVING_S: Final = 10.0


_TOPIC_DEPTH: Final = len(znodes.partitioned_topics(Namespace("t/n")).split("/")) + 1

_BOUND: Final = re.compile(r"0x[0-9a-fA-F]{1,8}")
# A new namespace's boundaries are written twice in one commit, and that holds 1 MB.
_MAX_BUNDLES: Final = 32_768


_UNKNOWN: Final = Reply(404, "The namespace does not exist.")


class Bundles(Document):
    """The bundles of a namespace."""

    boundaries: list[str] | None = None
    """The boundaries, from `0x00000000` to `0xffffffff`. They take precedence over `numBundles`."""
    num_bundles: int | None = Field(
        None, alias="numBundles", json_schema_extra={"minimum": 0, "maximum": _MAX_BUNDLES}
    )
    """The number of bundles, all of equal width; 0 is the default of the cluster."""


class Policies(Document):
    """The policies of a namespace. Only the bundles are used; all others are stored unchanged."""

    model_config = ConfigDict(extra="allow")

    bundles: Bundles | None = None


class DeletionQuery(Query):
    """How a namespace is deleted."""

    force: Flag = False
    """Whether a namespace with topics is deleted, too."""


class Namespaces(Resource, tag="namespaces"):
    def __init__(
        self, context: Context, leading: Leadership, cluster: str, *, default_bundles: int = 1
    ) -> None:
        self._context = context
        self._leading = leading
        self._cluster = cluster
        self._default_bundles = default_bundles
        self._documents = Documents(context.coordination)

    @operation(
        "GET /admin/v2/namespaces/{tenant}",
        Reply(200, "The namespaces as `tenant/namespace`, sorted.", list[str]),
        Reply(404, "The tenant does not exist."),
    )
    async def of_tenant(self, tenant: str) -> Sequence[Namespace]:
        """List the namespaces of a tenant."""
        parse_namespace(f"{tenant}/any")
        folders = [f"{znodes.POLICIES}/{tenant}", f"{znodes.LOCAL_POLICIES}/{tenant}"]
        names = {name for folder in folders for name in await self._documents.names(folder)}
        if not names and not [one for one in folders if await self._documents.node(one)]:
            raise Missing(f"tenant {tenant} does not exist")
        return tuple(Namespace(f"{tenant}/{name}") for name in sorted(names))

    @operation(
        "PUT /admin/v2/namespaces/{tenant}/{namespace}",
        Reply(204, "The namespace is created, and its tenant if that did not exist."),
        Reply(
            409,
            "The namespace exists, or brokers still hold bundles of a deleted one of that name.",
        ),
        Reply(412, "The name is not valid, or the bundles do not cover the whole hash range."),
    )
    async def create(self, namespace: Namespace, body: Policies | None = None) -> None:
        """Create a namespace with its bundles.

        Only the bundles are used; all other policies are stored unchanged.
        """
        policies = body or Policies()
        given = policies.model_dump(mode="json", exclude={"bundles"}, exclude_none=True)
        await self.put(boundaries_wanted(namespace, policies.bundles, self._default_bundles), given)

    async def put(self, boundaries: Boundaries, policies: Mapping[str, Any]) -> None:
        """Create a namespace, and its tenant if need be, in one commit with its bundles.

        Raises `NamespaceTaken`: it exists, or bundles of a former one are locked still; `Conflict`:
        other clients kept changing it.
        """
        namespace = boundaries.namespace
        tenant = namespace.partition("/")[0]
        # Pulsar brokers require a node with content of a tenant.
        owned = encode_tenant(self._cluster)
        await self._documents.change(
            f"{znodes.POLICIES}/{tenant}", lambda data: owned if data is None else data
        )
        await self._documents.ensure(f"{znodes.LOCAL_POLICIES}/{tenant}")
        await self._documents.ensure(znodes.lock_folder_of(namespace))
        content = encode_policies(policies, boundaries, self._cluster)
        creating = [
            Create(znodes.policies(namespace), content),
            Create(znodes.local_policies(namespace), encode_boundaries(boundaries)),
        ]

        async def creation() -> list[Operation]:
            return [await self._nothing_stands(namespace), *creating]

        await self._documents.commit(f"namespace {namespace}", creation)
        log.info("namespace.bundles.created", namespace=namespace, bundles=len(boundaries.bundles))
        # Its creator may read it next.
        await boundaries_of(self._context.cluster_state, namespace)

    async def _nothing_stands(self, namespace: Namespace) -> Operation:
        """Return a check that holds while there is no such namespace, nor a lock of a former one.

        The versions of its boundaries begin at 0 again, so the check that keeps a former bundle
        from being locked, or cut, would mistake the new boundaries for the earlier ones. Raises
        `NamespaceTaken`: it exists, or bundles of a former one are locked still.
        """
        path = znodes.lock_folder_of(namespace)
        with as_unavailable(path, "read"):
            await self._context.coordination.sync(path)
        for standing in (znodes.policies(namespace), znodes.local_policies(namespace)):
            if await self._documents.node(standing):
                raise NamespaceTaken(f"namespace {namespace} exists already")
        folder = await self._documents.node(path)
        held = await self._documents.names(path)
        if held:
            raise NamespaceTaken(
                f"namespace {namespace} was deleted, and {len(held)} of its bundles are not let "
                "go yet; they are when their sidecars obey, or their sessions end"
            )
        return Check(path, folder.stat.version if folder else 0)

    @operation(
        "DELETE /admin/v2/namespaces/{tenant}/{namespace}",
        Reply(204, "The namespace is deleted, and its brokers have released the bundles."),
        _UNKNOWN,
        Reply(409, "The namespace has topics, or other clients kept changing it."),
        query=DeletionQuery,
        leader=True,
    )
    async def delete(self, namespace: Namespace, *, force: bool) -> None:
        """Delete a namespace and all its bundles.

        A namespace with topics is deleted only with `force`. A topic counts if a broker reported it
        last, or if it is partitioned.
        """
        self._leading.require_term()
        deletion = partial(self._deletion, namespace, force=force)
        await self._documents.commit(f"namespace {namespace}", deletion)
        log.info("namespace.bundles.deleted", namespace=namespace, force=force)
        await self._let_go(namespace)

    async def _deletion(self, namespace: Namespace, *, force: bool) -> list[Operation]:
        """Return the operations that delete every node of a namespace.

        Raises `NamespaceUnknown`: it does not exist; `Conflict`: it has topics, and not ``force``.
        """
        paths = [znodes.local_policies(namespace), znodes.policies(namespace)]
        nodes = {path: await self._documents.node(path) for path in paths}
        if not any(nodes.values()):
            raise NamespaceUnknown(f"namespace {namespace} does not exist")
        partitioned = await self._below(znodes.partitioned_topics(namespace), levels=2)
        reported = any(
            stats.topics and namespace_of(bundle) == namespace
            for known in self._context.cluster_state.loads.reports.values()
            for bundle, stats in known.report.bundles.items()
        )
        has_topics = reported or any(path.count("/") == _TOPIC_DEPTH for path in partitioned)
        if has_topics and not force:
            raise Conflict(f"cannot delete non empty namespace {namespace}: it has topics")
        for path in partitioned:
            nodes[path] = await self._documents.node(path)
        return [Delete(path, node.stat.version) for path, node in nodes.items() if node]

    async def _below(self, path: str, *, levels: int) -> list[str]:
        names = await self._documents.names(path) if levels else ()
        below = [
            one for name in names for one in await self._below(f"{path}/{name}", levels=levels - 1)
        ]
        return [*below, path]

    async def _let_go(self, namespace: Namespace) -> None:
        """Withdraw the orders for a deleted namespace, as the next round would, and wait."""
        leader_term = self._leading.leader_term
        if leader_term is None:
            return
        try:
            await leader_term.recall(namespace)
        except CoordinationError as error:
            log.warning("namespace.bundles.delete_failed", namespace=namespace, error=str(error))
            return
        owners, changes = self._context.cluster_state.owners, self._context.cluster_state.changes
        await changes.until(
            lambda: all(namespace_of(bundle) != namespace for bundle in owners),
            self._context.clock,
            _LEAVING_S,
        )

    @operation(
        "GET /admin/v2/namespaces/{tenant}/{namespace}",
        "GET /admin/v2/namespaces/{tenant}/{namespace}/policies",
        Reply(200, "The policies.", dict[str, Any]),
        _UNKNOWN,
    )
    async def policies(self, namespace: Namespace) -> Mapping[str, Any]:
        """Get the policies of a namespace, with its present bundles."""
        boundaries = await boundaries_of(self._context.cluster_state, namespace)
        path = znodes.policies(namespace)
        data = await self._documents.read(path)
        with as_unavailable(path, "read"):
            found = parse_object(path, data) if data else {}
        return {**found, "bundles": bundles_to_json(boundaries)}

    @operation(
        "GET /admin/v2/namespaces/{tenant}/{namespace}/bundles",
        Reply(200, "The boundaries.", Bundles),
        _UNKNOWN,
    )
    async def bundles(self, namespace: Namespace) -> dict[str, Any]:
        """Get the boundaries of a namespace's bundles."""
        return bundles_to_json(await boundaries_of(self._context.cluster_state, namespace))


def boundaries_wanted(
    namespace: Namespace, bundles: Bundles | None, default_count: int
) -> Boundaries:
    """Return the boundaries that a policies object's ``bundles`` asks for.

    As in Pulsar, ``boundaries`` win over ``numBundles``, in any order and with repetitions; they
    must reach from ``0x00000000`` to ``0xffffffff``. Raises `Refused`: the bundles are not valid
    (412).
    """
    given = (bundles and bundles.boundaries) or ()
    if len(given) > _MAX_BUNDLES + 1:
        raise Refused(412, f"bundles.boundaries has {len(given)}; at most {_MAX_BUNDLES + 1}")
    for bound in given:
        if not _BOUND.fullmatch(bound):
            text = f"bundles.boundaries holds {bound!r}; expected texts like 0x40000000"
            raise Refused(412, text)
    if given:
        return Boundaries(namespace, tuple(sorted({int(bound, 16) for bound in given})))
    count = bundles.num_bundles if bundles is not None else None
    if not count:
        return Boundaries.even(namespace, default_count)
    if not 0 < count <= _MAX_BUNDLES:
        raise Refused(412, f"bundles.numBundles = {count}; expected 0 to {_MAX_BUNDLES}")
    return Boundaries.even(namespace, count)


_PATH: Final = "/admin/v2/namespaces/{tenant}/{namespace}/antiAffinity"
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

    @operation(f"POST {_PATH}", Reply(204, "The namespace is in the group."), _UNKNOWN, _CHANGED)
    async def put(self, namespace: Namespace, body: GroupName) -> None:
        """Put a namespace into an anti-affinity group.

        The body is the name of the group, as a JSON string.
        """
        await self._put(namespace, body)

    @operation(
        f"GET {_PATH}",
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

    @operation(f"DELETE {_PATH}", Reply(204, "The namespace is in no group."), _UNKNOWN, _CHANGED)
    async def remove(self, namespace: Namespace) -> None:
        """Take a namespace out of its anti-affinity group."""
        await self._put(namespace, "")

    @operation(
        "GET /admin/v2/namespaces/{cluster}/antiAffinity/{group}",
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


_QUOTAS: Final = "/admin/v2/resource-quotas"
_BUNDLE: Final = f"{_QUOTAS}/{{tenant}}/{{namespace}}/{{bundle}}"


class Quotas(Resource, tag="resource quotas"):
    @operation(
        *(f"{method} {_QUOTAS}" for method in ("GET", "POST")),
        *(f"{method} {_BUNDLE}" for method in ("GET", "POST", "DELETE")),
        Reply(410, "There are no resource quotas."),
    )
    async def refuse(self) -> None:
        """Refuse: bundles are placed by what brokers report of them, not by quotas."""
        reason = "there are no resource quotas: bundles are placed by what brokers report of them"
        raise Refused(410, reason)

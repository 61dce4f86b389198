"""Namespaces made, told of and deleted because somebody asked."""

from collections.abc import Mapping
from typing import Any, Final

import structlog

from loadmanager.common.bundle_names import boundaries_of
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, told
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import DOMAINS, Namespace, namespace_of
from loadmanager.core.wire import encode_boundaries
from loadmanager.core.wire.fields import parse_object
from loadmanager.core.wire.namespaces import bundles_to_json, encode_policies, encode_tenant
from loadmanager.leader.leadership import Leadership
from loadmanager.ports import (
    Check,
    Conflict,
    CoordinationError,
    Create,
    Delete,
    Missing,
    NamespaceTaken,
    NamespaceUnknown,
    Node,
    NodeExists,
    Operation,
)

log = structlog.get_logger()

_TRIES: Final = 4
_LEAVING_S: Final = 10.0


class NamespaceRequests:
    """The application's side of `NamespaceService`."""

    def __init__(self, context: Context, leading: Leadership, cluster: str) -> None:
        self._context = context
        self._leading = leading
        self._cluster = cluster
        self._documents = Documents(context.coordination)

    async def of_tenant(self, tenant: str) -> tuple[Namespace, ...]:
        """Return all namespaces of a tenant; see `NamespaceService`."""
        folders = [f"{znodes.POLICIES}/{tenant}", f"{znodes.LOCAL_POLICIES}/{tenant}"]
        names = {name for folder in folders for name in await self._documents.names(folder)}
        if not names and not [one for one in folders if await self._documents.node(one)]:
            raise Missing(f"tenant {tenant} does not exist")
        return tuple(Namespace(f"{tenant}/{name}") for name in sorted(names))

    async def policies(self, namespace: Namespace) -> Mapping[str, Any]:
        """Return a namespace's policies with its present bundles; see `NamespaceService`."""
        boundaries = await boundaries_of(self._context.cluster_state, namespace)
        path = znodes.policies(namespace)
        data = await self._documents.read(path)
        with told(path, "read"):
            found = parse_object(path, data) if data else {}
        return {**found, "bundles": bundles_to_json(boundaries)}

    async def create(self, boundaries: Boundaries, policies: Mapping[str, Any]) -> None:
        """Create a namespace, in one commit with its bundles; see `NamespaceService`."""
        namespace = boundaries.namespace
        tenant = namespace.partition("/")[0]
        await self._ensure_tenant(tenant)
        await self._documents.ensure(f"{znodes.LOCAL_POLICIES}/{tenant}")
        await self._documents.ensure(znodes.lock_folder_of(namespace))
        content = encode_policies(policies, boundaries, self._cluster)
        creating = [
            Create(znodes.policies(namespace), content),
            Create(znodes.local_policies(namespace), encode_boundaries(boundaries)),
        ]
        for _ in range(_TRIES):
            operations = [await self._nothing_stands(namespace), *creating]
            if await self._documents.commit(f"namespace {namespace}", operations):
                break
        else:
            raise Conflict(f"{namespace} was changed by others {_TRIES} times meanwhile")
        log.info("namespace.bundles.created", namespace=namespace, bundles=len(boundaries.bundles))
        # Who created it may ask for it next.
        await boundaries_of(self._context.cluster_state, namespace)

    async def _nothing_stands(self, namespace: Namespace) -> Operation:
        """Return what holds while there is no such namespace, nor a lock of a former one.

        The versions of its boundaries begin at 0 again, so the check that keeps a former
        bundle from being locked, or cut, would take the new boundaries for those it knew.

        Raises:
            NamespaceTaken: it exists, or bundles of a former one are locked still.
        """
        path = znodes.lock_folder_of(namespace)
        with told(path, "read"):
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

    async def _ensure_tenant(self, tenant: str) -> None:
        """Make the node of a tenant unless it stands: a Pulsar broker wants one with content."""
        path = f"{znodes.POLICIES}/{tenant}"
        with told(path, "written"):
            if await self._context.coordination.get(path) is None:
                try:
                    await self._context.coordination.create(path, encode_tenant(self._cluster))
                except NodeExists:
                    return

    async def delete(self, namespace: Namespace, *, force: bool) -> None:
        """Delete a namespace, and have its bundles let go; see `NamespaceService`."""
        self._leading.require_term()
        for _ in range(_TRIES):
            operations = await self._deletion(namespace, force=force)
            if await self._documents.commit(f"namespace {namespace}", operations):
                break
        else:
            raise Conflict(f"{namespace} was changed by others {_TRIES} times meanwhile")
        log.info("namespace.bundles.deleted", namespace=namespace, force=force)
        await self._let_go(namespace)

    async def _deletion(self, namespace: Namespace, *, force: bool) -> list[Operation]:
        """Return what deletes all that stands of a namespace.

        Raises:
            NamespaceUnknown: nothing does.
            Conflict: it has topics, and nothing is to be forced.
        """
        paths = [znodes.local_policies(namespace), znodes.policies(namespace)]
        nodes = {path: await self._documents.node(path) for path in paths}
        if not any(nodes.values()):
            raise NamespaceUnknown(f"namespace {namespace} does not exist")
        partitioned = await self._partitioned(namespace)
        topics = self._topics_reported(namespace) + sum(
            1 for path in partitioned if path.count("/") == _TOPIC_DEPTH
        )
        if topics and not force:
            raise Conflict(f"cannot delete non empty namespace {namespace}: it has topics")
        quotas = await self._quotas(namespace)
        found = {**nodes, **partitioned, **quotas}
        return [Delete(path, node.stat.version) for path, node in found.items() if node]

    def _topics_reported(self, namespace: Namespace) -> int:
        return sum(
            stats.topics
            for known in self._context.cluster_state.loads.reports.values()
            for bundle, stats in known.report.bundles.items()
            if namespace_of(bundle) == namespace
        )

    async def _partitioned(self, namespace: Namespace) -> dict[str, Node | None]:
        """Return the nodes of partitioned topics, those below before those above."""
        folder = znodes.partitioned_topics(namespace)
        paths = []
        for domain in DOMAINS:
            names = await self._documents.names(f"{folder}/{domain}")
            paths += [f"{folder}/{domain}/{name}" for name in names]
            paths.append(f"{folder}/{domain}")
        return {path: await self._documents.node(path) for path in [*paths, folder]}

    async def _quotas(self, namespace: Namespace) -> dict[str, Node | None]:
        folder = f"{znodes.QUOTAS}/{namespace}"
        names = await self._documents.names(folder)
        paths = [*(f"{folder}/{name}" for name in names), folder]
        return {path: await self._documents.node(path) for path in paths}

    async def _let_go(self, namespace: Namespace) -> None:
        """Recall what is owned of a deleted namespace; the next round would do it, too."""
        leader_term = self._leading.leader_term
        if leader_term is None:
            return
        try:
            await leader_term.recall(namespace)
        except CoordinationError as error:
            log.warning("namespace.bundles.kept", namespace=namespace, error=str(error))
            return
        owners, changes = self._context.cluster_state.owners, self._context.cluster_state.changes
        await changes.until(
            lambda: all(namespace_of(bundle) != namespace for bundle in owners),
            self._context.clock,
            _LEAVING_S,
        )


_TOPIC_DEPTH: Final = len(znodes.partitioned_topics(Namespace("t/n")).split("/")) + 1

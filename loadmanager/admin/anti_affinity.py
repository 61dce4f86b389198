"""Anti-affinity groups, which stand in the namespaces' local policies."""

from collections.abc import Sequence

from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, told
from loadmanager.core import znodes
from loadmanager.core.ids import Namespace
from loadmanager.core.wire import decode_anti_affinity
from loadmanager.core.wire.namespaces import with_anti_affinity
from loadmanager.ports import NamespaceUnknown, Unfit


class AffinityRequests:
    """The application's side of `AffinityService`."""

    def __init__(self, context: Context, cluster: str) -> None:
        self._documents = Documents(context.coordination)
        self._cluster = cluster

    async def group(self, namespace: Namespace) -> str:
        """Return the group of a namespace, "" for none; see `AffinityService`."""
        path = znodes.local_policies(namespace)
        data = await self._documents.read(path)
        if data is None:
            raise NamespaceUnknown(f"namespace {namespace} does not exist")
        with told(path, "read"):
            return decode_anti_affinity(path, data)

    async def put(self, namespace: Namespace, group: str) -> None:
        """Put a namespace into a group, "" into none; see `AffinityService`."""
        path = znodes.local_policies(namespace)

        def edit(data: bytes | None) -> bytes:
            if data is None:
                raise NamespaceUnknown(f"namespace {namespace} does not exist")
            if decode_anti_affinity(path, data) == group:
                return data
            return with_anti_affinity(path, data, group)

        await self._documents.change(path, edit)

    async def members(self, cluster: str, group: str, tenant: str) -> Sequence[Namespace]:
        """Return the namespaces of a group; see `AffinityService`."""
        if cluster != self._cluster:
            raise Unfit(f"cluster {cluster} is not this one, {self._cluster}")
        tenants = [tenant] if tenant else await self._documents.names(znodes.LOCAL_POLICIES)
        found = []
        for one in tenants:
            for name in await self._documents.names(f"{znodes.LOCAL_POLICIES}/{one}"):
                namespace = Namespace(f"{one}/{name}")
                data = await self._documents.read(znodes.local_policies(namespace))
                with told(znodes.local_policies(namespace), "read"):
                    is_member = bool(data) and decode_anti_affinity("", data or b"") == group
                if is_member:
                    found.append(namespace)
        return found

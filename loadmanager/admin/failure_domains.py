"""Failure domains, as people set them and ask for them."""

from collections.abc import Mapping, Sequence

import structlog

from loadmanager.common.bundle_names import check_cluster
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, told
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId
from loadmanager.core.wire import decode_failure_domain
from loadmanager.core.wire.fields import to_json
from loadmanager.ports import Conflict, Create, Delete, Missing, Node, Operation, SetData

log = structlog.get_logger()

_TRIES = 8


class DomainRequests:
    """The application's side of `DomainService`.

    A broker is in one domain at most. The folder's own version goes up with every
    change of a domain, so that two changes at once cannot both find a broker free.
    """

    def __init__(self, context: Context, cluster: str) -> None:
        self._documents = Documents(context.coordination)
        self._cluster = cluster
        self._folder = znodes.failure_domains(cluster)

    async def domains(self, cluster: str) -> Mapping[str, Sequence[BrokerId]]:
        """Return the brokers of every domain; see `DomainService`."""
        check_cluster(cluster, self._cluster)
        return {name: brokers for name, (_, brokers) in (await self._read()).items()}

    async def put(self, cluster: str, name: str, brokers: Sequence[BrokerId]) -> None:
        """Set a domain's brokers; see `DomainService`."""
        check_cluster(cluster, self._cluster)
        content = to_json({"brokers": list(dict.fromkeys(brokers))})
        await self._documents.ensure(self._folder)
        for _ in range(_TRIES):
            folder = await self._documents.node(self._folder)
            found = await self._read()
            for other, (_, taken) in found.items():
                both = [one for one in brokers if one in taken and other != name]
                if both:
                    raise Conflict(f"broker {both[0]} is in failure domain {other} already")
            path = f"{self._folder}/{name}"
            write: Operation = Create(path, content)
            if name in found:
                write = SetData(path, content, found[name][0].stat.version)
            if folder and await self._commit([*_counted(self._folder, folder), write]):
                log.info("failure.domain.set", domain=name, brokers=list(brokers))
                return
        raise Conflict(f"{self._folder} was changed by others {_TRIES} times meanwhile")

    async def remove(self, cluster: str, name: str) -> None:
        """Remove a domain; see `DomainService`."""
        check_cluster(cluster, self._cluster)
        path = f"{self._folder}/{name}"
        for _ in range(_TRIES):
            node = await self._documents.node(path)
            if node is None:
                raise Missing(f"failure domain {name} does not exist")
            if await self._commit([Delete(path, node.stat.version)]):
                log.info("failure.domain.removed", domain=name)
                return
        raise Conflict(f"{path} was changed by others {_TRIES} times meanwhile")

    async def _commit(self, operations: Sequence[Operation]) -> bool:
        return await self._documents.commit(self._folder, operations)

    async def _read(self) -> dict[str, tuple[Node, tuple[BrokerId, ...]]]:
        found = {}
        for name in await self._documents.names(self._folder):
            path = f"{self._folder}/{name}"
            node = await self._documents.node(path)
            if node is not None:
                with told(path, "read"):
                    found[name] = (node, decode_failure_domain(path, node.data))
        return found


def _counted(path: str, node: Node) -> list[Operation]:
    return [SetData(path, node.data, node.stat.version)]

from collections.abc import Mapping
from typing import Annotated, Final

import structlog
from pydantic import Field, StringConstraints

from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
from loadmanager.common.cluster_state import check_cluster
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, as_unavailable
from loadmanager.core import znodes
from loadmanager.core.fields import to_json
from loadmanager.core.ids import BrokerId, parse_broker
from loadmanager.core.wire.policies import decode_failure_domain
from loadmanager.ports.administration import Conflict, Missing
from loadmanager.ports.coordination import Create, Delete, Node, Operation, SetData

log = structlog.get_logger()

_PATH: Final = "/admin/v2/clusters/{cluster}/failureDomains"
_NO_CLUSTER: Final = Reply(404, "The cluster is another one.")
_NONE: Final = Reply(404, "The cluster is another one, or has no such domain.")
_MOST: Final = 10_000
_TRIES: Final = 8

Broker = Annotated[str, StringConstraints(pattern=r"^[-.A-Za-z0-9_]+:[1-9][0-9]{0,4}$")]


class FailureDomain(Document):
    """The brokers of one failure domain. They need not be registered."""

    brokers: list[Broker] = Field(max_length=_MOST)


class FailureDomains(Resource, tag="failure domains"):
    """Answers under ``/admin/v2/clusters/{cluster}/failureDomains``.

    A broker is in one domain at most. The folder's own version goes up with every
    change of a domain, so that two changes at once cannot both find a broker free.
    """

    def __init__(self, context: Context, cluster: str) -> None:
        self._documents = Documents(context.coordination)
        self._cluster = cluster
        self._folder = znodes.failure_domains(cluster)

    @operation(
        "GET", _PATH, Reply(200, "The domains, by name.", dict[str, FailureDomain]), _NO_CLUSTER
    )
    async def domains(self, cluster: str) -> Mapping[str, FailureDomain]:
        """List all failure domains."""
        check_cluster(cluster, self._cluster)
        found = await self._read()
        return {name: FailureDomain(brokers=list(brokers)) for name, (_, brokers) in found.items()}

    @operation(
        "GET",
        f"{_PATH}/{{failure_domain}}",
        Reply(200, "The brokers of the domain.", FailureDomain),
        _NONE,
    )
    async def domain(self, cluster: str, failure_domain: str) -> FailureDomain:
        """Get one failure domain."""
        found = await self.domains(cluster)
        if failure_domain not in found:
            raise Missing(f"failure domain {failure_domain} does not exist")
        return found[failure_domain]

    @operation(
        "POST",
        f"{_PATH}/{{failure_domain}}",
        Reply(204, "The domain is set."),
        _NO_CLUSTER,
        Reply(
            409,
            "A broker is in another domain, or another client changed the domains at the "
            "same time.",
        ),
        Reply(412, "The name of a broker or of the domain is not valid."),
    )
    async def put(self, cluster: str, failure_domain: str, body: FailureDomain) -> None:
        """Set the brokers of a failure domain.

        A domain of that name is replaced.
        """
        brokers = list(dict.fromkeys(map(parse_broker, body.brokers)))
        check_cluster(cluster, self._cluster)
        await self._documents.ensure(self._folder)
        for _ in range(_TRIES):
            folder = await self._documents.node(self._folder)
            found = await self._read()
            for other, (_, taken) in found.items():
                both = [one for one in brokers if one in taken and other != failure_domain]
                if both:
                    raise Conflict(f"broker {both[0]} is in failure domain {other} already")
            path = f"{self._folder}/{failure_domain}"
            content = to_json({"brokers": brokers})
            write: Operation = Create(path, content)
            if failure_domain in found:
                write = SetData(path, content, found[failure_domain][0].stat.version)
            if folder and await self._commit(_counted(self._folder, folder), write):
                log.info("failure.domain.set", domain=failure_domain, brokers=brokers)
                return
        raise Conflict(f"{self._folder} was changed by others {_TRIES} times meanwhile")

    @operation(
        "DELETE",
        f"{_PATH}/{{failure_domain}}",
        Reply(204, "The domain is removed."),
        _NONE,
        Reply(409, "Other clients kept changing the domains."),
    )
    async def remove(self, cluster: str, failure_domain: str) -> None:
        """Remove a failure domain; its brokers are then in none."""
        check_cluster(cluster, self._cluster)
        path = f"{self._folder}/{failure_domain}"
        for _ in range(_TRIES):
            node = await self._documents.node(path)
            if node is None:
                raise Missing(f"failure domain {failure_domain} does not exist")
            if await self._commit(Delete(path, node.stat.version)):
                log.info("failure.domain.removed", domain=failure_domain)
                return
        raise Conflict(f"{path} was changed by others {_TRIES} times meanwhile")

    async def _commit(self, *operations: Operation) -> bool:
        return await self._documents.commit(self._folder, operations)

    async def _read(self) -> dict[str, tuple[Node, tuple[BrokerId, ...]]]:
        found = {}
        for name in await self._documents.names(self._folder):
            path = f"{self._folder}/{name}"
            node = await self._documents.node(path)
            if node is not None:
                with as_unavailable(path, "read"):
                    found[name] = (node, decode_failure_domain(path, node.data))
        return found


def _counted(path: str, node: Node) -> Operation:
    return SetData(path, node.data, node.stat.version)

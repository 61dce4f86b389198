"""Failure domains: brokers that are likely to fail together."""

from typing import Annotated, Final

from aiohttp import web
from pydantic import Field, StringConstraints

from loadmanager.adapters.http.operations import Call, Document, Reply, Resource, operation
from loadmanager.adapters.http.replies import Refused, empty_reply, json_reply
from loadmanager.core.ids import parse_broker
from loadmanager.ports import DomainService

_PATH: Final = "/admin/v2/clusters/{cluster}/failureDomains"
_NO_CLUSTER: Final = Reply(404, "The cluster is another one.")
_NONE: Final = Reply(404, "The cluster is another one, or has no such domain.")
_MOST: Final = 10_000

Broker = Annotated[str, StringConstraints(pattern=r"^[-.A-Za-z0-9_]+:[1-9][0-9]{0,4}$")]


class FailureDomain(Document):
    """The brokers of one domain, registered or not."""

    brokers: list[Broker] = Field(max_length=_MOST)


class FailureDomains(Resource, tag="failure domains"):
    """Answers under ``/admin/v2/clusters/{cluster}/failureDomains``."""

    def __init__(self, service: DomainService) -> None:
        self._service = service

    @operation(
        "GET", _PATH, Reply(200, "The domains, by name.", dict[str, FailureDomain]), _NO_CLUSTER
    )
    async def domains(self, call: Call) -> web.StreamResponse:
        """List all failure domains."""
        found = await self._service.domains(call.path["cluster"])
        return json_reply({name: {"brokers": list(brokers)} for name, brokers in found.items()})

    @operation(
        "GET",
        f"{_PATH}/{{failure_domain}}",
        Reply(200, "The brokers of the domain.", FailureDomain),
        _NONE,
    )
    async def domain(self, call: Call) -> web.StreamResponse:
        """Get one failure domain."""
        name = call.path["failure_domain"]
        found = await self._service.domains(call.path["cluster"])
        if name not in found:
            raise Refused(404, f"failure domain {name} does not exist")
        return json_reply({"brokers": list(found[name])})

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
        body=FailureDomain,
    )
    async def put(self, call: Call) -> web.StreamResponse:
        """Set the brokers of a failure domain.

        A domain of that name is replaced.
        """
        domain: FailureDomain = call.body
        brokers = [parse_broker(one) for one in domain.brokers]
        name = call.path["failure_domain"]
        await self._service.put(call.path["cluster"], name, brokers)
        return empty_reply(204)

    @operation(
        "DELETE",
        f"{_PATH}/{{failure_domain}}",
        Reply(204, "The domain is removed."),
        _NONE,
        Reply(409, "Other clients kept changing the domains."),
    )
    async def remove(self, call: Call) -> web.StreamResponse:
        """Remove a failure domain; its brokers are then in none."""
        await self._service.remove(call.path["cluster"], call.path["failure_domain"])
        return empty_reply(204)

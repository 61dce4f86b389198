"""Failure domains: brokers that are likely to fail together."""

from typing import Annotated, Final

from aiohttp import web
from pydantic import BaseModel, Field, StringConstraints

from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.replies import Refused, empty_reply, json_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.core.ids import parse_broker
from loadmanager.ports import DomainService

_TAG: Final = "failure domains"
_PATH: Final = "/admin/v2/clusters/{cluster}/failureDomains"
_NO_CLUSTER: Final = Reply(404, "There is no such cluster here.")
_NONE: Final = Reply(404, "There is no such cluster here, or no such domain.")
_MOST: Final = 10_000

Broker = Annotated[str, StringConstraints(pattern=r"^[-.A-Za-z0-9_]+:[1-9][0-9]{0,4}$")]


class FailureDomain(BaseModel):
    """The brokers of one domain; they need not be registered now."""

    brokers: list[Broker] = Field(max_length=_MOST)


class FailureDomains(Resource):
    """Answers under ``/admin/v2/clusters/{cluster}/failureDomains``."""

    def __init__(self, service: DomainService) -> None:
        self._service = service

    @operation(
        "GET",
        _PATH,
        tag=_TAG,
        summary="All failure domains.",
        role=Role.READ,
        replies=(Reply(200, "By name.", dict[str, FailureDomain]), _NO_CLUSTER),
    )
    async def domains(self, call: Call) -> web.StreamResponse:
        """Tell all domains."""
        found = await self._service.domains(call.path["cluster"])
        return json_reply({name: {"brokers": list(brokers)} for name, brokers in found.items()})

    @operation(
        "GET",
        f"{_PATH}/{{failure_domain}}",
        tag=_TAG,
        summary="One failure domain.",
        role=Role.READ,
        replies=(Reply(200, "Its brokers.", FailureDomain), _NONE),
    )
    async def domain(self, call: Call) -> web.StreamResponse:
        """Tell one domain."""
        name = call.path["failure_domain"]
        found = await self._service.domains(call.path["cluster"])
        if name not in found:
            raise Refused(404, f"failure domain {name} does not exist")
        return json_reply({"brokers": list(found[name])})

    @operation(
        "POST",
        f"{_PATH}/{{failure_domain}}",
        tag=_TAG,
        summary="Set the brokers of a failure domain.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It is set."),
            _NO_CLUSTER,
            Reply(409, "A broker is in another domain, or others changed the domains meanwhile."),
            Reply(412, "A broker's or the domain's name cannot be one."),
        ),
        body=FailureDomain,
    )
    async def put(self, call: Call) -> web.StreamResponse:
        """Set a domain, new or in place of the one of that name."""
        domain: FailureDomain = call.body
        brokers = [parse_broker(one) for one in domain.brokers]
        name = call.path["failure_domain"]
        await self._service.put(call.path["cluster"], name, brokers)
        return empty_reply(204)

    @operation(
        "DELETE",
        f"{_PATH}/{{failure_domain}}",
        tag=_TAG,
        summary="Remove a failure domain.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It is removed."),
            _NONE,
            Reply(409, "Others changed the domains again and again meanwhile."),
        ),
    )
    async def remove(self, call: Call) -> web.StreamResponse:
        """Remove a domain; its brokers are then in none."""
        await self._service.remove(call.path["cluster"], call.path["failure_domain"])
        return empty_reply(204)

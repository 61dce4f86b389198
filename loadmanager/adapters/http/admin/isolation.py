"""Isolation policies: which brokers may serve which namespaces."""

import re
from typing import Annotated, Any, Final, Literal

from aiohttp import web
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from loadmanager.adapters.http.admin.names import broker_in
from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.replies import Refused, empty_reply, json_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.ports import IsolatedBroker, IsolationService

_TAG: Final = "isolation"
_PATH: Final = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"
_NO_CLUSTER: Final = Reply(404, "There is no such cluster here.")
_NONE: Final = Reply(404, "There is no such cluster here, or no such policy.")
_MOST: Final = 1_000


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


Regex = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1_000),
    AfterValidator(_regex),
    Field(json_schema_extra={"format": "regex"}),
]
Regexes = Annotated[list[Regex], Field(max_length=_MOST)]
WholeText = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]


class MinAvailable(BaseModel):
    """When secondary brokers help; whole numbers, written as texts."""

    min_limit: WholeText = Field(description="While fewer primary brokers than this are there.")
    usage_threshold: WholeText = Field(description="In percent; a busier one does not count.")


class Failover(BaseModel):
    """How the primary brokers' absence is met."""

    policy_type: Literal["min_available"]
    parameters: MinAvailable


class IsolationPolicy(BaseModel):
    """Namespaces that only certain brokers may serve, and nobody else's there.

    All are regular expressions that must match as a whole: namespaces
    `tenant/namespace`, brokers the host without its port.
    """

    model_config = ConfigDict(extra="allow")

    namespaces: Regexes = Field(min_length=1)
    primary: Regexes = Field(min_length=1)
    secondary: Regexes = Field(default_factory=list)
    unload_scope: Literal["changed", "all_matching", "none"] | None = None
    auto_failover_policy: Failover


class BrokerPolicy(BaseModel):
    """One policy that is about a broker."""

    broker: str = Field(serialization_alias="brokerName")
    policy: str = Field(serialization_alias="policyName")
    is_primary: bool = Field(serialization_alias="isPrimary")
    namespaces: list[str] = Field(serialization_alias="namespaceRegex")


class Isolation(Resource):
    """Answers under ``/admin/v2/clusters/{cluster}/namespaceIsolationPolicies``."""

    def __init__(self, service: IsolationService) -> None:
        self._service = service

    @operation(
        "GET",
        _PATH,
        tag=_TAG,
        summary="All isolation policies.",
        role=Role.READ,
        replies=(Reply(200, "By name.", dict[str, Any]), _NO_CLUSTER),
    )
    async def policies(self, call: Call) -> web.StreamResponse:
        """Tell all policies."""
        return json_reply(dict(await self._service.policies(call.path["cluster"])))

    @operation(
        "GET",
        f"{_PATH}/{{policy}}",
        tag=_TAG,
        summary="One isolation policy.",
        role=Role.READ,
        replies=(Reply(200, "It, as it was set.", dict[str, Any]), _NONE),
    )
    async def policy(self, call: Call) -> web.StreamResponse:
        """Tell one policy."""
        found = await self._service.policies(call.path["cluster"])
        name = call.path["policy"]
        if name not in found:
            raise Refused(404, f"isolation policy {name} does not exist")
        return json_reply(found[name])

    @operation(
        "POST",
        f"{_PATH}/{{policy}}",
        tag=_TAG,
        summary="Set an isolation policy.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It is set, and what it does not let stay has moved if it could."),
            _NO_CLUSTER,
            Reply(409, "Others changed the policies again and again meanwhile."),
        ),
        body=IsolationPolicy,
        leader=True,
    )
    async def put(self, call: Call) -> web.StreamResponse:
        """Set a policy, new or in place of the one of that name.

        Bundles that lie where they may not lie any more are then moved: those of
        namespaces that the policy is newly about or with other primary brokers, or with
        `unload_scope` `all_matching` of all it is about, or with `none` of none. What may
        stay is not interrupted, and what no other broker can take stays, too.
        """
        policy: IsolationPolicy = call.body
        await self._service.put(
            call.path["cluster"],
            call.path["policy"],
            policy.model_dump(mode="json", exclude_none=True),
        )
        return empty_reply(204)

    @operation(
        "DELETE",
        f"{_PATH}/{{policy}}",
        tag=_TAG,
        summary="Remove an isolation policy.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It is removed."),
            _NONE,
            Reply(409, "Others changed the policies again and again meanwhile."),
        ),
    )
    async def remove(self, call: Call) -> web.StreamResponse:
        """Remove a policy."""
        await self._service.remove(call.path["cluster"], call.path["policy"])
        return empty_reply(204)

    @operation(
        "GET",
        f"{_PATH}/brokers",
        tag=_TAG,
        summary="Which policies are about which registered brokers.",
        role=Role.READ,
        replies=(Reply(200, "One entry for each pair.", list[BrokerPolicy]), _NO_CLUSTER),
    )
    async def brokers(self, call: Call) -> web.StreamResponse:
        """Tell the policies of all brokers."""
        found = await self._service.brokers(call.path["cluster"])
        return json_reply([_to_json(one) for one in found])

    @operation(
        "GET",
        f"{_PATH}/brokers/{{broker}}",
        tag=_TAG,
        summary="The policy that is about a broker.",
        role=Role.READ,
        replies=(
            Reply(200, "The first by name.", BrokerPolicy),
            Reply(404, "No policy is about such a broker, or there is no such cluster here."),
        ),
    )
    async def of_broker(self, call: Call) -> web.StreamResponse:
        """Tell the policy of one broker."""
        broker = broker_in(call)
        found = await self._service.brokers(call.path["cluster"])
        mine = [one for one in found if one.broker == broker]
        if not mine:
            raise Refused(404, f"no isolation policy is about a registered broker {broker}")
        return json_reply(_to_json(mine[0]))


def _to_json(one: IsolatedBroker) -> dict[str, Any]:
    return {
        "brokerName": one.broker,
        "policyName": one.policy,
        "isPrimary": one.is_primary,
        "namespaceRegex": list(one.namespaces),
    }

"""Isolation policies: which brokers may serve which namespaces."""

import re
from typing import Annotated, Any, Final, Literal

from aiohttp import web
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from loadmanager.adapters.http.admin.names import broker_in
from loadmanager.adapters.http.operations import Call, Document, Reply, Resource, operation
from loadmanager.adapters.http.replies import Refused, empty_reply, json_reply
from loadmanager.ports import IsolationService

_PATH: Final = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"
_NO_CLUSTER: Final = Reply(404, "The cluster is another one.")
_NONE: Final = Reply(404, "The cluster is another one, or has no such policy.")
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


class MinAvailable(Document):
    """When secondary brokers take part; whole numbers, written as strings."""

    min_limit: WholeText
    """Secondary brokers take part if fewer primary ones are available."""
    usage_threshold: WholeText
    """In percent; a primary broker with more usage does not count as available."""


class Failover(Document):
    """The failover to secondary brokers."""

    policy_type: Literal["min_available"]
    parameters: MinAvailable


class IsolationPolicy(Document):
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


class BrokerPolicy(Document):
    """An isolation policy that governs a broker."""

    broker: str = Field(serialization_alias="brokerName")
    policy: str = Field(serialization_alias="policyName")
    is_primary: bool
    namespaces: list[str] = Field(serialization_alias="namespaceRegex")


class Isolation(Resource, tag="isolation"):
    """Answers under ``/admin/v2/clusters/{cluster}/namespaceIsolationPolicies``."""

    def __init__(self, service: IsolationService) -> None:
        self._service = service

    @operation("GET", _PATH, Reply(200, "The policies, by name.", dict[str, Any]), _NO_CLUSTER)
    async def policies(self, call: Call) -> web.StreamResponse:
        """List all isolation policies."""
        return json_reply(dict(await self._service.policies(call.path["cluster"])))

    @operation(
        "GET",
        f"{_PATH}/{{policy}}",
        Reply(200, "The policy, as it was set.", dict[str, Any]),
        _NONE,
    )
    async def policy(self, call: Call) -> web.StreamResponse:
        """Get one isolation policy."""
        found = await self._service.policies(call.path["cluster"])
        name = call.path["policy"]
        if name not in found:
            raise Refused(404, f"isolation policy {name} does not exist")
        return json_reply(found[name])

    @operation(
        "POST",
        f"{_PATH}/{{policy}}",
        Reply(
            204, "The policy is set, and the bundles that may not stay have moved where they could."
        ),
        _NO_CLUSTER,
        Reply(409, "Other clients kept changing the policies."),
        body=IsolationPolicy,
        leader=True,
    )
    async def put(self, call: Call) -> web.StreamResponse:
        """Set an isolation policy.

        A policy of that name is replaced. Bundles that may no longer stay where they are then move:
        those of namespaces that the policy newly governs or that have other primary brokers now;
        with `unload_scope` `all_matching`, those of all namespaces that it governs; with `none`,
        none. A bundle that may stay is not interrupted, and one that no other broker can take stays
        as well.
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
        Reply(204, "The policy is removed."),
        _NONE,
        Reply(409, "Other clients kept changing the policies."),
    )
    async def remove(self, call: Call) -> web.StreamResponse:
        """Remove an isolation policy."""
        await self._service.remove(call.path["cluster"], call.path["policy"])
        return empty_reply(204)

    @operation(
        "GET",
        f"{_PATH}/brokers",
        Reply(200, "One entry for each pair of broker and policy.", list[BrokerPolicy]),
        _NO_CLUSTER,
    )
    async def brokers(self, call: Call) -> web.StreamResponse:
        """List the isolation policies that govern each registered broker."""
        found = await self._service.brokers(call.path["cluster"])
        return json_reply([BrokerPolicy.model_validate(one) for one in found])

    @operation(
        "GET",
        f"{_PATH}/brokers/{{broker}}",
        Reply(200, "The policy; of several, the first by name.", BrokerPolicy),
        Reply(404, "No policy governs the broker, or the cluster is another one."),
    )
    async def of_broker(self, call: Call) -> web.StreamResponse:
        """Get the isolation policy that governs a broker."""
        broker = broker_in(call)
        found = await self._service.brokers(call.path["cluster"])
        mine = [one for one in found if one.broker == broker]
        if not mine:
            raise Refused(404, f"no isolation policy is about a registered broker {broker}")
        return json_reply(BrokerPolicy.model_validate(mine[0]))

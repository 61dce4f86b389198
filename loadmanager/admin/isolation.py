from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import structlog
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
from loadmanager.admin.bundles import Unload
from loadmanager.common.cluster_state import check_cluster
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, as_unavailable
from loadmanager.core import policies as core_policies
from loadmanager.core import znodes
from loadmanager.core.fields import parse_object, to_json
from loadmanager.core.ids import BrokerId, belongs_to_a_broker, namespace_of, parse_broker
from loadmanager.core.policies import LONGEST_PATTERN, checked, hosts_matching, matches_any
from loadmanager.core.wire.policies import decode_failure_domain, decode_isolation
from loadmanager.leader.term import Leadership
from loadmanager.ports.coordination import Create, Node, Operation, SetData
from loadmanager.ports.lookup import Conflict, LookupRefused, Missing

log = structlog.get_logger()

_APPLIED_WITHIN_S: Final = 5.0
_POLL_S: Final = 0.05


_PATH: Final = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"
_NO_CLUSTER: Final = Reply(404, "The cluster is another one.")
_NONE: Final = Reply(404, "The cluster is another one, or has no such policy.")
_MOST: Final = 1_000


Regex = Annotated[
    str,
    StringConstraints(min_length=1, max_length=LONGEST_PATTERN),
    AfterValidator(checked),
    Field(json_schema_extra={"format": "regex"}),
]
Regexes = Annotated[list[Regex], Field(max_length=_MOST)]
WholeText = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]


class MinAvailable(Document):
    """When secondary brokers are used. Both values are whole numbers, written as strings."""

    min_limit: WholeText
    """Secondary brokers are used if fewer primary brokers than this are available."""
    usage_threshold: WholeText
    """The usage in percent above which a primary broker does not count as available."""


class Failover(Document):
    """The failover to secondary brokers."""

    policy_type: Literal["min_available"]
    parameters: MinAvailable


class IsolationPolicy(Document):
    """Namespaces and the only brokers that may serve them, which serve no other namespaces.

    All are regular expressions that match the whole text: `tenant/namespace` of a namespace, and
    the host without the port of a broker.
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
    def __init__(self, context: Context, leading: Leadership, unload: Unload, cluster: str) -> None:
        self._context = context
        self._leading = leading
        self._unload = unload
        self._documents = Documents(context.coordination)
        self._cluster = cluster
        self._path = znodes.isolation_policies(cluster)

    @operation(f"GET {_PATH}", Reply(200, "The policies, by name.", dict[str, Any]), _NO_CLUSTER)
    async def policies(self, cluster: str) -> Mapping[str, Any]:
        """List all isolation policies."""
        check_cluster(cluster, self._cluster)
        return self._parsed(await self._documents.read(self._path))

    @operation(
        f"GET {_PATH}/{{policy}}", Reply(200, "The policy, as it was set.", dict[str, Any]), _NONE
    )
    async def policy(self, cluster: str, policy: str) -> Any:
        """Get one isolation policy."""
        found = await self.policies(cluster)
        if policy not in found:
            raise Missing(f"isolation policy {policy} does not exist")
        return found[policy]

    @operation(
        f"POST {_PATH}/{{policy}}",
        Reply(
            204, "The policy is set, and the bundles that may not stay have moved where they could."
        ),
        _NO_CLUSTER,
        Reply(409, "Other clients kept changing the policies."),
        leader=True,
    )
    async def put(self, cluster: str, policy: str, body: IsolationPolicy) -> None:
        """Set an isolation policy.

        A policy of that name is replaced. Bundles that may no longer stay where they are then move:
        those of namespaces that the policy newly governs or that have other primary brokers now;
        with `unload_scope` `all_matching`, those of all namespaces that it governs; with `none`,
        none. A bundle that may stay is not interrupted, and one that no other broker can take stays
        as well.
        """
        check_cluster(cluster, self._cluster)
        given = body.model_dump(mode="json", exclude_none=True)
        scope = body.unload_scope or "changed"
        if scope != "none":
            self._leading.require_term()
        former: dict[str, Any] = {}

        def edit(data: bytes | None) -> bytes:
            nonlocal former
            former = self._parsed(data)
            return to_json({**former, policy: given})

        await self._documents.change(self._path, edit)
        log.info("isolation.policy.set", policy=policy)
        if scope != "none":
            old = self._read(former).get(policy) if scope == "changed" else None
            await self._move_away(policy, old, self._read({policy: given})[policy])

    @operation(
        f"DELETE {_PATH}/{{policy}}",
        Reply(204, "The policy is removed."),
        _NONE,
        Reply(409, "Other clients kept changing the policies."),
    )
    async def remove(self, cluster: str, policy: str) -> None:
        """Remove an isolation policy."""
        check_cluster(cluster, self._cluster)

        def edit(data: bytes | None) -> bytes:
            found = self._parsed(data)
            if policy not in found:
                raise Missing(f"isolation policy {policy} does not exist")
            return to_json({name: one for name, one in found.items() if name != policy})

        await self._documents.change(self._path, edit)
        log.info("isolation.policy.removed", policy=policy)

    @operation(
        f"GET {_PATH}/brokers",
        Reply(200, "One entry for each pair of broker and policy.", list[BrokerPolicy]),
        _NO_CLUSTER,
    )
    async def brokers(self, cluster: str) -> Sequence[BrokerPolicy]:
        """List the isolation policies that govern each registered broker."""
        check_cluster(cluster, self._cluster)
        policies = self._read(self._parsed(await self._documents.read(self._path)))
        return [
            BrokerPolicy(
                broker=broker,
                policy=name,
                is_primary=bool(hosts_matching(policy.primary, (broker,)).any()),
                namespaces=list(policy.namespaces),
            )
            for broker in sorted(self._context.cluster_state.brokers)
            for name, policy in sorted(policies.items())
            if _lets(policy, broker)
        ]

    @operation(
        f"GET {_PATH}/brokers/{{broker}}",
        Reply(
            200, "The policy; if several govern the broker, the first one by name.", BrokerPolicy
        ),
        Reply(404, "No policy governs the broker, or the cluster is another one."),
    )
    async def of_broker(self, cluster: str, broker: BrokerId) -> BrokerPolicy:
        """Get the isolation policy that governs a broker."""
        found = await self.brokers(cluster)
        mine = [one for one in found if one.broker == broker]
        if not mine:
            raise Missing(f"no isolation policy is about a registered broker {broker}")
        return mine[0]

    async def _move_away(
        self,
        name: str,
        old: core_policies.IsolationPolicy | None,
        new: core_policies.IsolationPolicy,
    ) -> None:
        """Move the bundles that may not stay, one by one.

        Only those that the policy newly governs, or with other primary brokers.
        """
        leaving = []
        for bundle, holding in sorted(self._context.cluster_state.owners.items()):
            namespace = namespace_of(bundle)
            was = old and old.primary == new.primary and matches_any(old.namespaces, namespace)
            governed = matches_any(new.namespaces, namespace) and not was
            if governed and not belongs_to_a_broker(bundle) and not _lets(new, holding.broker):
                leaving.append(bundle)
        if not leaving or not await self._until_applied(name, new):
            return
        for bundle in leaving:
            namespace, range_text = namespace_of(bundle), bundle.rpartition("/")[2]
            try:
                await self._unload(namespace, range_text, None)
            except LookupRefused as error:
                # The policy stands: the bundle can be unloaded again by hand.
                log.warning(
                    "isolation.bundle.unload_failed", bundle=bundle, policy=name, why=str(error)
                )

    async def _until_applied(self, name: str, policy: core_policies.IsolationPolicy) -> bool:
        """Wait until this leader decides by the policy; False if it does not within 5 s."""
        clock = self._context.clock
        deadline_s = clock.monotonic_s() + _APPLIED_WITHIN_S
        while clock.monotonic_s() < deadline_s:
            leader_term = self._leading.leader_term
            if leader_term is None:
                return False
            if leader_term.look().view.policies.isolation.get(name) == policy:
                return True
            await clock.sleep(_POLL_S)
        return False

    def _read(self, document: Mapping[str, Any]) -> dict[str, core_policies.IsolationPolicy]:
        with as_unavailable(self._path, "read"):
            return decode_isolation(self._path, to_json(document))

    def _parsed(self, data: bytes | None) -> dict[str, Any]:
        with as_unavailable(self._path, "read"):
            return parse_object(self._path, data) if data else {}


def _lets(policy: core_policies.IsolationPolicy, broker: BrokerId) -> bool:
    return bool(hosts_matching((*policy.primary, *policy.secondary), (broker,)).any())


_DOMAINS: Final = "/admin/v2/clusters/{cluster}/failureDomains"
_NO_DOMAIN: Final = Reply(404, "The cluster is another one, or has no such domain.")
_MOST_BROKERS: Final = 10_000

Broker = Annotated[str, StringConstraints(pattern=r"^[-.A-Za-z0-9_]+:[1-9][0-9]{0,4}$")]


class FailureDomain(Document):
    """The brokers of one failure domain. They need not be registered."""

    brokers: list[Broker] = Field(max_length=_MOST_BROKERS)


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
        f"GET {_DOMAINS}",
        Reply(200, "The domains, by name.", dict[str, FailureDomain]),
        _NO_CLUSTER,
    )
    async def domains(self, cluster: str) -> Mapping[str, FailureDomain]:
        """List all failure domains."""
        check_cluster(cluster, self._cluster)
        found = await self._read()
        return {name: FailureDomain(brokers=list(brokers)) for name, (_, brokers) in found.items()}

    @operation(
        f"GET {_DOMAINS}/{{failure_domain}}",
        Reply(200, "The brokers of the domain.", FailureDomain),
        _NO_DOMAIN,
    )
    async def domain(self, cluster: str, failure_domain: str) -> FailureDomain:
        """Get one failure domain."""
        found = await self.domains(cluster)
        if failure_domain not in found:
            raise Missing(f"failure domain {failure_domain} does not exist")
        return found[failure_domain]

    @operation(
        f"POST {_DOMAINS}/{{failure_domain}}",
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
        path, content = f"{self._folder}/{failure_domain}", to_json({"brokers": brokers})

        async def setting() -> list[Operation]:
            folder = await self._documents.node(self._folder)
            if folder is None:
                raise Conflict(f"{self._folder} was deleted by others meanwhile")
            found = await self._read()
            for other, (_, taken) in found.items():
                both = [one for one in brokers if one in taken and other != failure_domain]
                if both:
                    raise Conflict(f"broker {both[0]} is in failure domain {other} already")
            touch = SetData(self._folder, folder.data, folder.stat.version)
            if failure_domain in found:
                return [touch, SetData(path, content, found[failure_domain][0].stat.version)]
            return [touch, Create(path, content)]

        await self._documents.commit(self._folder, setting)
        log.info("failure.domain.set", domain=failure_domain, brokers=brokers)

    @operation(
        f"DELETE {_DOMAINS}/{{failure_domain}}",
        Reply(204, "The domain is removed."),
        _NO_DOMAIN,
        Reply(409, "Other clients kept changing the domains."),
    )
    async def remove(self, cluster: str, failure_domain: str) -> None:
        """Remove a failure domain; its brokers are then in none."""
        check_cluster(cluster, self._cluster)
        path = f"{self._folder}/{failure_domain}"

        def edit(data: bytes | None) -> None:
            if data is None:
                raise Missing(f"failure domain {failure_domain} does not exist")

        await self._documents.change(path, edit)
        log.info("failure.domain.removed", domain=failure_domain)

    async def _read(self) -> dict[str, tuple[Node, tuple[BrokerId, ...]]]:
        found = {}
        for name in await self._documents.names(self._folder):
            path = f"{self._folder}/{name}"
            node = await self._documents.node(path)
            if node is not None:
                with as_unavailable(path, "read"):
                    found[name] = (node, decode_failure_domain(path, node.data))
        return found

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import ConfigDict, Field

from loadmanager.adapters.http.assign_client import TOPICS_PATH, topics_to_json
from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query
from loadmanager.admin.topics import Topics
from loadmanager.common.cluster_state import check_cluster
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, as_unavailable
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, namespace_of, parse_namespace
from loadmanager.core.policies import Policies, hosts_matching
from loadmanager.core.wire.policies import decode_isolation
from loadmanager.core.wire.reports import decode_loads, report_to_json
from loadmanager.ports.administration import BrokerUnknown
from loadmanager.ports.lookup import Unavailable

_STATS: Final = "broker stats"
_BROKERS: Final = Reply(200, "The ids of the brokers, `host:port`, sorted.", list[str])
_NO_CLUSTER: Final = Reply(404, "The cluster is another one.")


class OwnedBundle(Document):
    """Why a broker owns a bundle, as Pulsar has it."""

    model_config = ConfigDict(alias_generator=None)

    assignment: Literal["shared", "primary", "secondary"] = Field(
        serialization_alias="broker_assignment"
    )
    """Whether the broker is a primary or a secondary one of the isolation policy that governs the
    bundle; `shared` without such a policy."""
    is_controlled: bool
    """Whether an isolation policy governs the bundle."""
    is_active: bool


class StatsQuery(Query):
    """Which topics are listed."""

    namespace: str = ""
    """Lists only topics of this `tenant/namespace`. Pulsar has no such parameter."""


class Brokers(Resource, tag="brokers"):
    def __init__(self, context: Context, cluster: str, topics: Topics) -> None:
        self._cluster_state = context.cluster_state
        self._me = context.identity.broker
        self._cluster = cluster
        self._documents = Documents(context.coordination)
        self._topics = topics

    @operation("GET", "/admin/v2/brokers", _BROKERS)
    @operation("GET", "/admin/v2/brokers/{cluster}", _BROKERS, _NO_CLUSTER)
    async def registered(self, cluster: str | None = None) -> Sequence[BrokerId]:
        """List the registered brokers."""
        if cluster is not None:
            check_cluster(cluster, self._cluster)
        return sorted(self._cluster_state.brokers)

    @operation(
        "GET",
        "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces",
        Reply(200, "The reason of ownership, by bundle.", dict[str, OwnedBundle]),
        Reply(404, "The cluster is another one, or the broker is not registered."),
    )
    async def owned(self, cluster: str, broker: BrokerId) -> Mapping[BundleId, OwnedBundle]:
        """List the bundles that a broker owns."""
        check_cluster(cluster, self._cluster)
        if broker not in self._cluster_state.brokers:
            raise BrokerUnknown(f"{broker}: no such broker is registered")
        path = znodes.isolation_policies(self._cluster)
        data = await self._documents.read(path)
        with as_unavailable(path, "read"):
            policies = Policies(isolation=decode_isolation(path, data) if data else {})
        await self._cluster_state.lists.require_read(broker)
        owners = self._cluster_state.owners.items()
        mine = sorted(bundle for bundle, holding in owners if holding.broker == broker)
        return {bundle: _owned(policies, bundle, broker) for bundle in mine}

    @operation(
        "GET",
        "/admin/v2/broker-stats/load-report",
        Reply(200, "Pulsar's `LocalBrokerData`.", dict[str, Any]),
        tag=_STATS,
    )
    async def load_report(self) -> Mapping[str, Any]:
        """Get the last load report of this sidecar's broker."""
        known = self._cluster_state.brokers.get(self._me)
        path = znodes.loads(self._me)
        data = await self._documents.read(path) if known else None
        if known is None or data is None:
            raise Unavailable(f"broker {self._me} is not registered now")
        with as_unavailable(path, "read"):
            return report_to_json(decode_loads(path, data, known.registration))

    @operation(
        "GET",
        TOPICS_PATH,
        Reply(200, "The rates, by namespace, bundle range, domain and topic.", dict[str, Any]),
        Reply(412, "The name of the namespace is not valid."),
        tag=_STATS,
    )
    async def topics(self, query: StatsQuery) -> Mapping[str, Any]:
        """List the open topics of this sidecar's broker, with their rates.

        A broker with very many topics may report only the busiest ones.
        """
        namespace = parse_namespace(query.namespace) if query.namespace else None
        return topics_to_json(await self._topics.own(namespace))


def _owned(policies: Policies, bundle: BundleId, broker: BrokerId) -> OwnedBundle:
    policy = policies.governing(namespace_of(bundle))
    assignment: Literal["shared", "primary", "secondary"] = "shared"
    if policy is not None:
        is_primary = hosts_matching(policy.primary, (broker,)).any()
        assignment = "primary" if is_primary else "secondary"
    return OwnedBundle(assignment=assignment, is_controlled=assignment != "shared", is_active=True)

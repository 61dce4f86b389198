"""The brokers of the cluster as people ask for them."""

from collections.abc import Mapping, Sequence
from typing import Any

from loadmanager.common.bundle_names import check_cluster
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, told
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, namespace_of
from loadmanager.core.policies import Policies, hosts_matching
from loadmanager.core.wire import decode_isolation, decode_loads
from loadmanager.core.wire.reports import report_to_json
from loadmanager.ports import BrokerUnknown, Unavailable


class BrokerRequests:
    """The application's side of `BrokerService`."""

    def __init__(self, context: Context, cluster: str) -> None:
        self._cluster_state = context.cluster_state
        self._me = context.identity.broker
        self._cluster = cluster
        self._documents = Documents(context.coordination)

    async def registered(self, cluster: str | None) -> Sequence[BrokerId]:
        """Return every registered broker; see `BrokerService`."""
        if cluster is not None:
            check_cluster(cluster, self._cluster)
        return sorted(self._cluster_state.brokers)

    async def owned(self, cluster: str, broker: BrokerId) -> Mapping[BundleId, str]:
        """Return what a broker owns, and why it may; see `BrokerService`."""
        check_cluster(cluster, self._cluster)
        if broker not in self._cluster_state.brokers:
            raise BrokerUnknown(f"{broker}: no such broker is registered")
        path = znodes.isolation_policies(self._cluster)
        data = await self._documents.read(path)
        with told(path, "read"):
            policies = Policies(isolation=decode_isolation(path, data) if data else {})
        owners = self._cluster_state.owners.items()
        mine = sorted(bundle for bundle, holding in owners if holding.broker == broker)
        return {bundle: _why(policies, bundle, broker) for bundle in mine}

    async def load_report(self) -> Mapping[str, Any]:
        """Return the last load report of this broker; see `BrokerService`."""
        known = self._cluster_state.brokers.get(self._me)
        path = znodes.loads(self._me)
        data = await self._documents.read(path) if known else None
        if known is None or data is None:
            raise Unavailable(f"broker {self._me} is not registered now")
        with told(path, "read"):
            return report_to_json(decode_loads(path, data, known.registration))


def _why(policies: Policies, bundle: BundleId, broker: BrokerId) -> str:
    policy = policies.governing(namespace_of(bundle))
    if policy is None:
        return "shared"
    return "primary" if hosts_matching(policy.primary, (broker,)).any() else "secondary"

"""Where everything lies in ZooKeeper, below the chroot: Pulsar's own paths where it has them.

Paths whose last part is a broker id or an encoded topic are built here alone.
"""

from typing import Final
from urllib.parse import quote

from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName, namespace_of

LEADER: Final = "/loadbalance/leader"
EPOCH: Final = "/loadbalance/epoch"
CLUSTER: Final = "/loadbalance/cluster"
AGENTS: Final = "/loadbalance/agents"
BROKERS: Final = "/loadbalance/brokers"
LOADS: Final = "/loadbalance/loads"
OWNED: Final = "/loadbalance/owned"
ORDERS: Final = "/loadbalance/orders"
DRAINING: Final = "/loadbalance/draining"
STATE: Final = "/loadbalance/state"
KEY: Final = "/loadbalance/key"
LOCKS: Final = "/namespace"
LOCAL_POLICIES: Final = "/admin/local-policies"
CLUSTERS: Final = "/admin/clusters"
POLICIES: Final = "/admin/policies"
PARTITIONED_TOPICS: Final = "/admin/partitioned-topics"
CONFIGURATION: Final = "/admin/configuration"
BALANCING: Final = "/loadbalance/balancing"
COST_MODEL: Final = "/loadbalance/cost-model"
ATTACH_PRIOR: Final = "/loadbalance/attach/prior"
"""Settings of Pulsar's own balancer before ``loadmanager attach`` switched it off."""
ATTACH_PAUSED: Final = "/loadbalance/attach/paused"
ATTACH_MOVES: Final = "/loadbalance/attach/moves"
"""How many moves ``loadmanager attach`` began within the last hour, for its budgets."""
ATTACH_COURSE: Final = "/loadbalance/attach/course"
"""How the balance went over the last hour, for the live page of the next controller."""
ATTACH_CANDIDATES: Final = "/loadbalance/attach/candidates"
QUOTAS: Final = "/loadbalance/resource-quota"


def registration(broker: BrokerId) -> str:
    """Return where ``broker`` is registered with its addresses and its state (ephemeral)."""
    return f"{BROKERS}/{broker}"


def loads(broker: BrokerId) -> str:
    """Return where ``broker``'s agent publishes what the broker carries (ephemeral)."""
    return f"{LOADS}/{broker}"


def agents(broker: BrokerId) -> str:
    """Return the folder that holds the mark of ``broker``'s present agent, and no other."""
    return f"{AGENTS}/{broker}"


def agent(broker: BrokerId, session_id: int) -> str:
    """Return the mark of the agent of ``broker`` in this session (ephemeral).

    A new agent deletes it as it registers, and every commit of an agent checks it. The
    version of a node that each agent recreates would not do: it begins at 0 again.
    """
    return f"{agents(broker)}/{session_id:x}"


def owned(broker: BrokerId) -> str:
    """Return where ``broker`` lists what it owns (ephemeral)."""
    return f"{OWNED}/{broker}"


def orders(broker: BrokerId) -> str:
    """Return where the leader says what ``broker`` should own."""
    return f"{ORDERS}/{broker}"


def draining(broker: BrokerId) -> str:
    """Return the mark that ``broker`` is to be emptied and take nothing."""
    return f"{DRAINING}/{broker}"


def lock(bundle: BundleId) -> str:
    """Return the ownership lock of ``bundle`` (ephemeral)."""
    return f"{LOCKS}/{bundle}"


def lock_folder(bundle: BundleId) -> str:
    """Return the folder of the locks of the bundle's namespace; see `lock_folder_of`."""
    return lock_folder_of(namespace_of(bundle))


def lock_folder_of(namespace: Namespace) -> str:
    """Return the folder of the locks of a namespace's bundles (persistent).

    Its version counts the commits in which any of them was taken.
    """
    return f"{LOCKS}/{namespace}"


def local_policies(namespace: Namespace) -> str:
    """Return where the bundle boundaries of ``namespace`` stand."""
    return f"{LOCAL_POLICIES}/{namespace}"


def policies(namespace: Namespace) -> str:
    """Return where the policies of ``namespace`` stand, which Pulsar keeps for all clusters."""
    return f"{POLICIES}/{namespace}"


def quota(bundle: BundleId | None) -> str:
    """Return where the resource quota of ``bundle`` stands, None for that of all others."""
    return f"{QUOTAS}/{bundle or 'default'}"


def isolation_policies(cluster: str) -> str:
    """Return where the isolation policies of ``cluster`` stand, all in one node."""
    return f"{CLUSTERS}/{cluster}/namespaceIsolationPolicies"


def failure_domains(cluster: str) -> str:
    """Return the folder of the failure domains of ``cluster``."""
    return f"{CLUSTERS}/{cluster}/failureDomain"


def partitioned_topics(namespace: Namespace) -> str:
    """Return the folder of the partitioned topics of ``namespace``, one below for each domain."""
    return f"{PARTITIONED_TOPICS}/{namespace}"


def partitions(topic: TopicName) -> str:
    """Return where the number of partitions of ``topic`` stands, as Pulsar encodes it."""
    local = quote(topic.local, safe="")
    return f"{PARTITIONED_TOPICS}/{topic.namespace}/{topic.domain}/{local}"

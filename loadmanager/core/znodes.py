"""Paths in ZooKeeper, relative to the chroot; Pulsar's own paths where they exist.

Paths that end in a broker id or an encoded topic are built only here.
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
ATTACH_PRIOR: Final = "/loadbalance/attach/prior"
"""Settings of Pulsar's own balancer before ``loadmanager attach`` switched it off."""
ATTACH_PAUSED: Final = "/loadbalance/attach/paused"
ATTACH_MOVES: Final = "/loadbalance/attach/moves"
"""The moves that ``loadmanager attach`` began within the last hour, for its limits."""
ATTACH_COURSE: Final = "/loadbalance/attach/course"
ATTACH_TARGETS: Final = "/loadbalance/attach/targets"
"""The balance over the last hour, for the live page of the next controller."""
ATTACH_CORDONS: Final = "/loadbalance/attach/cordons"
ATTACH_DRAINS: Final = "/loadbalance/attach/drains"
ATTACH_BROKERS: Final = "/loadbalance/attach/brokers"
ATTACH_CANDIDATES: Final = "/loadbalance/attach/candidates"


def registration(broker: BrokerId) -> str:
    return f"{BROKERS}/{broker}"


def loads(broker: BrokerId) -> str:
    return f"{LOADS}/{broker}"


def agents(broker: BrokerId) -> str:
    """Return the folder that contains only the mark of ``broker``'s current agent."""
    return f"{AGENTS}/{broker}"


def agent(broker: BrokerId, session_id: int) -> str:
    """Return the mark of the agent of ``broker`` in this session (ephemeral).

    A new agent deletes it when it registers, and every commit of an agent checks it. The version
    of a node that each agent recreates could not be used for that check: it starts again at 0.
    """
    return f"{agents(broker)}/{session_id:x}"


def owned(broker: BrokerId) -> str:
    return f"{OWNED}/{broker}"


def orders(broker: BrokerId) -> str:
    return f"{ORDERS}/{broker}"


def draining(broker: BrokerId) -> str:
    return f"{DRAINING}/{broker}"


def lock(bundle: BundleId) -> str:
    return f"{LOCKS}/{bundle}"


def lock_folder(bundle: BundleId) -> str:
    return lock_folder_of(namespace_of(bundle))


def lock_folder_of(namespace: Namespace) -> str:
    """Return the folder of the locks of a namespace's bundles (persistent).

    Its version counts the commits that took any of these locks.
    """
    return f"{LOCKS}/{namespace}"


def local_policies(namespace: Namespace) -> str:
    return f"{LOCAL_POLICIES}/{namespace}"


def policies(namespace: Namespace) -> str:
    """Return the node of the policies of ``namespace``, which Pulsar shares among clusters."""
    return f"{POLICIES}/{namespace}"


def isolation_policies(cluster: str) -> str:
    return f"{CLUSTERS}/{cluster}/namespaceIsolationPolicies"


def failure_domains(cluster: str) -> str:
    return f"{CLUSTERS}/{cluster}/failureDomain"


def partitioned_topics(namespace: Namespace) -> str:
    return f"{PARTITIONED_TOPICS}/{namespace}"


def partitions(topic: TopicName) -> str:
    local = quote(topic.local, safe="")
    return f"{PARTITIONED_TOPICS}/{topic.namespace}/{topic.domain}/{local}"

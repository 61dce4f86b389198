"""Where everything lies in ZooKeeper."""

from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, Namespace, topic_from_parts


def test_paths_are_those_pulsar_uses() -> None:
    broker = BrokerId("b1:8080")
    bundle = BundleId("t/ns/0x00000000_0x80000000")
    assert znodes.LEADER == "/loadbalance/leader"
    assert znodes.registration(broker) == "/loadbalance/brokers/b1:8080"
    assert znodes.loads(broker) == "/loadbalance/loads/b1:8080"
    assert znodes.owned(broker) == "/loadbalance/owned/b1:8080"
    assert znodes.orders(broker) == "/loadbalance/orders/b1:8080"
    assert znodes.draining(broker) == "/loadbalance/draining/b1:8080"
    assert znodes.lock(bundle) == "/namespace/t/ns/0x00000000_0x80000000"
    assert znodes.local_policies(Namespace("t/ns")) == "/admin/local-policies/t/ns"
    assert znodes.lock(bundle) == f"{znodes.lock_folder(bundle)}/0x00000000_0x80000000"
    assert znodes.policies(Namespace("t/ns")) == "/admin/policies/t/ns"
    assert znodes.partitioned_topics(Namespace("t/ns")) == "/admin/partitioned-topics/t/ns"
    assert znodes.agent(broker, 0x1F) == f"{znodes.agents(broker)}/1f"
    assert znodes.agents(broker) == f"{znodes.AGENTS}/b1:8080"
    clusters = "/admin/clusters/standalone"
    assert znodes.isolation_policies("standalone") == f"{clusters}/namespaceIsolationPolicies"
    assert znodes.failure_domains("standalone") == f"{clusters}/failureDomain"


def test_a_topic_with_a_slash_is_one_node() -> None:
    topic = topic_from_parts("persistent", "t", "ns", "a/b c")
    assert znodes.partitions(topic) == "/admin/partitioned-topics/t/ns/persistent/a%2Fb%20c"

"""A split whose commit is on its way while its bundle is recalled, or its broker lost."""

import asyncio
from collections.abc import Sequence
from typing import Any

from stories import served, story

from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.orders import SplitOrder
from loadmanager.core.wire.policies import decode_boundaries
from loadmanager.ports.coordination import Operation
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, topic_in
from tests.testbed.faults.host import Host

MIDDLE = SplitOrder("range_equally_divide")
BY_HAND: dict[str, Any] = {"split": {"enabled": False}}
POLICIES = znodes.local_policies(NAMESPACE)


async def _cut_on_its_way(cluster: Cluster, late_s: float) -> tuple[Host, Agent, BundleId]:
    """Return once one that does not lead has sent the commit of a split, ``late_s`` early."""
    boundaries = await served(cluster, 6)
    host = next(h for h in cluster.hosts if h is not cluster.leader.host and h.serving)
    agent = cluster.agent_of(host.name)
    whole = min(host.serving)
    topic = topic_in(boundaries, whole)
    host.broker.publish(topic)
    sent = asyncio.Event()

    def begin(operations: Sequence[Operation]) -> None:
        if any(operation.path == POLICIES for operation in operations):
            agent.coordination.before_commit = None
            agent.coordination.delay_commits_s = late_s
            sent.set()

    agent.coordination.before_commit = begin
    await cluster.leader_term.splits.order(whole, MIDDLE)
    await sent.wait()
    return host, agent, whole


def _bundles(cluster: Cluster) -> tuple[BundleId, ...]:
    node = cluster.service.dump()[POLICIES]
    return decode_boundaries(POLICIES, NAMESPACE, node.data, node.stat.version).bundles


async def _settled(cluster: Cluster, agent: Agent, whole: BundleId) -> None:
    agent.coordination.delay_commits_s = 0.0
    await cluster.until(lambda: whole not in _bundles(cluster))
    await cluster.settled_at_last(lambda: _bundles(cluster), within_s=60.0)
    assert agent.alive, agent.failure
    assert len(_bundles(cluster)) == 7


@story(**BY_HAND)
async def test_a_bundle_that_is_moved_away_while_it_is_cut_is_served_in_parts(
    cluster: Cluster,
) -> None:
    host, agent, whole = await _cut_on_its_way(cluster, 1.0)
    await cluster.move(whole, next(h for h in cluster.hosts if h is not host))
    await cluster.until(lambda: whole not in host.serving, within_s=0.9)
    await _settled(cluster, agent, whole)


@story(**BY_HAND)
async def test_a_broker_that_is_lost_while_its_bundle_is_cut_leaves_the_parts_to_others(
    cluster: Cluster,
) -> None:
    host, agent, whole = await _cut_on_its_way(cluster, 9.0)
    host.freeze_broker()
    await _settled(cluster, agent, whole)
    host.thaw_broker()
    await cluster.until(lambda: agent.app.member.registered, within_s=60.0)


@story(**BY_HAND)
async def test_a_registration_that_is_deleted_while_a_bundle_is_cut_is_made_again(
    cluster: Cluster,
) -> None:
    host, agent, whole = await _cut_on_its_way(cluster, 1.0)
    operator = await cluster.operator()
    await operator.delete(znodes.registration(host.name))
    await _settled(cluster, agent, whole)
    await cluster.until(lambda: host.name in cluster.leader.cluster_state.brokers)


@story(**BY_HAND)
async def test_a_split_whose_reply_is_lost_is_seen_after_orders_that_name_the_parts(
    cluster: Cluster,
) -> None:
    _, agent, whole = await _cut_on_its_way(cluster, 1.0)

    def cut_off(path: str, _was: object, _now: object) -> None:
        if path == POLICIES and agent.coordination.in_touch:
            agent.coordination.suspend()

    cluster.service.watchers.append(cut_off)
    await cluster.until(lambda: whole not in _bundles(cluster))
    cluster.service.watchers.remove(cut_off)
    parts = set(_bundles(cluster))
    await cluster.until(lambda: whole not in cluster.orders(agent.host).bundles)
    assert parts & cluster.orders(agent.host).bundles
    agent.coordination.reconnect()
    await _settled(cluster, agent, whole)

"""What a sidecar does in a new session with a service that is not what it was."""

import asyncio

from stories import follower, place_all, served, story

from loadmanager.agent.owning_agent import OwningAgent
from loadmanager.common.cluster_conditions import ClusterDisagrees
from loadmanager.core import znodes
from tests.testbed.faults.cluster import Cluster


@story()
async def test_the_record_of_the_cluster_is_made_anew_in_an_empty_service(
    cluster: Cluster,
) -> None:
    operator = await cluster.operator()
    before = await operator.get(znodes.CLUSTER)
    assert before is not None
    await operator.delete(znodes.CLUSTER)
    await asyncio.sleep(2.0)
    assert await operator.get(znodes.CLUSTER) is None
    cluster.service.expire(cluster.leader.coordination.session.session_id)
    await asyncio.sleep(5.0)
    after = await operator.get(znodes.CLUSTER)
    assert after is not None
    assert after.data == before.data


@story()
async def test_orders_of_a_former_session_are_void_if_none_stand(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    agent = follower(cluster)
    operator = await cluster.operator()
    for one in cluster.living:
        one.coordination.suspend()
    for host in cluster.hosts:
        if await operator.get(znodes.orders(host.name)) is not None:
            await operator.delete(znodes.orders(host.name))
    for one in cluster.living:
        cluster.service.expire(one.coordination.session.session_id)
        one.coordination.reconnect()
    member = agent.app.member
    assert isinstance(member, OwningAgent)
    ownerships = member._ownerships
    await cluster.until(lambda: ownerships.orders and not ownerships.orders.bundles)
    await place_all(cluster, boundaries)
    await cluster.settled(boundaries.bundles)


@story()
async def test_a_sidecar_that_finds_another_hash_recorded_ends(cluster: Cluster) -> None:
    agent = cluster.leader
    await cluster.write(znodes.CLUSTER, b'{"format":2,"hash":"murmur3"}')
    assert agent.alive
    cluster.service.expire(agent.coordination.session.session_id)
    await cluster.until(lambda: not agent.alive, within_s=10.0)
    assert isinstance(agent.failure, ClusterDisagrees)

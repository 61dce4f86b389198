"""What a drain promises, clause by clause, where the stories of draining do not say it."""

import asyncio
from contextlib import suppress

from stories import place_all, story

from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.orders import decode_orders
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import Cluster, topic_in


def _follower(cluster: Cluster) -> Agent:
    return next(a for a in cluster.living if not a.leads and a.host.serving)


async def _named_heirs(cluster: Cluster, agent: Agent) -> dict[BundleId, BrokerId]:
    """Collect whom the orders of a broker name as next owners, until cancelled."""
    found: dict[BundleId, BrokerId] = {}
    path = znodes.orders(agent.host.name)
    with suppress(asyncio.CancelledError):
        while True:
            found |= decode_orders(path, cluster.service.dump()[path].data).handovers
            await asyncio.sleep(0.001)
    return found


@story()
async def test_every_bundle_that_leaves_a_drained_broker_goes_where_its_order_says(
    cluster: Cluster,
) -> None:
    boundaries = await cluster.make_namespace(30)
    await place_all(cluster, boundaries)
    agent = _follower(cluster)
    left = set(agent.host.serving)
    watching = asyncio.ensure_future(_named_heirs(cluster, agent))
    await asyncio.sleep(0)
    await cluster.leader.app.drain_requests.mark(agent.host.name, by="story", reason="")
    await cluster.until(lambda: not agent.host.serving, within_s=10.0)
    # Lists that nobody needs are read one a second.
    await cluster.settled(boundaries.bundles, within_s=len(cluster.hosts) + 2.0)
    watching.cancel()
    named = await watching
    assert left <= named.keys()
    assert all(cluster.server(bundle).name == named[bundle] for bundle in left)


@story()
async def test_who_stops_is_given_nothing_new_while_it_is_emptied(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(60)
    await place_all(cluster, boundaries)
    agent = _follower(cluster)
    had = set(agent.host.serving)
    leaving = asyncio.ensure_future(agent.leave())
    await cluster.until(
        lambda: cluster.leader.cluster_state.brokers[agent.host.name].registration.draining,
        within_s=1.0,
    )
    more = await cluster.make_namespace(12, Namespace("acme/more"))
    asking = next(a for a in cluster.living if a is not agent)
    await asyncio.gather(*(asking.look_up(topic_in(more, bundle)) for bundle in more.bundles))
    await leaving
    served = {interval.bundle for interval in agent.host.intervals()}
    assert served == had
    await cluster.settled([*boundaries.bundles, *more.bundles])


@story()
async def test_a_sidecar_that_left_leaves_nothing_to_wait_for(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(12)
    await place_all(cluster, boundaries)
    agent = _follower(cluster)
    session = agent.coordination.session.session_id
    assert any(n.stat.ephemeral_owner == session for n in cluster.service.dump().values())
    await agent.leave()
    # At once: nobody has to wait for the session to expire.
    assert not any(n.stat.ephemeral_owner == session for n in cluster.service.dump().values())
    await cluster.settled(boundaries.bundles, within_s=1.0)


@story()
async def test_a_mark_outlives_the_restart_of_every_sidecar(cluster: Cluster) -> None:
    agent = next(a for a in cluster.living if not a.leads)
    await agent.app.drain_requests.mark(agent.host.name, by="story", reason="")
    for each in list(cluster.living):
        await each.leave()
    for host in cluster.hosts:
        cluster.start(host)
    await cluster.ready()
    boundaries = await cluster.make_namespace(12)
    await place_all(cluster, boundaries)
    assert agent.host.serving == {}


@story()
async def test_a_mark_set_while_the_sidecar_is_cut_off_is_heeded_when_it_is_back(
    cluster: Cluster,
) -> None:
    boundaries = await cluster.make_namespace(12)
    await place_all(cluster, boundaries)
    agent = _follower(cluster)
    agent.coordination.suspend()
    await cluster.leader.app.drain_requests.mark(agent.host.name, by="story", reason="")
    await asyncio.sleep(2.0)
    agent.coordination.reconnect()
    await cluster.until(lambda: not agent.host.serving, within_s=10.0)
    await cluster.settled(boundaries.bundles)

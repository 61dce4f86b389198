import asyncio
from collections.abc import Sequence

from stories import served, story

from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster, topic_in
from tests.testbed.faults.host import Host

TICK_S = 1.0
WAIT_S = 10.0
"""`leader.return_wait_s` unless configured."""


def _places(cluster: Cluster, boundaries: Boundaries) -> dict[BundleId, Host]:
    return {bundle: cluster.server(bundle) for bundle in boundaries.bundles}


async def _even_cluster(cluster: Cluster, bundles: int) -> tuple[Boundaries, dict[BundleId, Host]]:
    """Place bundles evenly, and let the cluster grow older than a session."""
    boundaries = await served(cluster, bundles)
    await asyncio.sleep(SESSION_S)
    places = _places(cluster, boundaries)
    assert set(places.values()) == set(cluster.hosts)
    return boundaries, places


async def _outage(agents: Sequence[Agent], for_s: float, apart_s: float = 0.3) -> None:
    for agent in agents:
        agent.coordination.suspend()
    await asyncio.sleep(for_s)
    for agent in agents:
        agent.coordination.reconnect()
        await asyncio.sleep(apart_s)


def _largest_share(cluster: Cluster, boundaries: Boundaries) -> float:
    owned = [sum(b in host.serving for b in boundaries.bundles) for host in cluster.hosts]
    return max(owned) / len(boundaries.bundles)


@story(4)
async def test_an_outage_shorter_than_the_session_moves_nothing(cluster: Cluster) -> None:
    boundaries, places = await _even_cluster(cluster, 12)
    await _outage(cluster.agents, for_s=SESSION_S * 0.4)
    await cluster.settled(boundaries.bundles)
    assert _places(cluster, boundaries) == places
    assert not cluster.warnings("broker.return.awaited")


@story(2)
async def test_of_two_brokers_the_first_back_does_not_take_it_all(cluster: Cluster) -> None:
    boundaries, places = await _even_cluster(cluster, 8)
    await _outage(cluster.agents, for_s=SESSION_S * 2, apart_s=3.0)
    await cluster.settled(boundaries.bundles)
    assert _places(cluster, boundaries) == places


@story(4)
async def test_lookups_are_not_answered_with_who_is_back_first(cluster: Cluster) -> None:
    boundaries, places = await _even_cluster(cluster, 8)
    first, *others = cluster.agents
    away = [bundle for bundle, host in places.items() if host is not first.host]
    for agent in cluster.agents:
        agent.coordination.suspend()
    await asyncio.sleep(SESSION_S * 2)
    first.coordination.reconnect()
    await cluster.until(lambda: first.leads and first.app.leading.leader_term)
    lookup = asyncio.ensure_future(first.look_up(topic_in(boundaries, away[0])))
    await asyncio.sleep(1.0)
    assert first.metric("loadmanager_bundles_awaiting_return") == len(away)
    for agent in others:
        agent.coordination.reconnect()
    assert (await lookup).broker == places[away[0]].name
    await cluster.settled(boundaries.bundles)
    assert _places(cluster, boundaries) == places
    assert first.metric("loadmanager_bundles_awaiting_return") == 0
    assert cluster.warnings("broker.return.awaited")


@story(4)
async def test_half_of_the_brokers_share_all_after_the_wait(cluster: Cluster) -> None:
    boundaries, places = await _even_cluster(cluster, 12)
    loop = asyncio.get_running_loop()
    killed_at_s = loop.time()
    victims = [a for a in cluster.agents if not a.leads][:2]
    for agent in victims:
        agent.host.kill_broker()
        await agent.kill()
    await asyncio.sleep(SESSION_S + WAIT_S / 2)
    # Whose session ends first counts as a single crash until the other's ends as well.
    kept_back = {places[bundle] for bundle in boundaries.bundles if not cluster.servers(bundle)}
    assert kept_back
    assert kept_back <= {agent.host for agent in victims}
    await cluster.settled(boundaries.bundles)
    assert loop.time() - killed_at_s <= SESSION_S + WAIT_S + TICK_S + 1.0
    assert _largest_share(cluster, boundaries) <= 0.7


@story(4)
async def test_the_last_broker_gets_everything_after_the_wait(cluster: Cluster) -> None:
    boundaries, _ = await _even_cluster(cluster, 8)
    loop = asyncio.get_running_loop()
    killed_at_s = loop.time()
    last, *others = cluster.agents
    for agent in others:
        agent.host.kill_broker()
        await agent.kill()
    await cluster.settled(boundaries.bundles, within_s=SESSION_S * 2 + WAIT_S + TICK_S + 1.0)
    assert loop.time() - killed_at_s >= WAIT_S
    assert set(_places(cluster, boundaries).values()) == {last.host}


@story(4)
async def test_a_single_crash_is_not_waited_for(cluster: Cluster) -> None:
    boundaries, _ = await _even_cluster(cluster, 12)
    for victim in (next(a for a in cluster.agents if not a.leads), cluster.leader):
        killed_at_s = asyncio.get_running_loop().time()
        victim.host.kill_broker()
        await victim.kill()
        await cluster.settled(boundaries.bundles)
        took_s = asyncio.get_running_loop().time() - killed_at_s
        assert took_s <= SESSION_S + TICK_S + 1.0
    assert not cluster.warnings("broker.return.awaited")


@story(3)
async def test_a_flapping_connection_does_not_prolong_the_wait(cluster: Cluster) -> None:
    boundaries, _ = await _even_cluster(cluster, 6)
    leader = cluster.leader
    victim = next(a for a in cluster.agents if not a.leads)
    victim.host.kill_broker()
    await victim.kill()
    loop = asyncio.get_running_loop()
    killed_at_s = loop.time()
    while any(not cluster.servers(bundle) for bundle in boundaries.bundles):
        leader.coordination.suspend()
        await asyncio.sleep(0.2)
        leader.coordination.reconnect()
        await asyncio.sleep(2.0)
        assert loop.time() - killed_at_s <= SESSION_S + WAIT_S + TICK_S + 3.0
    await cluster.settled(boundaries.bundles)


@story(3, leader={"return_wait_s": 0.0})
async def test_with_a_wait_of_nothing_everything_is_placed_at_once(cluster: Cluster) -> None:
    boundaries, _ = await _even_cluster(cluster, 6)
    killed_at_s = asyncio.get_running_loop().time()
    for agent in [a for a in cluster.agents if not a.leads]:
        agent.host.kill_broker()
        await agent.kill()
    await cluster.settled(boundaries.bundles)
    assert asyncio.get_running_loop().time() - killed_at_s <= SESSION_S + TICK_S + 1.0

import asyncio

import pytest
from stories import follower, registered, served, story

from loadmanager.agent.lease_terms import Displaced
from loadmanager.core import znodes
from tests.testbed.faults.agent import SESSION_S
from tests.testbed.faults.cluster import Cluster, play


@story()
async def test_a_sidecar_thawed_after_its_session_was_replaced(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    former = next(a for a in cluster.agents if not a.leads and a.host.serving)
    former.coordination.freeze()
    await asyncio.sleep(SESSION_S + 1.0)
    newcomer = cluster.start(former.host)
    await cluster.until(lambda: registered(newcomer))
    await cluster.move(boundaries.bundles[0], former.host)
    await cluster.until(lambda: cluster.servers(boundaries.bundles[0]) == [former.host])
    before = dict(former.host.serving)
    former.coordination.thaw()
    await cluster.until(lambda: not former.alive, within_s=SESSION_S)
    assert isinstance(former.failure, Displaced)
    assert newcomer.url in str(former.failure)
    assert newcomer.context.identity.instance in str(former.failure)
    await asyncio.sleep(2 * SESSION_S)
    assert newcomer.alive
    assert registered(newcomer)
    assert former.host.serving == before
    await cluster.settled(boundaries.bundles)


@pytest.mark.parametrize("how", ["left", "killed"])
@story()
async def test_a_thawed_sidecar_whose_replacement_ended_goes_on(cluster: Cluster, how: str) -> None:
    former = next(a for a in cluster.agents if not a.leads)
    former.coordination.freeze()
    await asyncio.sleep(SESSION_S + 1.0)
    newcomer = cluster.start(former.host)
    await cluster.until(lambda: registered(newcomer))
    if how == "left":
        await newcomer.leave()
    else:
        await newcomer.kill()
        await asyncio.sleep(SESSION_S + 1.0)
    former.coordination.thaw()
    await cluster.until(lambda: registered(former), within_s=5.0)
    assert former.alive


@story()
async def test_a_second_host_with_the_same_broker_id_says_who_has_it(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    first = next(a for a in cluster.agents if not a.leads and a.host.serving)
    before = dict(first.host.serving)
    first.host.machine = "elsewhere"
    second = cluster.start(first.host)
    await asyncio.sleep(10 * SESSION_S)
    assert first.alive
    assert second.alive
    assert registered(first)
    assert not registered(second)
    assert first.host.serving == before
    assert second.metric("loadmanager_standing_by") == 1
    told = cluster.warnings("broker.registration.awaited")
    assert 3 <= len(told) <= 5
    assert first.url in told[0]["why"]
    assert "expected one sidecar for each broker id" in told[0]["why"]
    await first.kill()
    await cluster.until(lambda: registered(second), within_s=SESSION_S + 2.0)
    assert second.metric("loadmanager_standing_by") == 0
    await cluster.settled(boundaries.bundles)


@story()
async def test_a_sidecar_that_stands_by_leaves_at_once(cluster: Cluster) -> None:
    first = next(a for a in cluster.agents if not a.leads)
    first.host.machine = "elsewhere"
    second = cluster.start(first.host)
    await asyncio.sleep(2.0)
    began_s = asyncio.get_running_loop().time()
    await second.leave()
    assert asyncio.get_running_loop().time() - began_s < 1.0
    assert second.failure is None
    assert registered(first)


@story()
async def test_two_sidecars_that_are_restarted_for_ever_come_to_rest(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    host = next(a for a in cluster.agents if not a.leads and a.host.serving).host
    rivals = [cluster.agent_of(host.name), cluster.start(host)]
    starts = 1
    ends_at_s = asyncio.get_running_loop().time() + 12 * SESSION_S
    last_start_s = 0.0
    while (now_s := asyncio.get_running_loop().time()) < ends_at_s:
        for number, agent in enumerate(rivals):
            if not agent.alive:
                assert isinstance(agent.failure, Displaced)
                rivals[number] = cluster.start(host)
                starts, last_start_s = starts + 1, now_s
        await asyncio.sleep(1.0)
    assert starts <= 5
    assert ends_at_s - last_start_s > 7 * SESSION_S
    assert [registered(agent) for agent in rivals].count(True) == 1
    await cluster.settled(boundaries.bundles)


@story()
async def test_a_sidecar_that_crashes_often_gets_its_broker_back(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    host = next(a for a in cluster.agents if not a.leads and a.host.serving).host
    for _ in range(8):
        await cluster.agent_of(host.name).kill()
        cluster.start(host)
        agent = cluster.agent_of(host.name)
        await cluster.until(lambda agent=agent: registered(agent), within_s=SESSION_S + 2.0)  # type: ignore[misc] # bound now
    await cluster.settled(boundaries.bundles)


@story(ownership={"heartbeat_fraction": 0.33})
async def test_a_command_refused_for_a_newer_agent_ends_membership(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    agent = follower(cluster)
    host, bundle = agent.host, next(iter(agent.host.serving))
    other = next(h for h in cluster.hosts if h is not host)
    await host.broker.renew_lease(agent_epoch=2**60, until_s=None, incarnation=None)
    await cluster.move(bundle, other)
    await cluster.until(lambda: cluster.warnings("broker.membership.displaced"), within_s=0.5)
    (told, *_) = cluster.warnings("broker.membership.displaced")
    assert "refused a command" in told["why"]
    # Nobody else is registered, so it does not end: the broker may forget.
    assert agent.alive
    host.restart_broker()
    await cluster.until(lambda: registered(agent), within_s=5.0)
    await cluster.settled(boundaries.bundles)


@story()
async def test_a_mark_with_spoilt_content_keeps_nobody_from_taking_over(cluster: Cluster) -> None:
    agent = next(a for a in cluster.agents if not a.leads)
    session_id = agent.coordination.session.session_id
    await cluster.write(znodes.agent(agent.host.name, session_id), b"{")
    await agent.kill()
    newcomer = cluster.start(agent.host)
    await cluster.until(lambda: registered(newcomer), within_s=3.0)


@pytest.mark.parametrize("seed", range(4))
def test_of_two_hosts_that_start_at_once_one_registers_and_the_other_waits(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        host = cluster.add_host()
        rivals = []
        for machine in ("one", "another"):
            host.machine = machine
            rivals.append(cluster.start(host))
        await cluster.until(lambda: any(map(registered, rivals)))
        await asyncio.sleep(3 * SESSION_S)
        assert [agent.alive for agent in rivals] == [True, True]
        assert sorted(map(registered, rivals)) == [False, True]
        created = cluster.warnings("broker.registration.created")
        assert len([entry for entry in created if entry["broker"] == host.name]) == 1

    play(tell, 2, seed=seed)

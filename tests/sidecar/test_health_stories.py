import asyncio
from typing import Any

import pytest
from stories import follower, now_s, served, story

from loadmanager.core.ids import Namespace
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster, topic_in
from tests.testbed.in_process import Fault

PROBED: dict[str, Any] = {
    "id": "broker0:8080",
    "health_interval_s": 1.0,
    "unhealthy_after": 3,
    "healthy_after": 3,
}


def _draining(cluster: Cluster, agent: Agent) -> bool:
    return cluster.leader.cluster_state.brokers[agent.host.name].registration.draining


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.HANG])
@story(broker=PROBED)
async def test_an_unwell_broker_gives_its_bundles_away(cluster: Cluster, fault: Fault) -> None:
    boundaries = await served(cluster, 9)
    agent = follower(cluster)
    agent.host.broker.inject(fault, "health")
    await cluster.until(lambda: not agent.host.serving, within_s=12.0)
    await cluster.settled(boundaries.bundles)
    assert agent.metric("loadmanager_broker_healthy") == 0
    assert agent.metric("loadmanager_broker_probes_total", result="failed") >= 3
    report = cluster.leader.cluster_state.brokers[agent.host.name].registration
    assert (report.healthy, report.draining) == (False, True)
    # In order: by hand-overs to planned owners, with the lease renewed all the time.
    assert agent.app.member.registered
    assert cluster.warnings("broker.membership.ended") == []
    begun = {
        i.bundle: i.start_s for h in cluster.hosts if h is not agent.host for i in h.intervals()
    }
    assert all(begun[i.bundle] - i.end_s < 0.1 for i in agent.host.intervals())
    agent.host.broker.heal()
    healed_at_s = now_s()
    await cluster.until(lambda: not _draining(cluster, agent), within_s=10.0)
    assert now_s() - healed_at_s > 2.0
    assert agent.metric("loadmanager_broker_healthy") == 1
    await cluster.move(boundaries.bundles[0], agent.host)
    await cluster.settled(boundaries.bundles)
    await asyncio.sleep(5.0)
    assert cluster.servers(boundaries.bundles[0]) == [agent.host]


@story(broker=PROBED)
async def test_a_broker_sick_now_and_then_stays_as_it_was(cluster: Cluster) -> None:
    await served(cluster, 9)
    agent = follower(cluster)
    before = dict(agent.host.serving)
    for _ in range(30):
        agent.host.broker.inject(Fault.REFUSED, "health", times=1)
        await asyncio.sleep(2.0)
    assert cluster.warnings("broker.health.failed")
    assert cluster.warnings("broker.health.changed") == []
    assert agent.host.serving == before
    agent.host.broker.inject(Fault.REFUSED, "health")
    await cluster.until(lambda: not agent.host.serving, within_s=10.0)
    for _ in range(20):
        agent.host.broker.heal()
        await asyncio.sleep(1.5)
        agent.host.broker.inject(Fault.REFUSED, "health")
        await asyncio.sleep(1.5)
    assert len(cluster.warnings("broker.health.changed")) == 1
    assert agent.host.serving == {}


@story(broker=PROBED)
async def test_a_frozen_broker_is_out_until_it_has_been_well(cluster: Cluster) -> None:
    boundaries = await served(cluster, 9)
    agent = follower(cluster)
    agent.host.freeze_broker()
    await cluster.until(
        lambda: agent.host.name not in cluster.leader.cluster_state.brokers, within_s=SESSION_S
    )
    agent.host.thaw_broker()
    await cluster.until(lambda: agent.app.member.registered, within_s=10.0)
    await cluster.until(
        lambda: agent.host.name in cluster.leader.cluster_state.brokers, within_s=1.0
    )
    await cluster.until(lambda: not _draining(cluster, agent), within_s=10.0)
    await cluster.settled(boundaries.bundles)


@story(broker=PROBED)
async def test_of_brokers_all_found_sick_half_go_on_and_all_once_restarted(
    cluster: Cluster,
) -> None:
    boundaries = await served(cluster, 9)
    for host in cluster.hosts:
        host.broker.inject(Fault.REFUSED, "health")
    await asyncio.sleep(20.0)
    draining = [a for a in cluster.agents if _draining(cluster, a)]
    assert len(draining) == 1
    assert all(a.metric("loadmanager_broker_healthy") == 0 for a in cluster.agents)
    await cluster.settled(boundaries.bundles)
    other = await cluster.make_namespace(2, Namespace("acme/more"))
    asking = cluster.living[0]
    await asyncio.gather(*(asking.look_up(topic_in(other, bundle)) for bundle in other.bundles))
    await cluster.settled([*boundaries.bundles, *other.bundles])
    for host in cluster.hosts:
        await cluster.agent_of(host.name).kill()
        cluster.start(host)
    await cluster.ready()
    await cluster.settled([*boundaries.bundles, *other.bundles])


@story(1, broker=PROBED)
async def test_the_only_broker_serves_however_it_feels(cluster: Cluster) -> None:
    boundaries = await served(cluster, 3)
    cluster.hosts[0].broker.inject(Fault.REFUSED, "health")
    await asyncio.sleep(20.0)
    await cluster.settled(boundaries.bundles)


@story(broker={"id": "broker0:8080", "health_interval_s": 0})
async def test_nobody_is_asked_where_the_interval_is_zero(cluster: Cluster) -> None:
    for host in cluster.hosts:
        host.broker.inject(Fault.REFUSED, "health")
    await asyncio.sleep(30.0)
    assert all("health" not in host.broker.commands for host in cluster.hosts)
    assert cluster.warnings("broker.health.changed") == []


@story()
async def test_a_broker_that_cannot_be_leased_is_asked_ever_more_rarely(cluster: Cluster) -> None:
    agent = next(a for a in cluster.agents if not a.leads)
    agent.host.broker.inject(Fault.REFUSED, "renew_lease")
    await asyncio.sleep(60.0)
    tries = [
        entry
        for entry in cluster.warnings("broker.registration.created")
        if entry["broker"] == agent.host.name
    ]
    assert len(tries) == 1  # At its start, before the fault.
    await asyncio.sleep(20.0)
    before = agent.host.broker.commands.count("renew_lease")
    await asyncio.sleep(80.0)
    assert 8 <= agent.host.broker.commands.count("renew_lease") - before <= 11
    agent.host.broker.heal()
    await cluster.until(lambda: agent.app.member.registered, within_s=10.0)

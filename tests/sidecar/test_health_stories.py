import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from stories import follower, now_s, place_all, reasons, served, served_beside, story

from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace
from loadmanager.ports.broker import BrokerState
from loadmanager.ports.coordination import Create, Operation, Stat
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster, topic_in
from tests.testbed.faults.host import Host
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
    boundaries, agent = await served_beside(cluster, 9)
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
async def test_a_frozen_broker_is_out_until_it_has_been_well(cluster: Cluster) -> None:
    boundaries, agent = await served_beside(cluster, 9)
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
async def test_of_brokers_all_found_sick_half_go_on_all_once_restarted(cluster: Cluster) -> None:
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


@story(broker={"id": "broker0:8080", "health_interval_s": 0})
async def test_nobody_is_asked_where_the_interval_is_zero(cluster: Cluster) -> None:
    for host in cluster.hosts:
        host.broker.inject(Fault.REFUSED, "health")
    await asyncio.sleep(30.0)
    assert all("health" not in host.broker.commands for host in cluster.hosts)
    assert cluster.warnings("broker.health.changed") == []


HIGHEST_EPOCH = 2**63 - 1


async def _raise_epoch(host: Host, epoch: int = HIGHEST_EPOCH) -> None:
    """Do what a stranger can who reaches the broker's contract."""
    await host.broker.renew_lease(agent_epoch=epoch, until_s=None, incarnation=None)


def _newest_zxid(cluster: Cluster) -> int:
    return max(node.stat.mzxid for node in cluster.service.dump().values())


async def _refused(cluster: Cluster, bundles: int) -> tuple[Boundaries, Agent]:
    boundaries = await served(cluster, bundles)
    # A leader that has just connected gives the others time to come back.
    await asyncio.sleep(SESSION_S)
    agent = follower(cluster)
    await _raise_epoch(agent.host)
    return boundaries, agent


@story()
async def test_its_bundles_are_served_by_others_once_its_lease_is_over(cluster: Cluster) -> None:
    boundaries, agent = await _refused(cluster, 12)
    session = agent.coordination.session.session_id
    await cluster.until(
        lambda: znodes.registration(agent.host.name) not in cluster.service.nodes, within_s=3.0
    )
    # The broker serves on until its lease is over, and keeps the locks until then.
    while agent.host.serving:
        held = {b for b, owner in cluster.lock_sessions().items() if owner == session}
        assert held >= agent.host.serving.keys()
        await asyncio.sleep(0.01)
    await cluster.settled(boundaries.bundles, within_s=2.0)
    assert session not in cluster.lock_sessions().values()
    # It is not listed again for a moment, whatever its agent tries.
    for _ in range(600):
        await asyncio.sleep(0.1)
        assert znodes.registration(agent.host.name) not in cluster.service.nodes
    await cluster.settled(boundaries.bundles, within_s=1.0)


@story()
async def test_its_sidecar_is_not_ready_says_why_and_backs_off(cluster: Cluster) -> None:
    _, agent = await _refused(cluster, 6)
    assert agent.metric("loadmanager_broker_leased") == 1
    await cluster.until(lambda: reasons(agent), within_s=SESSION_S)
    assert "holds no lease" in reasons(agent)
    assert str(HIGHEST_EPOCH) in reasons(agent)
    assert agent.metric("loadmanager_broker_leased") == 0
    await asyncio.sleep(10.0)
    before, told = agent.host.broker.commands.count("renew_lease"), len(cluster.log_entries)
    await asyncio.sleep(300.0)
    # Once every 8 s, when it has backed off.
    assert 30 <= agent.host.broker.commands.count("renew_lease") - before <= 45
    missing = [one for one in cluster.log_entries[told:] if one["event"] == "broker.lease.missing"]
    assert 4 <= len(missing) <= 6
    assert str(HIGHEST_EPOCH) in missing[0]["why"]
    assert not cluster.warnings("broker.membership.displaced")[1:]


@story()
async def test_an_epoch_that_the_service_reaches_heals_it(cluster: Cluster) -> None:
    boundaries, agent = await served_beside(cluster, 6)
    await _raise_epoch(agent.host, _newest_zxid(cluster) + 1000)
    await cluster.until(lambda: reasons(agent), within_s=2 * SESSION_S)
    for number in range(1000):
        await cluster.write("/elsewhere", str(number).encode())
    await cluster.until(lambda: agent.app.member.registered, within_s=10.0)
    assert not reasons(agent)
    await cluster.settled(boundaries.bundles)


@story()
async def test_an_epoch_just_above_that_of_the_agent_stops_nothing(cluster: Cluster) -> None:
    boundaries, agent = await served_beside(cluster, 6)
    before = agent.host.serving.keys()
    await _raise_epoch(agent.host, agent.cluster_state.brokers[agent.host.name].registered_as + 1)
    await cluster.until(lambda: cluster.warnings("broker.membership.displaced"))
    await cluster.until(lambda: agent.app.member.registered, within_s=3.0)
    await cluster.settled(boundaries.bundles)
    assert agent.host.serving.keys() == before


@story()
async def test_a_late_sidecar_takes_its_registration_out_with_its_locks(cluster: Cluster) -> None:
    """Its owned list names the bundles for some round trips more, and lookups read that."""
    boundaries, agent = await _refused(cluster, 6)
    session = agent.coordination.session.session_id
    agent.coordination.delay_replies(1.5)
    await cluster.until(lambda: session not in cluster.lock_sessions().values())
    assert agent.coordination.session.session_id == session
    assert znodes.registration(agent.host.name) not in cluster.service.nodes
    await cluster.settled(boundaries.bundles)


@pytest.mark.parametrize("stays", [True, False])
@story()
async def test_its_locks_are_released_though_another_sidecar_registered_it_meanwhile(
    cluster: Cluster, stays: bool
) -> None:
    """The other one took the mark of this agent away, and is refused as well."""
    boundaries, agent = await _refused(cluster, 6)
    session = agent.coordination.session.session_id
    mark = znodes.agent(agent.host.name, session)
    await cluster.until(lambda: cluster.warnings("broker.membership.displaced"))
    await asyncio.sleep(0.25)  # By then it only waits for its next attempt.
    agent.coordination.freeze()
    other = cluster.start(agent.host)
    await cluster.until(lambda: mark not in cluster.service.nodes)
    if not stays:
        await other.leave()
    await asyncio.sleep(0.7 * SESSION_S)  # Its lease is over, and its session lives.
    assert session in cluster.lock_sessions().values()
    agent.coordination.thaw()
    await cluster.until(lambda: session not in cluster.lock_sessions().values(), within_s=2.0)
    await cluster.settled(boundaries.bundles, within_s=2 * SESSION_S)


@story()
async def test_a_lock_on_its_way_when_it_begins_to_refuse_is_not_left_behind(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first that this agent takes, and the agent never hears that it has it."""
    (bundle,) = (boundaries := await cluster.make_namespace(1)).bundles
    await place_all(cluster, boundaries)
    await asyncio.sleep(SESSION_S)
    agent = next(one for one in cluster.living if not one.leads and not one.host.serving)
    commit, taken = agent.coordination.commit, asyncio.Event()

    async def refuse_before_the_reply(operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        stats = await commit(operations)
        if any(isinstance(one, Create) and one.path == znodes.lock(bundle) for one in operations):
            await _raise_epoch(agent.host)
            taken.set()
            await asyncio.sleep(SESSION_S)
        return stats

    monkeypatch.setattr(agent.coordination, "commit", refuse_before_the_reply)
    await cluster.move(bundle, agent.host)
    await taken.wait()
    session = agent.coordination.session.session_id
    assert cluster.lock_sessions() == {bundle: session}
    await cluster.until(lambda: cluster.servers(bundle), within_s=2 * SESSION_S)
    assert agent.coordination.session.session_id == session


@story(1)
async def test_a_stranger_that_never_stops_leaves_no_lock_behind(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent is refused in each moment of registering, not only before."""
    boundaries = await served(cluster, 6)
    other = cluster.start(cluster.add_host())
    await cluster.ready()
    await asyncio.sleep(SESSION_S)
    agent = next(one for one in cluster.living if one is not other)
    host = agent.host
    commit = agent.coordination.commit

    async def raise_after(operations: object) -> object:
        done = await commit(operations)  # type: ignore[arg-type] # passed on as it is
        await _raise_epoch(host, _newest_zxid(cluster) + 1)
        return done

    monkeypatch.setattr(agent.coordination, "commit", raise_after)
    await _raise_epoch(host, _newest_zxid(cluster) + 1)
    await cluster.until(
        lambda: all(cluster.servers(b) == [other.host] for b in boundaries.bundles),
        within_s=4 * SESSION_S,
    )


@story(1)
async def test_a_sidecar_refused_from_its_start_registers_nothing(cluster: Cluster) -> None:
    host = cluster.add_host()
    await _raise_epoch(host)
    agent = cluster.start(host)
    await asyncio.sleep(30.0)
    assert znodes.registration(host.name) not in cluster.service.nodes
    assert "holds no lease" in reasons(agent)
    host.restart_broker()
    await cluster.until(lambda: agent.app.member.registered, within_s=10.0)


@story()
async def test_a_broker_whose_incarnation_changes_with_each_answer_is_asked_seldom(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundaries = await served(cluster, 6)
    await asyncio.sleep(SESSION_S)
    agent = follower(cluster)
    broker = agent.host.broker
    renew, answers = broker.renew_lease, itertools.count()

    async def as_another(
        *, agent_epoch: int, until_s: float | None, incarnation: str | None
    ) -> BrokerState:
        state = await renew(agent_epoch=agent_epoch, until_s=until_s, incarnation=incarnation)
        return replace(state, incarnation=f"another-{next(answers)}", serving={})

    monkeypatch.setattr(broker, "renew_lease", as_another)
    await cluster.until(
        lambda: all(cluster.servers(b) not in ([], [agent.host]) for b in boundaries.bundles),
        within_s=3 * SESSION_S,
    )
    assert "its incarnation changed with each" in reasons(agent)
    assert next(answers) < 60
    await asyncio.sleep(20.0)
    before = next(answers)
    await asyncio.sleep(80.0)
    # Some eight attempts, one or two questions and three changes each.
    assert next(answers) - before < 70
    monkeypatch.setattr(broker, "renew_lease", renew)
    await cluster.until(lambda: agent.app.member.registered, within_s=10.0)
    await cluster.settled(boundaries.bundles)


@story(checked=False)
async def test_a_restart_of_the_broker_heals_older_transaction_ids(cluster: Cluster) -> None:
    """As in a ZooKeeper whose data were replaced; fencing tokens go back with them."""
    _, agent = await served_beside(cluster, 6)
    cluster.service.zxid = 1
    session_id = agent.coordination.session.session_id
    cluster.service.expire(session_id)
    await cluster.until(lambda: cluster.warnings("zookeeper.data.replaced"), within_s=5.0)
    (told, *_) = cluster.warnings("zookeeper.data.replaced")
    assert told["agent_epoch"] < told["former"]
    await cluster.until(lambda: "is older than" in reasons(agent), within_s=5.0)
    agent.host.restart_broker()
    await cluster.until(lambda: agent.app.member.registered, within_s=15.0)
    assert "older" not in reasons(agent)

"""A lease that cannot be held, or counts less than it seems to: others serve the bundles."""

import asyncio

import pytest
from stories import reasons, served, served_beside, story

from loadmanager.core import znodes
from loadmanager.core.lease import Heartbeats
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster

TOO_LATE_S = 0.29 * SESSION_S

"""With replies so late, three round trips take most of a session."""

WITH_GAPS_S = 0.19 * SESSION_S
LATE_S = 0.12 * SESSION_S


@story()
async def test_a_broker_without_a_lease_leaves_and_returns(cluster: Cluster) -> None:
    boundaries, agent = await served_beside(cluster, 6)
    session_id = agent.coordination.session.session_id
    agent.coordination.delay_replies(TOO_LATE_S)
    await cluster.until(
        lambda: all(cluster.servers(b) not in ([], [agent.host]) for b in boundaries.bundles),
        within_s=4 * SESSION_S,
    )
    assert session_id not in cluster.lock_sessions().values()
    assert "no lease could be held for 10 s" in reasons(agent)
    # It is not listed again while it could only fail again.
    for _ in range(600):
        await asyncio.sleep(0.1)
        assert znodes.registration(agent.host.name) not in cluster.service.nodes
    assert agent.coordination.session.session_id == session_id
    agent.coordination.delay_replies(0.0)
    await cluster.until(lambda: agent.app.member.registered, within_s=1.5 * SESSION_S)
    await cluster.moved(boundaries.bundles[0], agent.host)
    await cluster.settled(boundaries.bundles)


@story()
async def test_an_ensemble_that_is_late_for_all_moves_nothing(cluster: Cluster) -> None:
    """Each would otherwise leave for the others, which are no better."""
    boundaries = await served(cluster, 6)
    locks = cluster.lock_sessions()
    for agent in cluster.living:
        agent.coordination.delay_replies(WITH_GAPS_S)
    times = 0
    for _ in range(600):
        await asyncio.sleep(0.1)
        times += sum(bool(cluster.servers(bundle)) for bundle in boundaries.bundles)
    assert 0.5 < times / (600 * len(boundaries.bundles)) < 0.95
    assert not cluster.warnings("broker.membership.ended")
    assert cluster.lock_sessions() == locks
    for agent in cluster.living:
        agent.coordination.delay_replies(0.0)
    await cluster.settled(boundaries.bundles)


@story()
async def test_answers_that_are_late_and_in_time_hold_a_lease(cluster: Cluster) -> None:
    _, agent = await served_beside(cluster, 6)
    before = agent.host.serving.keys()
    agent.coordination.delay_replies(LATE_S)
    for _ in range(600):
        await asyncio.sleep(0.1)
        assert agent.host.serving.keys() == before
    assert not cluster.warnings("broker.membership.ended")


@story(1)
async def test_a_broker_alone_keeps_its_locks(cluster: Cluster) -> None:
    boundaries = await served(cluster, 2)
    (agent,) = cluster.living
    locks = cluster.lock_sessions()
    agent.coordination.delay_replies(TOO_LATE_S)
    await cluster.until(lambda: not agent.host.serving)
    await asyncio.sleep(3 * SESSION_S)
    assert cluster.lock_sessions() == locks
    agent.coordination.delay_replies(0.0)
    await cluster.settled(boundaries.bundles, within_s=0.5 * SESSION_S)


@story()
async def test_an_outage_lets_nothing_go(cluster: Cluster) -> None:
    """Sessions outlive it, and the first heartbeats afterwards extend no lease yet."""
    boundaries = await served(cluster, 6)
    locks = cluster.lock_sessions()
    cluster.service.go_down()
    for agent in cluster.living:
        agent.coordination.lose_connection()
    await asyncio.sleep(3 * SESSION_S)
    assert not any(host.serving for host in cluster.hosts)
    cluster.service.come_up()
    for agent in cluster.living:
        agent.coordination.connect_again()
    await cluster.settled(boundaries.bundles, within_s=0.5 * SESSION_S)
    assert cluster.lock_sessions() == locks


ELECTION_S = 0.2
NOTICED_AFTER_S = 9.0
LEASE_S = 0.66 * SESSION_S


@story()
async def test_a_leader_without_the_others_extends_no_lease(cluster: Cluster) -> None:
    boundaries, agent = await served_beside(cluster, 6)
    service = cluster.service
    server = service.add_server()
    agent.coordination.connect_to(server)
    await cluster.until(lambda: agent.coordination.is_on(server))
    await asyncio.sleep(2.0)
    assert agent.host.serving
    server.leave_ensemble()
    service.mute(agent.coordination.session.session_id)
    service.go_down()
    others = [one for one in cluster.living if one is not agent]
    for other in others:
        other.coordination.lose_connection()
    await asyncio.sleep(ELECTION_S)
    service.come_up()
    for other in others:
        other.coordination.connect_again()
    await asyncio.sleep(LEASE_S - ELECTION_S)
    assert not agent.host.serving
    await asyncio.sleep(NOTICED_AFTER_S - LEASE_S)
    agent.coordination.suspend()
    service.remove_server(server)
    # Others serve its bundles now. That no two ever did is checked at the end of every story.
    await asyncio.sleep(SESSION_S / 2)
    assert all(cluster.servers(bundle) for bundle in boundaries.bundles)
    agent.coordination.reconnect()
    await cluster.settled(boundaries.bundles)


TICK_S = SESSION_S / 2


async def _until_after_a_report(after_s: float) -> None:
    now_s = asyncio.get_running_loop().time()
    await asyncio.sleep(TICK_S / 2 - now_s % (TICK_S / 2) + after_s)


async def _cut_off_after_a_pause(cluster: Cluster) -> Agent:
    """Return a sidecar whose session ends as if the heartbeats since its pause had not been."""
    cluster.service.half_tick_s = TICK_S / 2
    _, agent = await served_beside(cluster, 6)
    session_id = agent.coordination.session.session_id
    await _until_after_a_report(0.1)
    agent.coordination.freeze()
    await asyncio.sleep(TICK_S)
    agent.coordination.thaw()
    renewed = agent.metric("loadmanager_lease_renewals_total", result="renewed")
    await asyncio.sleep(TICK_S / 4)
    assert agent.coordination.session.session_id == session_id
    assert agent.host.serving
    assert agent.metric("loadmanager_lease_renewals_total", result="renewed") > renewed
    agent.coordination.suspend()
    await cluster.until(lambda: not cluster.service.lives(session_id), within_s=0.6 * SESSION_S)
    return agent


@story(zookeeper={"tick_s": TICK_S})
async def test_the_lease_is_over_before_the_session(cluster: Cluster) -> None:
    agent = await _cut_off_after_a_pause(cluster)
    assert not agent.host.serving


@story(zookeeper={"tick_s": TICK_S}, checked=False)
async def test_a_lease_from_the_last_heartbeat_would_not_be(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the simulated ensemble can tell the two apart."""
    monkeypatch.setattr(Heartbeats, "known_since_s", lambda _self, sent_s, *_: sent_s)
    agent = await _cut_off_after_a_pause(cluster)
    assert agent.host.serving

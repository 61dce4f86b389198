"""A lease that cannot be held while the session lives: the bundles are served by others."""

import asyncio

from stories import follower, served, story

from loadmanager.core import znodes
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster

TOO_LATE_S = 0.29 * SESSION_S
"""With replies so late, three round trips take most of a session."""
WITH_GAPS_S = 0.19 * SESSION_S
LATE_S = 0.12 * SESSION_S


def _reasons(agent: Agent) -> str:
    return "; ".join(agent.app.answering.readiness().reasons)


@story()
async def test_a_broker_leaves_while_others_could_serve_and_returns_when_it_can_hold_a_lease(
    cluster: Cluster,
) -> None:
    boundaries = await served(cluster, 6)
    agent = follower(cluster)
    session_id = agent.coordination.session.session_id
    agent.coordination.delay_replies(TOO_LATE_S)
    await cluster.until(
        lambda: all(cluster.servers(b) not in ([], [agent.host]) for b in boundaries.bundles),
        within_s=4 * SESSION_S,
    )
    assert session_id not in cluster.lock_sessions().values()
    assert "no lease could be held for 10 s" in _reasons(agent)
    # It is not listed again while it could only fail again.
    for _ in range(600):
        await asyncio.sleep(0.1)
        assert znodes.registration(agent.host.name) not in cluster.service.nodes
    assert agent.coordination.session.session_id == session_id
    agent.coordination.delay_replies(0.0)
    await cluster.until(lambda: agent.app.member.registered, within_s=1.5 * SESSION_S)
    await cluster.move(boundaries.bundles[0], agent.host)
    await cluster.until(lambda: cluster.servers(boundaries.bundles[0]) == [agent.host])
    await cluster.settled(boundaries.bundles)


@story()
async def test_no_lock_is_deleted_before_the_last_lease_is_over(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    agent = follower(cluster)
    session_id = agent.coordination.session.session_id
    agent.coordination.delay_replies(TOO_LATE_S)
    while agent.app.member.registered:
        held = {b for b, owner in cluster.lock_sessions().items() if owner == session_id}
        assert held >= agent.host.serving.keys()
        await asyncio.sleep(0.01)
    assert not agent.host.serving
    assert cluster.warnings("broker.membership.ended")
    await cluster.settled(boundaries.bundles, within_s=3 * SESSION_S)


@story()
async def test_an_ensemble_that_is_late_for_all_leaves_what_is_served_with_gaps_where_it_is(
    cluster: Cluster,
) -> None:
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
    await served(cluster, 6)
    agent = follower(cluster)
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

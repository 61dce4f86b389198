import asyncio
from collections.abc import Callable, Sequence

import pytest
from stories import now_s, served, served_beside, story

from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId
from loadmanager.ports.broker import BrokerRefused, BrokerState
from loadmanager.ports.coordination import (
    CommitRejected,
    CoordinationError,
    NodeExists,
    Operation,
    Stat,
)
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster
from tests.testbed.faults.host import Host
from tests.testbed.faults.session import ClientSession
from tests.testbed.in_process import Fault

LEASE_S = 0.66 * SESSION_S
RENEWED_EVERY_S = 0.15 * SESSION_S


async def _owner(cluster: Cluster) -> tuple[Boundaries, Host, Agent, BundleId]:
    boundaries = await served(cluster, 6)
    for bundle in boundaries.bundles:
        host = cluster.server(bundle)
        agent = cluster.agent_of(host.name)
        if not agent.leads:
            return boundaries, host, agent, bundle
    raise AssertionError("the leader owns everything")


@story()
async def test_a_cut_off_broker_stops_before_its_session_can_end(cluster: Cluster) -> None:
    _, host, agent, bundle = await _owner(cluster)
    cut_at_s = now_s()
    agent.coordination.suspend()
    await cluster.until(lambda: not host.serving, within_s=SESSION_S)
    assert LEASE_S - RENEWED_EVERY_S - 0.1 < now_s() - cut_at_s < LEASE_S
    await cluster.until(lambda: cluster.servers(bundle), within_s=SESSION_S)
    assert cluster.server(bundle) is not host
    await cluster.until(lambda: not agent.app.member.registered or agent.alive)


@story()
async def test_a_suspended_sidecar_obeys_no_orders(cluster: Cluster) -> None:
    _, host, agent, bundle = await _owner(cluster)
    other = next(h for h in cluster.hosts if h is not host)
    agent.coordination.suspend()
    await cluster.move(bundle, other)
    await asyncio.sleep(LEASE_S / 2)
    assert cluster.servers(bundle) == [host]
    agent.coordination.reconnect()
    await cluster.until(lambda: cluster.servers(bundle) == [other], within_s=3.0)


@story()
async def test_after_a_short_cut_the_same_locks_serve_on_without_a_gap(cluster: Cluster) -> None:
    _, host, agent, _ = await _owner(cluster)
    before = dict(host.serving)
    agent.coordination.suspend()
    await asyncio.sleep(LEASE_S / 2)
    agent.coordination.reconnect()
    await asyncio.sleep(LEASE_S)
    assert host.serving == before
    assert all(i.end_s >= now_s() - 0.1 for i in host.intervals())


@story()
async def test_a_renewal_under_way_for_long_does_not_extend_the_lease(cluster: Cluster) -> None:
    _, host, agent, _ = await _owner(cluster)
    host.broker.inject(Fault.LATE, "renew_lease")
    await asyncio.sleep(RENEWED_EVERY_S + 0.5)
    sent_by_s = now_s()
    await agent.kill()
    await asyncio.sleep(LEASE_S - 1.0)
    host.broker.heal()
    assert not host.serving or now_s() < sent_by_s + LEASE_S
    await asyncio.sleep(1.0)
    assert not host.serving


@story()
async def test_an_unreachable_broker_loses_its_bundles_with_its_lease(cluster: Cluster) -> None:
    _, host, agent, bundle = await _owner(cluster)
    session = agent.coordination.session.session_id
    host.cut = True
    cut_at_s = now_s()
    await cluster.until(lambda: not agent.app.member.registered, within_s=SESSION_S)
    assert now_s() - cut_at_s > LEASE_S - RENEWED_EVERY_S
    await cluster.until(lambda: cluster.servers(bundle), within_s=2.0)
    assert cluster.server(bundle) is not host
    assert session not in cluster.lock_sessions().values()
    # Nor does it come back for as long as the broker does not answer.
    await cluster.until(lambda: host.name not in cluster.leader.cluster_state.brokers, within_s=0.5)
    await asyncio.sleep(SESSION_S)
    assert host.name not in cluster.leader.cluster_state.brokers

    host.cut = False
    await cluster.until(lambda: agent.app.member.registered, within_s=3.0)
    # Its health was bad for long enough that it takes nothing until it has been well.
    await cluster.until(
        lambda: not cluster.leader.cluster_state.brokers[host.name].registration.draining,
        within_s=10.0,
    )
    await cluster.moved(bundle, host)
    assert agent.coordination.session.session_id == session


@story()
async def test_a_broker_that_takes_no_renewal_loses_its_bundles(cluster: Cluster) -> None:
    """On a full disk, say. To ask it for ever later times would keep its bundles for ever."""
    boundaries, host, _, bundle = await _owner(cluster)
    # A leader that has just connected gives the others time to.
    await asyncio.sleep(SESSION_S)
    renew = host.broker.renew_lease

    async def answer_only(
        *, agent_epoch: int, until_s: float | None, incarnation: str | None
    ) -> BrokerState:
        if until_s is not None and incarnation is not None:
            raise BrokerRefused("no space left")
        return await renew(agent_epoch=agent_epoch, until_s=until_s, incarnation=incarnation)

    host.broker.renew_lease = answer_only  # type: ignore[method-assign]  # a full disk
    await cluster.until(
        lambda: cluster.servers(bundle) not in ([], [host]), within_s=LEASE_S + 3 * RENEWED_EVERY_S
    )
    host.broker.renew_lease = renew  # type: ignore[method-assign]  # there is room again
    await cluster.until(lambda: host.name in cluster.leader.cluster_state.brokers)
    await cluster.settled(boundaries.bundles)


@story()
async def test_a_broker_that_hangs_leaves_no_lock_on_its_way_behind(cluster: Cluster) -> None:
    boundaries, host, agent, _ = await _owner(cluster)
    moved = next(b for b in boundaries.bundles if cluster.server(b) is not host)
    host.freeze_broker()
    await asyncio.sleep(LEASE_S - RENEWED_EVERY_S)
    agent.coordination.delay_commits_s = 3.0
    await cluster.move(moved, host)
    await cluster.until(lambda: host.name not in cluster.leader.cluster_state.brokers)
    await cluster.settled(boundaries.bundles, within_s=10.0)
    session = agent.coordination.session.session_id
    assert session not in cluster.lock_sessions().values()


@story()
async def test_a_restarted_broker_is_loaded_whatever_its_clock_shows(cluster: Cluster) -> None:
    _, host, agent, _ = await _owner(cluster)
    before = dict(host.serving)
    for _ in range(4):
        host.restart_broker()
        assert host.serving == {}
        await cluster.until(lambda: host.serving == before, within_s=RENEWED_EVERY_S + 0.1)
    await agent.kill()
    killed_at_s = now_s()
    await cluster.until(lambda: not host.serving, within_s=LEASE_S, every_s=0.001)
    assert now_s() - killed_at_s < LEASE_S
    assert len(cluster.warnings("broker.process.restarted")) == 4


@story()
async def test_a_deleted_registration_is_made_again(cluster: Cluster) -> None:
    boundaries, host, agent, _ = await _owner(cluster)
    await cluster.delete(znodes.registration(host.name))
    await cluster.until(lambda: not agent.app.member.registered)
    await cluster.until(lambda: agent.app.member.registered)
    await cluster.settled(boundaries.bundles)
    assert host.name in cluster.leader.cluster_state.brokers
    assert [e["why"] for e in cluster.warnings("broker.membership.ended")] == [
        "the registration was deleted"
    ]


@story()
async def test_a_lock_deleted_by_hand_is_noticed_when_it_is_given_back(cluster: Cluster) -> None:
    _, host, _, bundle = await _owner(cluster)
    other = next(h for h in cluster.hosts if h is not host)
    await cluster.delete(znodes.lock(bundle))
    await cluster.moved(bundle, other)
    assert [e["bundle"] for e in cluster.warnings("bundle.lock.missing")] == [bundle]


@story()
async def test_a_deleted_owned_list_ends_the_membership(cluster: Cluster) -> None:
    boundaries, host, _, bundle = await _owner(cluster)
    other = next(h for h in cluster.hosts if h is not host)
    await cluster.delete(znodes.owned(host.name))
    await cluster.move(bundle, other)
    await asyncio.sleep(2.0)
    await cluster.settled(boundaries.bundles)
    assert cluster.servers(bundle) == [other]


@story()
async def test_a_thawed_sidecar_that_was_replaced_changes_nothing(cluster: Cluster) -> None:
    boundaries = await served(cluster, 1)
    (bundle,) = boundaries.bundles
    host = cluster.server(bundle)
    other = next(h for h in cluster.hosts if h is not host)
    former = cluster.agent_of(host.name)
    path = znodes.owned(host.name)

    await cluster.move(bundle, other)
    await cluster.until(lambda: not host.serving, every_s=0.0001)
    former.coordination.freeze()  # With the commit that drops the lock on its way.
    list_version = cluster.service.dump()[path].stat.version
    await cluster.operator()
    newcomer = cluster.start(host)
    await cluster.until(lambda: newcomer.application and newcomer.app.member.registered)
    await cluster.moved(bundle, host)
    # The new list has come to the very version that the frozen commit names.
    await cluster.until(lambda: cluster.service.dump()[path].stat.version == list_version)
    lock = cluster.service.dump()[znodes.lock(bundle)]
    former.coordination.thaw()
    await cluster.until(lambda: not former.alive, within_s=SESSION_S)
    assert cluster.service.dump()[znodes.lock(bundle)] == lock
    assert newcomer.alive
    await cluster.settled(boundaries.bundles)


@pytest.mark.parametrize("lose", [ClientSession.lose_next_request, ClientSession.lose_next_reply])
@story()
async def test_a_lost_message_about_a_lock_ends_no_membership(
    cluster: Cluster, lose: Callable[[ClientSession], None]
) -> None:
    boundaries, agent = await served_beside(cluster, 6, serving=False)
    bundle = next(b for b in boundaries.bundles if cluster.server(b) is not agent.host)

    def lose_it(operations: Sequence[Operation]) -> None:
        if any(one.path == znodes.lock(bundle) for one in operations):
            agent.coordination.before_commit = None
            lose(agent.coordination)

    agent.coordination.before_commit = lose_it
    await cluster.moved(bundle, agent.host)
    assert agent.coordination.before_commit is None
    await cluster.settled(boundaries.bundles)
    assert not cluster.warnings("broker.membership.ended")


@pytest.mark.parametrize(
    ("refused_by", "times", "why"),
    [
        (NodeExists("somebody registers too"), 15, "changed at each of 10 attempts"),
        (CoordinationError("no right to do so"), 1, "no right to do so"),
    ],
)
@story()
async def test_a_registration_that_is_refused_is_told_and_tried_again(
    cluster: Cluster, refused_by: CoordinationError, times: int, why: str
) -> None:
    agent = cluster.start(cluster.add_host())
    commit, left = agent.coordination.commit, times

    async def refused(operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        nonlocal left
        if left:
            left -= 1
            raise CommitRejected(0, refused_by)
        return await commit(operations)

    agent.coordination.commit = refused  # type: ignore[method-assign]
    await cluster.until(lambda: agent.application and agent.app.member.registered)
    (ended,) = cluster.warnings("broker.membership.ended")
    assert why in ended["why"]

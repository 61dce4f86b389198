"""A sidecar that registers its broker while much goes on disturbs nothing that it need not."""

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest
from stories import follower, other_than, placed, registered, served, served_beside, story

from loadmanager.agent.registration import Displaced
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId
from loadmanager.ports.coordination import (
    CommitRejected,
    Create,
    Delete,
    Operation,
    Stat,
    VersionMismatch,
)
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, play
from tests.testbed.faults.host import Host

LAG_S = 1.0
"""How late all replies come to a sidecar: then its way to the first lock takes long."""


async def own_all(cluster: Cluster, bundles: Sequence[BundleId], host: Host) -> None:
    for bundle in bundles:
        await cluster.move(bundle, host)
    await cluster.until(lambda: host.serving.keys() == set(bundles))
    await cluster.settled(bundles)


async def killed_owner(cluster: Cluster, bundles: int) -> tuple[Boundaries, Host]:
    """Kill a sidecar that owns all bundles; its locks remain for a while."""
    boundaries = await served(cluster, bundles)
    former = follower(cluster, serving=False)
    await own_all(cluster, boundaries.bundles, former.host)
    await former.kill()
    return boundaries, former.host


async def back_after_all_moved(cluster: Cluster, bundles: int = 2) -> tuple[Boundaries, Agent]:
    """Start a sidecar anew after all of its bundles moved, while its former locks remain."""
    boundaries, host = await killed_owner(cluster, bundles)
    for bundle in boundaries.bundles:
        await cluster.move(bundle, other_than(cluster, host))
    return boundaries, cluster.start(host)


def decided(cluster: Cluster, agent: Agent) -> bool:
    """Say whether a sidecar has registered, or has told that it waits for another one."""
    return registered(agent) or bool(cluster.warnings("broker.registration.awaited"))


def replaces(operations: Sequence[Operation], bundle: BundleId) -> bool:
    path = znodes.lock(bundle)
    kinds = [type(one) for one in operations if one.path == path]
    return kinds == [Delete, Create]


@story(2)
async def test_what_was_ordered_while_a_sidecar_waited_is_served_on(cluster: Cluster) -> None:
    boundaries = await served(cluster, 2)
    first, second = boundaries.bundles
    host = follower(cluster, serving=False).host
    await own_all(cluster, boundaries.bundles, other_than(cluster, host))
    newcomer = cluster.start(host)
    newcomer.coordination.delay_commits_s = 2.0
    waiting = asyncio.Event()
    newcomer.coordination.before_commit = lambda _: waiting.set()
    await waiting.wait()
    newcomer.coordination.before_commit = None
    # The one that it is to replace still works meanwhile, and is ordered to own more.
    await cluster.move(first, host)
    await cluster.move(second, host)
    await cluster.until(lambda: host.serving.keys() == {first, second}, within_s=1.0)
    begun_s = asyncio.get_running_loop().time()
    await cluster.until(lambda: registered(newcomer), within_s=10.0)
    newcomer.coordination.delay_commits_s = 0.0
    await cluster.settled(boundaries.bundles)
    for bundle in (first, second):
        spans = [s for s in host.intervals() if s.bundle == bundle and s.end_s > begun_s]
        assert len(spans) == 2  # Under the lock of each.
        assert all(earlier.end_s == later.start_s for earlier, later in pairwise(spans))


@story(2)
async def test_a_late_sidecar_clears_many_former_locks_at_once(cluster: Cluster) -> None:
    boundaries, newcomer = await back_after_all_moved(cluster, 16)

    def be_late_from_now_on(_: Sequence[Operation]) -> None:
        newcomer.coordination.delay_replies(LAG_S)

    newcomer.coordination.before_commit = be_late_from_now_on
    # All before the former session ends, and its locks with it.
    await cluster.until(lambda: registered(newcomer), within_s=0.9 * SESSION_S)
    cleared = [entry["bundle"] for entry in cluster.warnings("bundle.lock.deleted")]
    assert sorted(cleared) == sorted(boundaries.bundles)
    newcomer.coordination.before_commit = None
    newcomer.coordination.delay_replies(0.0)
    await cluster.settled(boundaries.bundles)


@story(2)
async def test_a_former_lock_that_stays_is_counted_and_tried_again(cluster: Cluster) -> None:
    boundaries, newcomer = await back_after_all_moved(cluster)
    refused = 0

    def refuse(operations: Sequence[Operation]) -> None:
        nonlocal refused
        # Of each lock all ten attempts of the first time, and two of those that follow.
        if refused < 24 and any(
            type(one) is Delete and one.path.startswith(znodes.LOCKS) for one in operations
        ):
            refused += 1
            raise CommitRejected(0, VersionMismatch("another lock was taken"))

    newcomer.coordination.before_commit = refuse
    left = "loadmanager_former_locks_left"
    await cluster.until(lambda: newcomer.metric(left) == 2)
    # Before the former session ends, and its locks with it.
    await cluster.until(lambda: refused == 24 and newcomer.metric(left) == 0, within_s=5.0)
    cleared = [entry["bundle"] for entry in cluster.warnings("bundle.lock.deleted")]
    assert sorted(cleared) == sorted(boundaries.bundles)
    await cluster.settled(boundaries.bundles)


@story(2)
async def test_a_former_lock_is_cleared_as_others_take_locks(cluster: Cluster) -> None:
    boundaries, host = await killed_owner(cluster, 2)
    gone, kept = boundaries.bundles
    await cluster.move(gone, other_than(cluster, host))
    operator = await cluster.operator()
    newcomer = cluster.start(host)
    taken: list[asyncio.Task[object]] = []

    def take_another_before(operations: Sequence[Operation]) -> None:
        clears = any(
            isinstance(one, Delete) and one.path == znodes.lock(gone) for one in operations
        )
        newcomer.coordination.delay_commits_s = 0.1 if clears and len(taken) < 2 else 0.0
        if newcomer.coordination.delay_commits_s:
            setting = operator.set(znodes.lock_folder(gone), b"")
            taken.append(asyncio.ensure_future(setting))

    newcomer.coordination.before_commit = take_another_before
    await cluster.until(lambda: registered(newcomer), within_s=0.5 * SESSION_S)
    assert len(taken) == 2
    assert [entry["bundle"] for entry in cluster.warnings("bundle.lock.deleted")] == [gone]
    await cluster.settled([gone, kept])


@story(2)
async def test_who_could_not_clear_a_former_lock_registers_again(cluster: Cluster) -> None:
    boundaries, newcomer = await back_after_all_moved(cluster)
    lost: list[BundleId] = []

    def lose_the_first(operations: Sequence[Operation]) -> None:
        for bundle in boundaries.bundles:
            clears = any(
                isinstance(one, Delete) and one.path == znodes.lock(bundle) for one in operations
            )
            if clears and not lost:
                lost.append(bundle)
                newcomer.coordination.lose_next_request()

    newcomer.coordination.before_commit = lose_the_first
    await cluster.until(lambda: registered(newcomer), within_s=5.0)
    assert lost
    await cluster.settled(boundaries.bundles)


@story(2)
async def test_all_former_locks_are_taken_over_together(cluster: Cluster) -> None:
    boundaries, host = await killed_owner(cluster, 32)
    newcomer = cluster.start(host)
    sent: list[int] = []

    def count(operations: Sequence[Operation]) -> None:
        locks = {znodes.lock(bundle) for bundle in boundaries.bundles}
        sent.append(len(locks.intersection(one.path for one in operations)))

    newcomer.coordination.before_commit = count
    await cluster.settled(boundaries.bundles)
    # To create them, which tells that they stand, and to replace them: any other that is taken
    # in the namespace meanwhile spoils it for all.
    assert [locks for locks in sent if locks] == [32, 32]


@story(2)
async def test_a_lock_another_broker_took_is_not_replaced(cluster: Cluster) -> None:
    boundaries, host = await killed_owner(cluster, 1)
    (bundle,) = boundaries.bundles
    other, newcomer = other_than(cluster, host), cluster.start(host)
    sent = asyncio.Event()

    def be_late(operations: Sequence[Operation]) -> None:
        if replaces(operations, bundle) and not sent.is_set():
            newcomer.coordination.delay_commits_s = 1.5 * SESSION_S
            sent.set()

    newcomer.coordination.before_commit = be_late
    await sent.wait()
    # What it read was the lock of a session that is about to end; the next one is another's.
    await cluster.move(bundle, other)
    await cluster.until(lambda: bundle in other.serving, within_s=1.2 * SESSION_S)
    token = other.serving[bundle]
    await asyncio.sleep(SESSION_S)
    lock = cluster.service.dump().get(znodes.lock(bundle))
    assert lock is not None
    assert lock.stat.czxid == token
    newcomer.coordination.delay_commits_s = 0.0
    await cluster.settled([bundle])


@story(3)
async def test_a_broker_that_died_is_deregistered_again_where_that_write_was_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundaries, agent = await served_beside(cluster, 6, serving=False)
    host, session = agent.host, agent.coordination
    lost: list[str] = []
    delete = session.delete

    async def lose_once(path: str, *, version: int = -1) -> None:
        if path == znodes.registration(host.name) and not lost:
            lost.append(path)
            session.lose_next_request()
        await delete(path, version=version)

    monkeypatch.setattr(session, "delete", lose_once)
    host.kill_broker()
    await cluster.until(lambda: lost, within_s=2 * SESSION_S)
    # Its session lives on, so that nobody else would ever delete its registration.
    await cluster.until(
        lambda: znodes.registration(host.name) not in cluster.service.nodes, SESSION_S
    )
    await cluster.until(lambda: all(map(cluster.servers, boundaries.bundles)))


@story()
async def test_a_registration_whose_reply_was_lost_is_taken_back_if_the_broker_cannot_be_asked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundaries = await served(cluster, 6)
    host = next(one for one in cluster.living if not one.leads and one.host.serving).host
    heir = cluster.start(host)
    commit, report = heir.coordination.commit, znodes.registration(host.name)

    async def lose_the_reply(operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        if not host.cut and any(isinstance(o, Create) and o.path == report for o in operations):
            heir.coordination.lose_next_reply()
            host.cut = True
        return await commit(operations)

    monkeypatch.setattr(heir.coordination, "commit", lose_the_reply)
    await cluster.until(lambda: host.cut)
    # Its session lives on, so that nobody else would ever delete its registration.
    await cluster.until(lambda: report not in cluster.service.nodes, SESSION_S)
    await cluster.until(lambda: all(map(cluster.servers, boundaries.bundles)), 2 * SESSION_S)


@story(2)
async def test_a_waiting_sidecar_names_what_another_serves(cluster: Cluster) -> None:
    boundaries, topics = await placed(cluster, 2)
    host = follower(cluster, serving=False).host
    await own_all(cluster, boundaries.bundles, host)
    # Each takes over from the one before, until that has happened too often.
    while not cluster.warnings("broker.registration.awaited"):
        latest = cluster.start(host)
        await cluster.until(partial(decided, cluster, latest), within_s=10.0)
    assert not registered(latest)
    await cluster.settled(boundaries.bundles)
    for topic in topics:
        assert (await latest.look_up(topic)).broker == latest.context.identity.broker


@pytest.mark.parametrize("gone", ["the namespace", "the order"])
@story(2)
async def test_a_former_lock_nobody_wants_any_more_is_deleted(cluster: Cluster, gone: str) -> None:
    """It is wanted when the broker registers anew, in the same session, and not a moment later."""
    boundaries, agent = await served_beside(cluster, 2, serving=False)
    await own_all(cluster, boundaries.bundles, agent.host)
    operator, session_id = await cluster.operator(), agent.coordination.session.session_id
    gave_up: list[asyncio.Task[None]] = []

    async def give_up() -> None:
        if gone == "the namespace":
            await operator.delete(znodes.local_policies(NAMESPACE))
        else:
            for bundle in boundaries.bundles:
                await cluster.move(bundle, other_than(cluster, agent.host))

    def give_up_before(operations: Sequence[Operation]) -> None:
        first = not gave_up and replaces(operations, boundaries.bundles[0])
        agent.coordination.delay_commits_s = 0.1 if first else 0.0
        if first:
            gave_up.append(asyncio.ensure_future(give_up()))

    agent.coordination.before_commit = give_up_before
    newest = agent.cluster_state.brokers[agent.host.name].registered_as
    await agent.host.broker.renew_lease(agent_epoch=newest + 1, until_s=None, incarnation=None)
    await cluster.until(lambda: gave_up)
    await cluster.until(lambda: session_id not in cluster.lock_sessions().values(), within_s=5.0)
    assert agent.coordination.session.session_id == session_id
    await cluster.settled(boundaries.bundles if gone == "the order" else [])


@story()
async def test_a_sidecar_thawed_after_its_session_was_replaced(cluster: Cluster) -> None:
    boundaries, former = await served_beside(cluster, 6)
    former.coordination.freeze()
    await asyncio.sleep(SESSION_S + 1.0)
    newcomer = cluster.start(former.host)
    await cluster.until(lambda: registered(newcomer))
    await cluster.moved(boundaries.bundles[0], former.host)
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
    boundaries, first = await served_beside(cluster, 6)
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
    boundaries, agent = await served_beside(cluster, 6)
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

import asyncio
from contextlib import suppress

import pytest
from stories import follower, looked_up, now_s, placed, served, served_beside, story

from loadmanager.admin.brokers import Marked
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.wire.records import DrainMark, decode_drain_mark
from loadmanager.ports.coordination import CoordinationError
from loadmanager.ports.lookup import Conflict, Missing
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster, topic_in
from tests.testbed.faults.host import Host
from tests.testbed.in_process import Fault

MOST = 10
"""Most moves under way of one broker, as configured by default."""


async def most_homeless(
    cluster: Cluster, bundles: tuple[BundleId, ...], done: asyncio.Event
) -> int:
    most = 0
    while not done.is_set():
        most = max(most, sum(not cluster.servers(bundle) for bundle in bundles))
        await asyncio.sleep(0.001)
    return most


async def named_heirs(
    cluster: Cluster, agent: Agent, done: asyncio.Event
) -> dict[BundleId, BrokerId]:
    found: dict[BundleId, BrokerId] = {}
    while not done.is_set():
        found |= cluster.orders(agent.host).handovers
        await asyncio.sleep(0.001)
    return found


async def drain(agent: Agent, host: Host) -> None:
    await agent.app.drains.mark(host.name, by="story", reason="new kernel")


async def emptied(cluster: Cluster, host: Host, within_s: float = 10.0) -> None:
    """Return once ``host`` serves nothing; every sidecar must have got to know of it then."""
    await cluster.until(lambda: not host.serving, within_s)
    await asyncio.sleep(0.1)
    for agent in cluster.living:
        assert (await agent.app.drains.status(host.name)).bundles_left == 0


@pytest.mark.parametrize("leads", [False, True])
@story()
async def test_a_drain_empties_a_few_at_a_time_and_no_lookup_fails(
    cluster: Cluster, leads: bool
) -> None:
    boundaries, topics = await placed(cluster, 60)
    agent = next(a for a in cluster.living if a.leads is leads)
    assert len(agent.host.serving) > MOST
    left, done = set(agent.host.serving), asyncio.Event()
    watching = asyncio.ensure_future(most_homeless(cluster, boundaries.bundles, done))
    naming = asyncio.ensure_future(named_heirs(cluster, agent, done))
    async with looked_up(cluster, topics):
        await drain(cluster.leader, agent.host)
        await emptied(cluster, agent.host)
        await cluster.settled(boundaries.bundles, within_s=1.0)
        done.set()
    assert 0 < await watching <= MOST
    assert agent.app.member.registered
    # Each bundle is where the order said that it goes.
    heirs = await naming
    assert left <= heirs.keys()
    assert all(cluster.server(bundle).name == heirs[bundle] for bundle in left)
    assert len(cluster.service.epochs) == 1


@story()
async def test_nothing_is_placed_on_a_drained_broker_until_it_is_let_go(cluster: Cluster) -> None:
    drained = follower(cluster, serving=False)
    await drain(drained, drained.host)
    await cluster.until(
        lambda: cluster.leader.cluster_state.brokers[drained.host.name].registration.draining
    )
    boundaries = await served(cluster, 12)
    assert drained.host.serving == {}
    path = znodes.draining(drained.host.name)
    mark = decode_drain_mark(path, cluster.service.dump()[path].data)
    assert (mark.by, mark.reason) == ("story", "new kernel")
    for host in cluster.hosts:
        if host is not drained.host:
            await drain(drained, host)
    await cluster.leader.app.drains.unmark(drained.host.name)
    await cluster.until(lambda: len(drained.host.serving) == 12)
    await cluster.settled(boundaries.bundles)


@story(2)
async def test_bundles_that_nobody_can_take_stay_and_are_served(cluster: Cluster) -> None:
    boundaries, topics = await placed(cluster, 6)
    first, second = cluster.hosts
    async with looked_up(cluster, topics):
        await cluster.write(znodes.draining(first.name), b"{")  # A spoilt mark is a mark.
        await emptied(cluster, first)
        tokens = dict(second.serving)
        assert len(tokens) == 6
        with pytest.raises(Conflict, match=f"no broker besides {second.name} takes bundles; add"):
            await cluster.leader.app.drains.cordon(second.name, by="ann", reason="")
        await drain(cluster.leader, second)
        marked_s = now_s()
        await cluster.until(
            lambda: all(
                k.registration.draining for k in cluster.leader.cluster_state.brokers.values()
            )
        )
        assert now_s() - marked_s < 0.5
        await asyncio.sleep(10.0)
    assert second.serving == tokens
    told = cluster.leader.app.explainer.account(boundaries.bundles[-1]).explanation
    assert [one.code.value for one in told.decisions][:1] == ["no_candidate"]


@story()
async def test_the_next_leader_goes_on_emptying(cluster: Cluster) -> None:
    boundaries = await served(cluster, 60)
    former = cluster.leader
    agent = follower(cluster)
    count = len(agent.host.serving)
    await drain(agent, agent.host)
    await cluster.until(lambda: len(agent.host.serving) < count)
    assert agent.host.serving
    await former.kill()
    former.host.kill_broker()
    await emptied(cluster, agent.host, within_s=30.0)
    await cluster.settled(boundaries.bundles)


@pytest.mark.parametrize("every", [False, True])
@story()
async def test_a_mark_outlives_restarts_of_sidecars(cluster: Cluster, every: bool) -> None:
    _, agent = await served_beside(cluster, 12)
    host = agent.host
    await drain(agent, host)
    await emptied(cluster, host)
    leaving = list(cluster.living) if every else [agent]
    for one in leaving:
        await one.leave()
    for one in leaving:
        cluster.start(one.host)
    await cluster.ready()
    assert cluster.leader.cluster_state.brokers[host.name].registration.draining
    more = await cluster.make_namespace(12, Namespace("acme/more"))
    await asyncio.gather(*(cluster.leader.look_up(topic_in(more, b)) for b in more.bundles))
    await asyncio.sleep(5.0)
    assert host.serving == {}
    await cluster.agent_of(host.name).app.drains.unmark(host.name)
    await cluster.until(
        lambda: not cluster.leader.cluster_state.brokers[host.name].registration.draining,
        within_s=1.0,
    )


@story()
async def test_marks_say_who_and_why_and_may_be_repeated(cluster: Cluster) -> None:
    agent, host = cluster.agents[0], cluster.hosts[1]
    asked = agent.app.drains
    with pytest.raises(Missing, match="nowhere:8080: no such broker is registered"):
        await asked.mark(type(host.name)("nowhere:8080"), by="", reason="")
    with pytest.raises(Missing, match="registered or marked"):
        await asked.status(type(host.name)("nowhere:8080"))
    await asked.unmark(host.name)
    assert (await asked.status(host.name)).marked is None
    await asked.mark(host.name, by="ann", reason="disk")
    await asked.mark(host.name, by="bob", reason="")
    mark = (await asked.status(host.name)).marked
    assert mark is not None
    assert (mark.by, mark.reason) == ("ann", "disk")
    await cluster.write(znodes.draining(host.name), b"[")
    assert (await asked.status(host.name)).marked == Marked.model_validate(DrainMark())
    await asked.unmark(host.name)
    status = await asked.status(host.name)
    assert (status.marked, status.registered) == (None, True)


@story()
async def test_a_cordoned_broker_takes_nothing_and_is_not_emptied(cluster: Cluster) -> None:
    boundaries, agent = await served_beside(cluster, 12)
    host, app = agent.host, cluster.leader.app
    had = set(host.serving)
    for by in ("ann", "bob"):
        await app.drains.cordon(host.name, by=by, reason="disk")
    mark = (await app.drains.status(host.name)).marked
    assert mark is not None
    assert (mark.by, mark.reason, mark.drain) == ("ann", "disk", False)
    await agent.kill()
    cluster.start(host)
    await cluster.until(
        lambda: (
            not cluster.leader.cluster_state.brokers[host.name].registration.takes
            and cluster.agent_of(host.name).app.member.registered
        )
    )
    more = await cluster.make_namespace(12, Namespace("acme/more"))
    await asyncio.gather(*(cluster.leader.look_up(topic_in(more, b)) for b in more.bundles))
    await asyncio.sleep(5.0)
    assert set(host.serving) == had
    told = app.explainer.account(str(host.name)).explanation
    assert "domain_unsupported" in {one.reason.value for one in told.grounds}
    (seen,) = (one for one in app.overviews.overview().brokers if one.broker == host.name)
    assert (seen.cordoned, seen.draining) == (True, False)
    namespace, _, bundle = more.bundles[0].rpartition("/")
    with pytest.raises(Conflict, match="is cordoned"):
        await app.bundle_requests.unload(Namespace(namespace), bundle, host.name)
    await drain(cluster.leader, host)
    await emptied(cluster, host)
    assert not (await app.drains.status(host.name)).bundles_left
    await app.drains.cordon(host.name, by="", reason="")
    await cluster.until(
        lambda: not cluster.leader.cluster_state.brokers[host.name].registration.draining
    )
    await app.drains.unmark(host.name)
    await cluster.until(lambda: cluster.leader.cluster_state.brokers[host.name].registration.takes)
    await cluster.settled([*boundaries.bundles, *more.bundles])


@pytest.mark.parametrize("leads", [False, True])
@story()
async def test_a_sidecar_that_stops_empties_its_broker_first(cluster: Cluster, leads: bool) -> None:
    boundaries, topics = await placed(cluster, 60)
    agent = next(a for a in cluster.living if a.leads is leads)
    session = agent.coordination.session.session_id
    assert len(agent.host.serving) > MOST
    done = asyncio.Event()
    watching = asyncio.ensure_future(most_homeless(cluster, boundaries.bundles, done))
    async with looked_up(cluster, topics):
        begun_s = now_s()
        await agent.leave()
        assert now_s() - begun_s < 5.0
        # Nobody has to wait for the session to expire.
        nodes = cluster.service.dump()
        assert not any(one.stat.ephemeral_owner == session for one in nodes.values())
        await cluster.settled(boundaries.bundles, within_s=1.0)
        done.set()
    assert await watching <= MOST
    (ended,) = cluster.warnings("broker.drain.ended")
    assert (ended["bundles"] > MOST, ended["left"]) == (True, 0)
    assert (agent.failure, agent.host.serving) == (None, {})
    assert znodes.registration(agent.host.name) not in nodes
    assert 0.0 <= min(gaps(cluster, agent.host)) <= max(gaps(cluster, agent.host)) < 0.06


def gaps(cluster: Cluster, former: Host) -> list[float]:
    begun = {i.bundle: i.start_s for h in cluster.hosts if h is not former for i in h.intervals()}
    return [begun[i.bundle] - i.end_s for i in former.intervals()]


@story()
async def test_nobody_waits_for_the_bundle_that_is_a_brokers_own(cluster: Cluster) -> None:
    agent = follower(cluster, serving=False)
    own = await served(cluster, 1, Namespace(f"pulsar/{agent.host.name}"))
    holder = cluster.agent_of(cluster.server(own.bundles[0]).name)
    begun_s = now_s()
    await holder.leave()
    assert now_s() - begun_s < 8.0
    assert holder.host.serving == {}
    (ended,) = cluster.warnings("broker.drain.ended")
    assert (ended["left"], ended["took_s"]) == (1, 0.0)


@story(ownership={"drain_deadline_s": 4.0})
async def test_what_is_not_taken_within_the_deadline_is_given_back(cluster: Cluster) -> None:
    _, agent = await served_beside(cluster, 9)
    cluster.leader.coordination.freeze()  # It leads on for a while, and plans nothing.
    begun_s = now_s()
    await agent.leave()
    assert 4.0 <= now_s() - begun_s < 4.0 + 10.0
    assert agent.host.serving == {}
    assert agent.coordination.session.session_id not in cluster.lock_sessions().values()


@story(3)
async def test_all_that_stop_at_once_do_not_wait_for_one_another(cluster: Cluster) -> None:
    await served(cluster, 12)
    begun_s = now_s()
    await asyncio.gather(*(agent.leave() for agent in cluster.living))
    assert now_s() - begun_s < 12.0
    assert cluster.lock_sessions() == {}
    assert all(host.serving == {} for host in cluster.hosts)


@story()
async def test_without_the_service_a_sidecar_stops_without_waiting(cluster: Cluster) -> None:
    boundaries, agent = await served_beside(cluster, 6)
    agent.coordination.suspend()
    begun_s = now_s()
    with suppress(CoordinationError):
        await agent.leave()
    assert now_s() - begun_s < 20.0
    assert cluster.warnings("broker.deregistration.failed")
    assert agent.host.serving == {}
    await cluster.settled(boundaries.bundles)


@story()
async def test_a_hung_broker_keeps_its_locks_until_its_lease_is_over(cluster: Cluster) -> None:
    boundaries, agent = await served_beside(cluster, 6)
    agent.host.broker.inject(Fault.REFUSED, "unload")
    await agent.leave()
    assert cluster.warnings("broker.lease.awaited")
    assert agent.host.serving == {}
    await cluster.settled(boundaries.bundles)


@story()
async def test_a_leader_cut_off_from_the_service_leaves_all_the_same(cluster: Cluster) -> None:
    leader = cluster.leader
    leader.coordination.lose_next_request()
    await leader.leave()
    assert leader.failure is None
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=SESSION_S + 2.0)


@story(2)
async def test_a_sidecar_that_never_registered_leaves_at_once(cluster: Cluster) -> None:
    host = cluster.add_host()
    host.cut = True
    agent = cluster.start(host)
    await asyncio.sleep(2.0)
    begun_s = now_s()
    await agent.leave()
    assert now_s() - begun_s < 0.5

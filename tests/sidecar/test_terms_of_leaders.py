import asyncio

import pytest
from stories import follower, served, story

from loadmanager.core import znodes
from loadmanager.core.orders import OrderChanges, Orders, encode_orders
from loadmanager.leader.election import Deposed
from loadmanager.leader.order_book import OrderBook
from loadmanager.ports.coordination import Disconnected
from loadmanager.ports.lookup import NotLeader
from tests.testbed.faults.agent import SESSION_S
from tests.testbed.faults.cluster import Cluster, order
from tests.testbed.memory.tree import Znode


@story()
async def test_exactly_one_leads_and_everybody_knows_who(cluster: Cluster) -> None:
    leaders = [agent for agent in cluster.agents if agent.leads]
    assert len(leaders) == 1
    assert [a.metric("loadmanager_leader") for a in cluster.agents] == [
        float(agent.leads) for agent in cluster.agents
    ]
    infos = {agent.app.answering.leader for agent in cluster.agents}
    assert len(infos) == 1
    (info,) = infos
    assert info is not None
    assert (info.broker, info.sidecar_url) == (leaders[0].host.name, leaders[0].url)
    assert info.epoch == cluster.service.dump()[znodes.EPOCH].stat.version
    bundle = (await cluster.make_namespace(1)).bundles[0]
    with pytest.raises(NotLeader, match="does not lead"):
        await follower(cluster, serving=False).app.answering.assign(bundle)


@story()
async def test_a_dead_leader_s_orders_stand_under_a_higher_epoch(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    leader = cluster.leader
    places = {bundle: cluster.server(bundle) for bundle in boundaries.bundles}
    await leader.kill()
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=SESSION_S + 1.0)
    await cluster.settled(boundaries.bundles)
    kept = {b: h for b, h in places.items() if h is not leader.host}
    assert {bundle: cluster.server(bundle) for bundle in kept} == kept


@story()
async def test_the_late_writes_of_a_deposed_leader_are_refused(cluster: Cluster) -> None:
    boundaries = await served(cluster, 3)
    former = cluster.leader
    book = OrderBook(former.context, cluster.leader_term._term)
    await book.read()
    former.coordination.freeze()
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=SESSION_S + 1.0)
    former.coordination.thaw()
    await cluster.until(lambda: former.app.member.registered)
    await cluster.settled(boundaries.bundles)
    before = cluster.orders(former.host)
    with pytest.raises(Deposed, match="epoch 1 is over"):
        await book.write(OrderChanges({boundaries.bundles[0]: former.host.name}))
    assert cluster.orders(former.host) == before
    assert former.metric("loadmanager_leader") == 0.0


@story()
async def test_an_agent_refuses_orders_of_an_older_leader(cluster: Cluster) -> None:
    boundaries = await served(cluster, 3)
    former = cluster.leader
    await former.kill()
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=SESSION_S + 1.0)
    await cluster.settled(boundaries.bundles)
    agent = next(a for a in cluster.living if a.host.serving)
    await cluster.move(next(iter(agent.host.serving)), agent.host)
    await asyncio.sleep(0.1)  # It has read them by now.
    before = dict(agent.host.serving)
    assert cluster.orders(agent.host).epoch == 2
    # Past ZooKeeper's check, as nothing but a foreign hand can write them.
    await cluster.write(znodes.orders(agent.host.name), encode_orders(Orders(1)))
    await asyncio.sleep(0.5)
    assert agent.host.serving == before
    (refused,) = cluster.warnings("orders.epoch.refused")
    assert (refused["epoch"], refused["newest"]) == (1, 2)
    assert agent.metric("loadmanager_stale_orders_total") == 1


@story()
async def test_a_suspended_leader_writes_nothing_and_resumes_its_term(cluster: Cluster) -> None:
    boundaries = await served(cluster, 3)
    leader = cluster.leader
    leader_term = leader.app.leading.leader_term
    leader.coordination.suspend()
    await asyncio.sleep(SESSION_S / 2)
    with pytest.raises(Disconnected):
        await order(cluster.leader_term, {boundaries.bundles[0]: leader.host.name})
    leader.coordination.reconnect()
    await asyncio.sleep(1.0)
    assert leader.app.leading.leader_term is leader_term
    assert cluster.service.epochs == [1]
    other = next(h for h in cluster.hosts if h is not cluster.server(boundaries.bundles[0]))
    await cluster.move(boundaries.bundles[0], other)
    await cluster.until(lambda: cluster.servers(boundaries.bundles[0]) == [other])


@story(1)
async def test_an_open_question_hears_that_the_term_is_over(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(1)
    (agent,) = cluster.agents
    agent.coordination.delay_commits_s = 5.0
    question = asyncio.ensure_future(agent.app.answering.assign(boundaries.bundles[0]))
    await asyncio.sleep(1.0)
    operator = await cluster.operator()
    await operator.delete(znodes.LEADER)
    with pytest.raises(NotLeader, match="epoch 1 is over"):
        await question
    agent.coordination.delay_commits_s = 0.0


@story(1)
async def test_a_node_that_vanishes_before_it_is_seen_is_stood_for_again(cluster: Cluster) -> None:
    operator = await cluster.operator()
    vanishing: list[asyncio.Task[None]] = []

    def delete(path: str, was: Znode | None, now: Znode | None) -> None:
        # Watches coalesce: who won it reads that there is none, as it did before.
        if path == znodes.LEADER and was is None and now is not None and not vanishing:
            vanishing.append(asyncio.ensure_future(operator.delete(znodes.LEADER)))

    cluster.service.watchers.append(delete)
    (agent,) = cluster.agents
    agent.coordination.scatter_events(0.5)
    await operator.delete(znodes.LEADER)
    await cluster.until(lambda: len(cluster.service.epochs) == 3, within_s=5.0)
    await cluster.until(lambda: agent.app.leading.leader_term is not None, within_s=5.0)


@story()
async def test_a_restarted_leader_need_not_wait_for_its_former_session(cluster: Cluster) -> None:
    leader = cluster.leader
    await leader.kill()
    killed_at_s = asyncio.get_running_loop().time()
    cluster.start(leader.host)
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=SESSION_S / 2)
    assert asyncio.get_running_loop().time() - killed_at_s < 1.0
    assert cluster.warnings("election.node.deleted")


@story()
async def test_a_leader_overtaken_unheard_gives_up_its_node(cluster: Cluster) -> None:
    leader = cluster.leader
    await cluster.write(znodes.EPOCH, b"somebody else")  # The version moves on.
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=10.0)
    assert cluster.warnings("leadership.term.interrupted")
    await served(cluster, 2)
    assert leader.alive


@story(0)
async def test_the_only_sidecar_leads_as_soon_as_it_is_registered(cluster: Cluster) -> None:
    host = cluster.add_host()
    host.rng.seed(3)
    agent = cluster.start(host)
    renew = agent.line.renew_lease

    async def slow(**arguments: object) -> object:
        await asyncio.sleep(0.4)
        return await renew(**arguments)  # type: ignore[arg-type]

    agent.line.renew_lease = slow  # type: ignore[method-assign,assignment]
    await cluster.until(lambda: agent.application and agent.app.member.registered)
    await cluster.until(lambda: agent.leads, within_s=0.5)


@story(1)
async def test_without_a_registered_broker_nobody_stands_for_election(cluster: Cluster) -> None:
    host = cluster.add_host()
    host.cut = True
    idle = cluster.start(host)
    await cluster.agents[0].leave()
    await asyncio.sleep(5.0)
    assert cluster.service.epochs == [1]
    assert "no leader is elected" in idle.app.answering.readiness().reasons
    host.cut = False
    await cluster.until(lambda: idle.leads, within_s=2.0)

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from counted_requests import counted_cluster
from stories import follower, place_all, publish_for_ever, served, story

from loadmanager.common.cluster_owners import READ_AHEAD
from loadmanager.core import orders, znodes
from loadmanager.core.ids import TopicName, parse_broker, parse_bundle
from loadmanager.core.orders import OrderChanges, Orders, decode_orders, encode_orders
from loadmanager.leader.election import Deposed
from loadmanager.leader.order_book import OrderBook
from loadmanager.ports.coordination import Disconnected, Operation
from loadmanager.ports.lookup import NotLeader, Unavailable
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster, order, topic_in
from tests.testbed.faults.virtual_time import run
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


QUICK: dict[str, Any] = {
    "shedding": {
        "strategy": "ThresholdShedder",
        "grace_period_s": 60.0,
        "settings": {"loadBalancerBundleUnloadMinThroughputThreshold": 0.0},
    }
}


async def _heat(cluster: Cluster, topics: list[TopicName], for_s: float) -> None:
    publishing = asyncio.ensure_future(publish_for_ever(cluster, topics))
    cluster.hosts[0].cpu_fraction = 0.95
    await asyncio.sleep(for_s)
    publishing.cancel()


@story(3, **QUICK)
async def test_a_hot_broker_sheds_to_the_others(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(12)
    topics = await place_all(cluster, boundaries)
    before = len(cluster.hosts[0].serving)
    await _heat(cluster, topics, for_s=20.0)
    await cluster.settled(boundaries.bundles)
    moved = cluster.warnings("bundle.move.decided")
    assert moved
    assert {entry["source"] for entry in moved} == {cluster.hosts[0].name}
    assert {entry["epoch"] for entry in moved} == {1}
    assert len(cluster.hosts[0].serving) == before - len({e["bundle"] for e in moved})
    leader = cluster.leader
    assert leader.metric("loadmanager_rounds_total", outcome="moved") >= 1
    assert leader.metric("loadmanager_rounds_total", outcome="quiet") >= 1
    shed = leader.metric(
        "loadmanager_moves_total", strategy="ThresholdShedder", reason="overloaded"
    )
    assert shed == len(moved)
    assert leader.metric("loadmanager_hand_over_duration_seconds_count") >= 12 + len(moved)
    assert leader.metric("loadmanager_moves_in_flight") == 0


@story(3, shedding={**QUICK["shedding"], "observe": True})
async def test_in_observe_mode_nothing_is_ordered_and_everything_told(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(12)
    topics = await place_all(cluster, boundaries)
    before = {bundle: cluster.server(bundle) for bundle in boundaries.bundles}
    await _heat(cluster, topics, for_s=20.0)
    assert cluster.warnings("bundle.move.observed")
    assert not cluster.warnings("bundle.move.decided")
    assert {bundle: cluster.server(bundle) for bundle in boundaries.bundles} == before
    assert cluster.leader.metric("loadmanager_rounds_total", outcome="observed") >= 1


@story(3, **QUICK)
async def test_a_leader_in_doubt_of_its_session_decides_nothing(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(12)
    topics = await place_all(cluster, boundaries)
    leader = cluster.leader
    strategy = "ThresholdShedder"
    leader.coordination.suspend()
    await _heat(cluster, topics, for_s=5.0)
    refused = leader.metric(
        "loadmanager_refusals_total", strategy=strategy, reason="session_doubtful"
    )
    assert refused >= 2
    assert not cluster.warnings("bundle.move.decided")


@story(3)
async def test_orders_too_large_for_one_commit_are_written_additions_first(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundaries = await served(cluster, 3)
    bundle = boundaries.bundles[0]
    source = cluster.server(bundle)
    target = next(host for host in cluster.hosts if host is not source)
    monkeypatch.setattr(orders, "_COMMIT_NODES", 1)
    await order(cluster.leader_term, {bundle: target.name})
    nodes = cluster.service.dump()
    added, removed = (nodes[znodes.orders(host.name)].stat.mzxid for host in (target, source))
    assert added < removed
    await cluster.until(lambda: cluster.servers(bundle) == [target])


@story(3)
async def test_a_bundle_in_two_orders_is_left_to_its_holder(cluster: Cluster) -> None:
    boundaries = await served(cluster, 3)
    bundle = boundaries.bundles[0]
    holder = cluster.server(bundle)
    other = next(h for h in cluster.hosts if h is not holder and h is not cluster.leader.host)
    standing = cluster.orders(other)
    double = Orders(standing.epoch, standing.bundles | {bundle})
    await cluster.write(znodes.orders(other.name), encode_orders(double))
    operator = await cluster.operator()
    await operator.delete(znodes.LEADER)
    await cluster.until(lambda: len(cluster.service.epochs) == 2)
    await cluster.until(lambda: bundle not in cluster.orders(other).bundles)
    assert bundle in cluster.orders(holder).bundles
    assert cluster.servers(bundle) == [holder]


@story(3)
async def test_of_two_orders_for_a_bundle_that_nobody_holds_one_stays(cluster: Cluster) -> None:
    bundle = parse_bundle("acme/gone/0x00000000_0xffffffff")
    strangers = [parse_broker(f"stranger{n}:8080") for n in (2, 1)]
    for stranger in strangers:
        await cluster.write(znodes.orders(stranger), encode_orders(Orders(0, frozenset({bundle}))))
    leader = cluster.leader
    book = OrderBook(leader.context, cluster.leader_term._term)
    await book.read()
    await book.write(OrderChanges())
    assert book.assigned[bundle] == "stranger1:8080"
    nodes = cluster.service.dump()
    left = decode_orders("here", nodes[znodes.orders(parse_broker("stranger2:8080"))].data)
    assert left.bundles == frozenset()


@story(3)
async def test_after_a_lost_reply_the_book_is_read_again(cluster: Cluster) -> None:
    boundaries = await served(cluster, 3)
    bundle, second = boundaries.bundles[:2]
    target = next(host for host in cluster.hosts if host is not cluster.server(bundle))
    leader_term = cluster.leader_term
    cluster.leader.coordination.lose_next_reply()
    with pytest.raises(Disconnected):
        await order(leader_term, {bundle: target.name})
    await cluster.until(lambda: cluster.servers(bundle) == [target])
    await order(leader_term, {second: target.name})
    assert leader_term.tasks.assigned[bundle] == target.name
    assert cluster.orders(target).bundles >= {bundle, second}


@story(3)
async def test_a_new_leader_answers_by_the_plans_of_the_one_before(cluster: Cluster) -> None:
    await served(cluster, 3)
    plans = dict(cluster.leader_term.tasks.assigned)
    await cluster.hold_lock(parse_bundle("acme/orders2/0x00000000_0xffffffff"))
    leader = cluster.leader
    for agent in cluster.agents:
        agent.coordination.delay_commits_s = 1.0  # No list shows an owner for a while.
    await leader.leave()
    await cluster.until(lambda: len(cluster.service.epochs) == 2)
    heir = cluster.leader
    await cluster.until(lambda: heir.app.leading.leader_term is not None)
    for bundle, planned in plans.items():
        answer = await heir.app.answering.assign(bundle)
        if planned != leader.host.name:
            assert answer == planned


@story(2)
async def test_an_order_that_cannot_be_written_is_told_to_who_asked(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(2)
    leader = cluster.leader
    await leader.look_up(topic_in(boundaries, boundaries.bundles[0]))
    leader.coordination.suspend()
    with pytest.raises(Unavailable, match="the order could not be written"):
        await leader.app.answering.assign(boundaries.bundles[1])


def _count_orders_of(leader: Agent) -> list[int]:
    written: list[int] = []

    def committed(operations: Sequence[Operation]) -> None:
        orders = [one for one in operations if one.path.startswith(znodes.ORDERS)]
        if orders:
            written.append(len(orders))

    leader.coordination.before_commit = committed
    return written


@pytest.mark.parametrize(("read_ahead", "gathered"), [(1, True), (READ_AHEAD, False)])
def test_placements_are_gathered_where_writes_are_slow(read_ahead: int, gathered: bool) -> None:
    every_s, write_s = 0.03, 0.1

    async def program() -> None:
        async with counted_cluster(3, read_ahead=read_ahead) as (cluster, _service):
            boundaries = await cluster.make_namespace(100)
            written = _count_orders_of(cluster.leader)
            cluster.leader.coordination.delay_commits_s = write_s
            lookups = []
            for bundle in boundaries.bundles:
                topic = topic_in(boundaries, bundle)
                lookups.append(asyncio.ensure_future(cluster.leader.look_up(topic)))
                await asyncio.sleep(every_s)
            await asyncio.gather(*lookups)
            one_after_the_other = every_s * len(lookups) / write_s
            assert (len(written) < 0.5 * one_after_the_other) is gathered
            assert len(written) > 0.25 * one_after_the_other
            cluster.leader.coordination.delay_commits_s = 0.0

    run(program())

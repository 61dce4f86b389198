import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from counted_requests import counted_cluster
from stories import follower, placed, published, served, story

from loadmanager.admin.decisions import DecisionsQuery
from loadmanager.common.cluster_state import READ_AHEAD
from loadmanager.core import orders, znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import TopicName, parse_broker, parse_bundle
from loadmanager.core.memory import RoundMemory
from loadmanager.core.orders import OrderChanges, Orders, decode_orders, encode_orders
from loadmanager.core.wire.standby import Standby, decode_standby, encode_standby
from loadmanager.leader.task_controller import OrderBook
from loadmanager.leader.term import LeaderTerm
from loadmanager.ports.coordination import Disconnected, Operation, Stat
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
    await cluster.moved(boundaries.bundles[0], other)


@story(1)
async def test_an_open_question_hears_that_the_term_is_over(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(1)
    (agent,) = cluster.agents
    agent.coordination.delay_commits_s = 5.0
    question = asyncio.ensure_future(agent.app.answering.assign(boundaries.bundles[0]))
    await asyncio.sleep(1.0)
    await cluster.delete(znodes.LEADER)
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
        return await renew(**arguments)

    agent.line.renew_lease = slow
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


@asynccontextmanager
async def _hot(cluster: Cluster, topics: list[TopicName]) -> AsyncIterator[None]:
    async with published(cluster, topics):
        cluster.hosts[0].cpu_fraction = 0.95
        yield


@story(3, **QUICK)
async def test_a_hot_broker_sheds_to_the_others(cluster: Cluster) -> None:
    boundaries, topics = await placed(cluster, 12)
    before = len(cluster.hosts[0].serving)
    async with _hot(cluster, topics):
        await asyncio.sleep(20.0)
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


@story(3, **QUICK)
async def test_a_leader_in_doubt_of_its_session_decides_nothing(cluster: Cluster) -> None:
    _, topics = await placed(cluster, 12)
    leader = cluster.leader
    strategy = "ThresholdShedder"
    leader.coordination.suspend()
    async with _hot(cluster, topics):
        await asyncio.sleep(5.0)
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
    await cluster.delete(znodes.LEADER)
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


NO_MINIMUM = {"loadBalancerBundleUnloadMinThroughputThreshold": 0.0}
THRESHOLD: dict[str, Any] = {
    "shedding": {"strategy": "ThresholdShedder", "grace_period_s": 600.0, "settings": NO_MINIMUM}
}


async def _next_term(cluster: Cluster) -> LeaderTerm:
    """End the leader's term, its process living on, and return who leads then."""
    terms = len(cluster.service.epochs)
    await cluster.delete(znodes.LEADER)
    await cluster.until(lambda: len(cluster.service.epochs) > terms)
    await cluster.until(lambda: cluster.leader.app.leading.leader_term is not None)
    await asyncio.sleep(0.2)
    return cluster.leader_term


async def _end_of_round(cluster: Cluster) -> None:
    stored = cluster.service.nodes[znodes.STATE].node.stat.version
    await cluster.until(
        lambda: cluster.service.nodes[znodes.STATE].node.stat.version > stored, every_s=0.001
    )


@story(4, seed=2, **THRESHOLD)
async def test_a_new_leader_has_the_memory_of_the_former_one(cluster: Cluster) -> None:
    _, topics = await placed(cluster, 16)
    async with _hot(cluster, topics):
        await cluster.until(lambda: cluster.warnings("bundle.move.decided"))
        await asyncio.sleep(3.0)
    await _end_of_round(cluster)
    before, watch = cluster.leader_term.look(), cluster.leader_term.optimality_watch
    *course, _ = [one.at_ms for one in watch.course]  # The last one may not have been stored.
    heir = await _next_term(cluster)
    after = heir.look()
    assert course
    assert [one.at_ms for one in heir.optimality_watch.course][: len(course)] == course
    assert before.memory.moved_at_s
    assert after.memory.moved_at_s == pytest.approx(before.memory.moved_at_s, abs=0.1)
    assert after.memory.shedder.usage == pytest.approx(before.memory.shedder.usage, abs=0.1)
    assert after.memory.shedder.high_hits == before.memory.shedder.high_hits
    assert after.averages.keys() == before.averages.keys()
    names = before.view.brokers.names
    assert after.view.brokers.names == names
    ema = before.view.brokers.load_ema
    assert after.view.brokers.load_ema == pytest.approx(ema, abs=0.05)
    assert np.isfinite(ema).all()


@story(3, shedding={"strategy": "joint"}, placement={"strategy": "joint"})
async def test_what_the_joint_strategy_learned_survives_its_leader(cluster: Cluster) -> None:
    boundaries, topics = await placed(cluster, 12)
    async with _hot(cluster, topics):
        await cluster.until(lambda: cluster.warnings("bundle.move.decided"), within_s=60.0)
        await asyncio.sleep(10.0)
    before = cluster.leader_term.look().memory.shedder.joint
    after = (await _next_term(cluster)).look().memory.shedder.joint
    assert before is not None
    assert after is not None
    assert after.learned.unit_costs == pytest.approx(before.learned.unit_costs, rel=1e-6)
    assert after.learned.brokers.names == before.learned.brokers.names
    await cluster.settled(boundaries.bundles)


@story(4, **THRESHOLD)
async def test_a_bundle_unloaded_by_hand_rests_under_the_next_leader_too(cluster: Cluster) -> None:
    boundaries = await served(cluster, 8)
    bundle = boundaries.bundles[0]
    leader = cluster.leader
    await cluster.leader_term.order_unload({bundle: cluster.server(bundle).name}, None)
    await leader.kill()  # Before any round stored what it remembers.
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=SESSION_S + 1.0)
    await cluster.until(lambda: cluster.leader.app.leading.leader_term is not None)
    await asyncio.sleep(0.2)
    assert bundle in cluster.leader_term.look().memory.moved_at_s


@story(3, **THRESHOLD)
async def test_a_deleted_state_holds_up_no_orders(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    await cluster.until(lambda: znodes.STATE in cluster.service.dump())
    bundle, operator = boundaries.bundles[0], await cluster.operator()
    source = cluster.server(bundle)
    await operator.delete(znodes.STATE)
    await cluster.leader_term.order_unload({bundle: source.name}, None)
    # The order made the node again; a round fills it.
    nodes = cluster.service.dump
    assert not nodes()[znodes.STATE].data
    await cluster.until(lambda: cluster.servers(bundle) not in ([], [source]))
    await cluster.until(lambda: nodes()[znodes.STATE].data)
    assert bundle in decode_standby("", nodes()[znodes.STATE].data).memory.moved_at_s


@story(5, **THRESHOLD)
async def test_brokers_lost_under_the_former_leader_count_under_the_next(cluster: Cluster) -> None:
    await served(cluster, 8)
    victims = [agent for agent in cluster.agents if not agent.leads][:2]
    for agent in victims:
        await agent.kill()
    await cluster.until(lambda: len(cluster.leader_term.look().view.departures_s) == 2)
    await asyncio.sleep(3.0)
    heir = await _next_term(cluster)
    assert len(heir.look().view.departures_s) == 2
    cluster.start(victims[0].host)
    await cluster.until(lambda: len(heir.look().view.departures_s) == 1)


@story(3, leader={"settle_s": 6.0}, **THRESHOLD)
async def test_first_rounds_wait_until_the_membership_has_settled(cluster: Cluster) -> None:
    _, topics = await placed(cluster, 12)
    await asyncio.sleep(8.0)
    await _next_term(cluster)
    begun_s = asyncio.get_running_loop().time()
    async with _hot(cluster, topics):
        await cluster.until(lambda: cluster.warnings("bundle.move.decided"))
    assert cluster.warnings("bundle.move.decided")[0]["at_s"] - begun_s >= 5.0
    waited = cluster.leader.metric(
        "loadmanager_refusals_total", strategy="ThresholdShedder", reason="membership_changing"
    )
    assert waited >= 2


UNREADABLE = encode_standby(Standby(RoundMemory(), {}, joint=b"garbage"))


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"x\x9c\x03\x00\x00\x00\x00\x01", UNREADABLE, None]
)
@story(3, **THRESHOLD)
async def test_without_readable_state_a_leader_begins_cold(
    cluster: Cluster, content: bytes | None
) -> None:
    boundaries = await served(cluster, 6)
    await cluster.until(lambda: znodes.STATE in cluster.service.dump())
    operator = await cluster.operator()
    leader = cluster.leader
    await leader.kill()
    if content is None:
        await operator.delete(znodes.STATE)
    else:
        await cluster.write(znodes.STATE, content)
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=SESSION_S + 1.0)
    await cluster.settled(boundaries.bundles)
    # Its first round stores a state that the next one can read.
    await cluster.until(lambda: _is_stored(cluster))
    assert not cluster.warnings("bundle.move.decided")


def _is_stored(cluster: Cluster) -> bool:
    node = cluster.service.dump().get(znodes.STATE)
    try:
        return node is not None and len(decode_standby("", node.data).memory.started_at_ms) == 2
    except MalformedContent:
        return False


@pytest.mark.parametrize("applied", [False, True], ids=["request lost", "reply lost"])
@story(3, **THRESHOLD)
async def test_only_what_was_ordered_counts_as_moved(cluster: Cluster, applied: bool) -> None:
    boundaries, topics = await placed(cluster, 12)
    leader = cluster.leader
    commit, failed = leader.coordination.commit, asyncio.Event()

    async def lose_one(operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        paths = [one.path for one in operations]
        orders = any(path.startswith(znodes.ORDERS) for path in paths)
        if not (orders and znodes.STATE in paths) or failed.is_set():
            return await commit(operations)
        failed.set()
        if applied:
            await commit(operations)
        raise Disconnected("lost on its way")

    leader.coordination.commit = lose_one  # type: ignore[method-assign]
    async with _hot(cluster, topics):
        await cluster.until(failed.is_set)
        await asyncio.sleep(0.01)
        first = {entry["bundle"] for entry in cluster.warnings("bundle.move.decided")}
        assert not first & cluster.leader_term.look().memory.moved_at_s.keys()
        decisions = DecisionsQuery(limit=50).of(cluster.leader_term.decision_log.decisions())
        assert not [one for one in decisions if one.outcome == "moved"]
        await asyncio.sleep(5.0)
    told = [entry["bundle"] for entry in cluster.warnings("bundle.move.decided")]
    again = {bundle for bundle in first if told.count(bundle) > 1}
    # What was ordered after all rests, what was not is decided on again.
    assert again == (set() if applied else first)
    assert first <= cluster.leader_term.look().memory.moved_at_s.keys()
    await cluster.settled(boundaries.bundles)

import asyncio
from collections.abc import Sequence

import pytest
from stories import (
    BY_HAND,
    boundaries_now,
    place_all,
    placed,
    publish,
    served,
    story,
    topics_in,
)

from loadmanager.admin.namespaces import Namespaces
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.orders import SplitOrder
from loadmanager.leader.election import Term
from loadmanager.leader.term import LeaderTerm
from loadmanager.ports.coordination import Disconnected, Operation
from loadmanager.ports.lookup import LeaderElsewhere, Missing, Unavailable, Unfit
from loadmanager.reference_broker.changes import Accepted
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, topic_in
from tests.testbed.faults.host import Host

MIDDLE = SplitOrder("range_equally_divide")
BY_TOPICS = SplitOrder("topic_count_equally_divide")


async def split(cluster: Cluster, bundle: BundleId, order: SplitOrder = MIDDLE) -> None:
    chosen = bundle.rpartition("/")[2]
    await cluster.leader.app.bundle_requests.split(NAMESPACE, chosen, order)


@story(sidecars=1, **BY_HAND)
async def test_no_message_finds_nobody_while_a_bundle_is_cut(cluster: Cluster) -> None:
    boundaries = await served(cluster, 1)
    (whole,), (host,) = boundaries.bundles, cluster.hosts
    topics = topics_in(boundaries, whole, 10)
    publish(cluster, topics)
    splitting = asyncio.ensure_future(split(cluster, whole, BY_TOPICS))
    published = 0
    while not splitting.done() or published < 1000:
        for topic in topics:
            assert isinstance(host.broker.publish(topic), Accepted)
            published += 1
        await asyncio.sleep(0.0005)
    await splitting
    await cluster.settled(boundaries_now(cluster).bundles)
    assert all(isinstance(host.broker.publish(topic), Accepted) for topic in topics)


@story(split={"max_topics": 5}, placement={"strategy": "LeastLongTermMessageRate"})
async def test_a_bundle_that_has_grown_too_large_is_split(cluster: Cluster) -> None:
    boundaries = await served(cluster, 1)
    (whole,) = boundaries.bundles
    first = cluster.server(whole)
    publish(cluster, topics_in(boundaries, whole, 8))
    await cluster.until(lambda: len(boundaries_now(cluster).bundles) == 2, within_s=60)
    after = boundaries_now(cluster)
    await cluster.until(
        lambda: len({host for part in after.bundles for host in cluster.servers(part)}) == 2,
        within_s=60,
    )
    await cluster.settled(after.bundles)
    assert cluster.server(after.bundles[0]) is first


@pytest.mark.parametrize("broker_dies", [True, False])
@story(**BY_HAND)
async def test_parts_outlive_their_sidecar(cluster: Cluster, broker_dies: bool) -> None:
    boundaries = await served(cluster, 2)
    whole = next(b for b in boundaries.bundles if cluster.server(b) is not cluster.leader.host)
    host = cluster.server(whole)
    publish(cluster, topics_in(boundaries, whole, 4))
    await split(cluster, whole)
    if broker_dies:
        host.kill_broker()
    await cluster.agent_of(host.name).kill()
    if not broker_dies:  # Its next sidecar reads orders from before the split.
        cluster.start(host)
        await cluster.ready(within_s=60)
    await cluster.settled(boundaries_now(cluster).bundles, within_s=60)
    assert cluster.servers(whole) == []


@story(**BY_HAND)
async def test_a_single_topic_is_never_cut_and_the_order_is_taken_back(cluster: Cluster) -> None:
    boundaries, (topic,) = await placed(cluster, 1)
    publish(cluster, [topic])
    (whole,) = boundaries.bundles
    with pytest.raises(Unavailable, match="was not cut within 15 s"):
        await split(cluster, whole, BY_TOPICS)
    assert cluster.warnings("bundle.split.refused")
    await cluster.until(lambda: cluster.warnings("bundle.split.abandoned"), within_s=90)
    host = cluster.server(whole)
    assert cluster.orders(host).splits == {}
    assert boundaries_now(cluster).bundles == (whole,)
    await cluster.settled(boundaries.bundles)


@story(**BY_HAND)
async def test_who_asked_is_told_at_once_that_the_order_was_taken_back(cluster: Cluster) -> None:
    boundaries, (topic,) = await placed(cluster, 1)
    publish(cluster, [topic])
    (whole,) = boundaries.bundles
    splitting = asyncio.ensure_future(split(cluster, whole, BY_TOPICS))
    await cluster.until(lambda: cluster.warnings("bundle.split.refused"))
    leader_term = cluster.leader_term
    await leader_term.recall(boundaries.namespace)
    with pytest.raises(Unavailable, match=r"was withdrawn \(the bundle no longer exists\)"):
        await asyncio.wait_for(splitting, 2.0)
    await cluster.until(lambda: all(whole not in a.cluster_state.owners for a in cluster.living))
    await place_all(cluster, boundaries)


@story(**BY_HAND)
async def test_what_cannot_be_cut_as_asked_is_refused_with_the_reason(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(2)
    asked = cluster.leader.app.bundle_requests
    with pytest.raises(Unfit, match="split algorithm 'halves'; expected one of"):
        await asked.split(NAMESPACE, "HOT", SplitOrder("halves"))
    with pytest.raises(Unfit, match="needs positions"):
        await asked.split(NAMESPACE, "HOT", SplitOrder("specified_positions_divide"))
    with pytest.raises(Missing, match="no broker reports a bundle"):
        await asked.split(NAMESPACE, "HOT", MIDDLE)
    with pytest.raises(Missing, match="0x00000000_0x40000000 not found in acme/orders"):
        await asked.split(NAMESPACE, "0x00000000_0x40000000", MIDDLE)
    with pytest.raises(Unfit, match="has no owner now"):
        await asked.split(NAMESPACE, boundaries.bundles[0].rpartition("/")[2], MIDDLE)
    follower = next(agent for agent in cluster.living if not agent.leads)
    with pytest.raises(LeaderElsewhere) as told:
        await follower.app.bundle_requests.split(NAMESPACE, "HOT", MIDDLE)
    assert told.value.sidecar_url == cluster.leader.url


def _never_opened(_term: Term) -> LeaderTerm:
    raise Disconnected("the term cannot begin")


@story(1, **BY_HAND)
async def test_an_elected_sidecar_not_ready_sends_nobody_to_itself(cluster: Cluster) -> None:
    await cluster.make_namespace(2)
    leading = cluster.leader.app.leading
    vars(leading)["_open_term"] = _never_opened
    await cluster.delete(znodes.LEADER)
    agent = cluster.living[0]
    await cluster.until(lambda: len(cluster.service.epochs) == 2 and agent.leads)
    app, text = agent.app, "0x00000000_0x80000000"
    namespaces = Namespaces(agent.context, app.leading, "standalone")
    for asked in (
        app.bundle_requests.split(NAMESPACE, text, MIDDLE),
        app.bundle_requests.merge(NAMESPACE, text, None),
        app.bundle_requests.unload(NAMESPACE, text, None),
        namespaces.delete(NAMESPACE, force=True),
    ):
        with pytest.raises(Unavailable, match=r"^no leader is at work$"):
            await asked


@story(**BY_HAND)
async def test_a_split_that_the_end_of_a_term_prevents_is_not_available(cluster: Cluster) -> None:
    boundaries = await served(cluster, 2)
    leader = cluster.leader
    leader.coordination.delay_commits_s = 1.0
    asked = asyncio.ensure_future(split(cluster, boundaries.bundles[0]))
    await asyncio.sleep(0.1)
    await cluster.write(znodes.EPOCH, b"somebody else")
    with pytest.raises(Unavailable, match="was not written: epoch 1 is over"):
        await asked
    leader.coordination.delay_commits_s = 0.0


@story(**BY_HAND)
async def test_the_hottest_and_the_largest_are_found_in_the_reports(cluster: Cluster) -> None:
    boundaries = await served(cluster, 2)
    many, busy = boundaries.bundles
    publish(cluster, topics_in(boundaries, many, 6))
    topic = topic_in(boundaries, busy)
    for _ in range(200):
        cluster.server(busy).broker.publish(topic, payload_bytes=10_000)
    cluster.server(busy).broker.publish(topics_in(boundaries, busy, 1)[0])
    await asyncio.sleep(2.5)
    asked = cluster.leader.app.bundle_requests
    await asked.split(NAMESPACE, "LARGEST", BY_TOPICS)
    assert many not in boundaries_now(cluster).bundles
    assert busy in boundaries_now(cluster).bundles
    await asked.split(NAMESPACE, "HOT", MIDDLE)
    assert busy not in boundaries_now(cluster).bundles
    await cluster.settled(boundaries_now(cluster).bundles)


@story(**BY_HAND)
async def test_a_whole_that_a_late_order_brings_back_is_replaced(cluster: Cluster) -> None:
    boundaries = await served(cluster, 2)
    whole = boundaries.bundles[0]
    host = cluster.server(whole)
    await split(cluster, whole)
    await cluster.settled(boundaries_now(cluster).bundles)
    # A leader whose reply about the parts is on its way refuses a move of what they replace.
    await cluster.until(lambda: whole not in cluster.leader_term.tasks.assigned)
    assert not _named(cluster, whole)
    named: list[bool] = []
    # The leader may take it back before the one that ordered it has the reply.
    cluster.service.watchers.append(lambda _path, _old, _new: named.append(_named(cluster, whole)))
    # Decided before the cut, written after it.
    await cluster.move(whole, next(other for other in cluster.hosts if other is not host))
    assert any(named)
    await cluster.until(lambda: not _named(cluster, whole), within_s=5.0)
    await cluster.settled(boundaries_now(cluster).bundles)


def _named(cluster: Cluster, bundle: BundleId) -> bool:
    ordered = [host for host in cluster.hosts if znodes.orders(host.name) in cluster.service.nodes]
    return any(bundle in cluster.orders(host).bundles for host in ordered)


POLICIES = znodes.local_policies(NAMESPACE)


async def _cut_on_its_way(cluster: Cluster, late_s: float) -> tuple[Host, Agent, BundleId]:
    """Return once one that does not lead has sent the commit of a split, ``late_s`` early."""
    boundaries = await served(cluster, 6)
    host = next(h for h in cluster.hosts if h is not cluster.leader.host and h.serving)
    agent = cluster.agent_of(host.name)
    whole = min(host.serving)
    topic = topic_in(boundaries, whole)
    host.broker.publish(topic)
    sent = asyncio.Event()

    def begin(operations: Sequence[Operation]) -> None:
        if any(operation.path == POLICIES for operation in operations):
            agent.coordination.before_commit = None
            agent.coordination.delay_commits_s = late_s
            sent.set()

    agent.coordination.before_commit = begin
    await cluster.leader_term.splits.order(whole, MIDDLE)
    await sent.wait()
    return host, agent, whole


async def _settled(cluster: Cluster, agent: Agent, whole: BundleId) -> None:
    agent.coordination.delay_commits_s = 0.0
    await cluster.until(lambda: whole not in boundaries_now(cluster).bundles)
    await cluster.settled_at_last(lambda: boundaries_now(cluster).bundles, within_s=60.0)
    assert agent.alive, agent.failure
    assert len(boundaries_now(cluster).bundles) == 7


@story(**BY_HAND)
async def test_a_bundle_moved_during_its_split_is_served_in_parts(cluster: Cluster) -> None:
    host, agent, whole = await _cut_on_its_way(cluster, 1.0)
    await cluster.move(whole, next(h for h in cluster.hosts if h is not host))
    await cluster.until(lambda: whole not in host.serving, within_s=0.9)
    await _settled(cluster, agent, whole)


@story(**BY_HAND)
async def test_the_parts_of_a_lost_broker_go_to_others(cluster: Cluster) -> None:
    host, agent, whole = await _cut_on_its_way(cluster, 9.0)
    host.freeze_broker()
    await _settled(cluster, agent, whole)
    host.thaw_broker()
    await cluster.until(lambda: agent.app.member.registered, within_s=60.0)


@story(**BY_HAND)
async def test_a_registration_deleted_during_a_split_is_made_again(cluster: Cluster) -> None:
    host, agent, whole = await _cut_on_its_way(cluster, 1.0)
    await cluster.delete(znodes.registration(host.name))
    await _settled(cluster, agent, whole)
    await cluster.until(lambda: host.name in cluster.leader.cluster_state.brokers)


@story(**BY_HAND)
async def test_a_split_whose_reply_is_lost_is_seen_after_orders(cluster: Cluster) -> None:
    _, agent, whole = await _cut_on_its_way(cluster, 1.0)

    def cut_off(path: str, _was: object, _now: object) -> None:
        if path == POLICIES and agent.coordination.in_touch:
            agent.coordination.suspend()

    cluster.service.watchers.append(cut_off)
    await cluster.until(lambda: whole not in boundaries_now(cluster).bundles)
    cluster.service.watchers.remove(cut_off)
    parts = set(boundaries_now(cluster).bundles)
    await cluster.until(lambda: whole not in cluster.orders(agent.host).bundles)
    assert parts & cluster.orders(agent.host).bundles
    agent.coordination.reconnect()
    await _settled(cluster, agent, whole)

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from stories import (
    BY_HAND,
    boundaries_now,
    each_loss,
    follower,
    looked_up,
    other_than,
    place_all,
    placed,
    publish,
    served,
    start_hosts,
    story,
    topics_in,
)

from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace, range_of
from loadmanager.core.orders import Orders, SplitOrder, encode_orders
from loadmanager.core.splitting.merging import Merge
from loadmanager.core.wire.shared_forms import range_text
from loadmanager.ports.coordination import Operation, SetData
from loadmanager.ports.lookup import (
    Conflict,
    LeaderElsewhere,
    LookupRefused,
    Missing,
    Unavailable,
    Unfit,
)
from loadmanager.reference_broker.changes import Accepted
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, order, topic_in
from tests.testbed.memory.link import LossPlace

MOST_COMMITS = 8
POLICIES = znodes.local_policies(NAMESPACE)


def orders_left(cluster: Cluster) -> list[BundleId]:
    return [bundle for host in cluster.hosts for bundle in cluster.orders(host).splits]


async def merge(cluster: Cluster, lower: BundleId, upper: BundleId | None = None) -> BundleId:
    """Merge a bundle with another one, or with the next."""
    requests, other = cluster.leader.app.bundle_requests, range_text(upper) if upper else None
    return await requests.merge(NAMESPACE, range_text(lower), other)


async def on_different_brokers(cluster: Cluster, bundles: int = 3) -> Boundaries:
    boundaries = await served(cluster, bundles)
    lower, upper = boundaries.bundles[:2]
    if cluster.server(lower) is cluster.server(upper):
        target = other_than(cluster, cluster.server(lower))
        await cluster.move_surely(upper, target)
        await cluster.until(lambda: cluster.servers(upper) == [target])
    return boundaries


async def one_or_two(cluster: Cluster, before: Boundaries) -> Boundaries:
    await cluster.until(lambda: not orders_left(cluster), within_s=120)
    now = boundaries_now(cluster)
    whole = Merge(*before.bundles[:2]).whole
    assert now.bundles in {before.bundles, (whole, *before.bundles[2:])}
    asking = cluster.living[0]
    await asyncio.gather(*(asking.look_up(topic_in(now, bundle)) for bundle in now.bundles))
    await cluster.settled(now.bundles, within_s=60)
    return now


@story(**BY_HAND)
async def test_two_bundles_become_one_under_a_greater_token(cluster: Cluster) -> None:
    boundaries = await on_different_brokers(cluster)
    lower, upper, last = boundaries.bundles
    tokens = [cluster.server(half).serving[half] for half in (lower, upper)]
    whole = await merge(cluster, lower)
    assert boundaries_now(cluster).bundles == (whole, last)
    assert range_of(whole) == (range_of(lower)[0], range_of(upper)[1])
    await cluster.settled(boundaries_now(cluster).bundles)
    host = cluster.server(whole)
    assert host.serving[whole] > max(tokens)
    assert {lower, upper}.isdisjoint(host.serving)
    await cluster.until(lambda: whole in cluster.orders(host).bundles)
    assert cluster.orders(host).splits == {}
    locks = [path for path in cluster.service.dump() if path.startswith(f"{znodes.LOCKS}/")]
    assert not {znodes.lock(half) for half in (lower, upper)} & set(locks)


async def merge_once_there(cluster: Cluster, lower: BundleId, upper: BundleId) -> BundleId:
    """Merge two bundles as soon as the leader has seen both arrive."""
    for _ in range(100):
        try:
            return await merge(cluster, lower, upper)
        except Conflict:
            await asyncio.sleep(0.01)
    return await merge(cluster, lower, upper)


@story(**BY_HAND)
async def test_lookups_are_answered_during_merges_and_splits(cluster: Cluster) -> None:
    boundaries = await on_different_brokers(cluster, 4)
    topics = [topic_in(boundaries, bundle) for bundle in boundaries.bundles]
    split = cluster.leader.app.bundle_requests.split
    async with looked_up(cluster, topics):
        whole = await merge(cluster, *boundaries.bundles[:2])
        await cluster.settled(boundaries_now(cluster).bundles)
        await split(NAMESPACE, range_text(whole), SplitOrder("range_equally_divide"))
        await cluster.settled(boundaries_now(cluster).bundles)
        await merge_once_there(cluster, *boundaries_now(cluster).bundles[:2])
    await cluster.settled(boundaries_now(cluster).bundles)


@story(sidecars=1, **BY_HAND)
async def test_a_client_that_asks_again_publishes_soon_after(cluster: Cluster) -> None:
    boundaries, topics = await placed(cluster, 2)
    (host,) = cluster.hosts
    merging = asyncio.ensure_future(merge(cluster, *boundaries.bundles))
    refused = 0
    while not merging.done():
        for topic in topics:
            refused += not isinstance(host.broker.publish(topic), Accepted)
        await asyncio.sleep(0.001)
    await merging
    await cluster.settled(boundaries_now(cluster).bundles)
    for topic in topics:
        await cluster.living[0].look_up(topic)
        assert isinstance(host.broker.publish(topic), Accepted)
    assert refused < 1000


@story(**BY_HAND)
async def test_what_cannot_be_one_is_refused_with_the_reason(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(4)
    first, second, third, last = boundaries.bundles
    requests = cluster.leader.app.bundle_requests
    with pytest.raises(Unfit, match="no broker owns"):
        await merge(cluster, first, second)
    await place_all(cluster, boundaries)
    for lower, upper in ((first, third), (last, first), (first, first)):
        with pytest.raises(Unfit, match="are not adjacent"):
            await merge(cluster, lower, upper)
    with pytest.raises(Unfit, match="is the last bundle"):
        await merge(cluster, last)
    with pytest.raises(Missing, match="not found"):
        await requests.merge(NAMESPACE, "0x00000000_0x30000000", None)
    with pytest.raises(LeaderElsewhere):
        await follower(cluster, serving=False).app.bundle_requests.merge(
            NAMESPACE, range_text(first), None
        )
    await cluster.settled(boundaries.bundles)
    single = await cluster.make_namespace(1, Namespace("acme/single"))
    await cluster.leader.look_up(topic_in(single, single.bundles[0]))
    with pytest.raises(Unfit, match="a single bundle"):
        await requests.merge(single.namespace, *2 * [range_text(single.bundles[0])])


@story(split={"max_topics": 5, "enabled": True})
async def test_what_would_be_cut_again_at_once_is_not_merged(cluster: Cluster) -> None:
    boundaries = await served(cluster, 2)
    for half in boundaries.bundles:
        publish(cluster, topics_in(boundaries, half, 3))
    await asyncio.sleep(2.5)
    with pytest.raises(Unfit, match="cut again at once: it has 6 topics"):
        await merge(cluster, *boundaries.bundles)


@story(**BY_HAND)
async def test_a_half_with_something_under_way_is_left_to_that(cluster: Cluster) -> None:
    boundaries = await on_different_brokers(cluster)
    lower, upper, last = boundaries.bundles
    merging = asyncio.ensure_future(merge(cluster, lower, upper))
    await cluster.until(lambda: any(cluster.orders(host).splits for host in cluster.hosts))
    with pytest.raises(Conflict):
        await merge(cluster, upper, last)
    with pytest.raises((Unfit, Missing)):
        await cluster.leader.app.bundle_requests.split(
            NAMESPACE, range_text(lower), SplitOrder("range_equally_divide")
        )
    await merging
    await cluster.settled(boundaries_now(cluster).bundles)


@story(sidecars=2, **BY_HAND)
async def test_an_owner_that_may_not_have_both_is_named_with_the_reason(cluster: Cluster) -> None:
    boundaries = await on_different_brokers(cluster)
    first, second = cluster.hosts
    drains, brokers = cluster.leader.app.drains, cluster.leader.cluster_state.brokers
    await drains.mark(first.name, by="test", reason="")
    await cluster.until(lambda: not first.serving and len(second.serving) == 3)
    await drains.mark(second.name, by="test", reason="")
    await cluster.until(lambda: brokers[second.name].registration.draining)
    with pytest.raises(Unfit, match=rf"may have both \({second.name}: draining\)"):
        await merge(cluster, *boundaries.bundles[:2])


@story(**BY_HAND)
async def test_a_half_that_is_sent_elsewhere_ends_the_merge(cluster: Cluster) -> None:
    boundaries = await on_different_brokers(cluster)
    lower, upper, _ = boundaries.bundles
    third = other_than(cluster, cluster.server(lower), cluster.server(upper))
    merging = asyncio.ensure_future(merge(cluster, lower, upper))
    await cluster.until(lambda: any(cluster.orders(host).splits for host in cluster.hosts))
    leader_term = cluster.leader_term
    await order(leader_term, {lower: third.name})
    with pytest.raises(Unavailable, match="was withdrawn: a half was moved"):
        await merging
    await cluster.until(lambda: cluster.servers(lower) == [third])
    await cluster.settled(boundaries.bundles)
    assert orders_left(cluster) == []


@story(**BY_HAND)
async def test_a_namespace_deleted_in_the_middle_is_let_go(cluster: Cluster) -> None:
    boundaries = await on_different_brokers(cluster)
    merging = asyncio.ensure_future(merge(cluster, *boundaries.bundles[:2]))
    await cluster.until(lambda: any(cluster.orders(host).splits for host in cluster.hosts))
    await cluster.delete(POLICIES)
    with pytest.raises(LookupRefused):
        await merging
    await cluster.until(lambda: not any(host.serving for host in cluster.hosts), within_s=90)
    await cluster.until(
        lambda: not any(cluster.orders(host).bundles for host in cluster.hosts), within_s=90
    )


# At each of their writes leaders and sidecars die below.
@pytest.mark.parametrize(
    ("victim", "after_s"),
    [("leader", 0.3), ("sidecar", 0.3), *(("broker", at_s) for at_s in (0.02, 0.3, 0.6, 1.0))],
)
@story(**BY_HAND)
async def test_one_dies_in_the_middle(cluster: Cluster, victim: str, after_s: float) -> None:
    boundaries = await on_different_brokers(cluster)
    lower, upper, _ = boundaries.bundles
    merging = asyncio.ensure_future(merge(cluster, lower, upper))
    await asyncio.sleep(after_s)
    if victim == "leader":
        await cluster.leader.kill()
    else:
        host = cluster.server(lower) if cluster.servers(lower) else cluster.hosts[0]
        if victim == "broker":
            host.kill_broker()
        await cluster.agent_of(host.name).kill()
    await asyncio.gather(merging, return_exceptions=True)
    await one_or_two(cluster, boundaries)


WRITES = 24


async def _short_story(cluster: Cluster) -> None:
    await start_hosts(cluster, 2)
    boundaries = await on_different_brokers(cluster)
    try:
        await merge(cluster, *boundaries.bundles[:2])
    except LookupRefused:  # The one who asked is told that its order may not be written.
        await asyncio.sleep(90.0)
    await cluster.settled(boundaries_now(cluster).bundles)
    await asyncio.sleep(1.0)


@story(0, **BY_HAND)
async def test_the_short_story_has_as_many_writes_as_are_lost_here(cluster: Cluster) -> None:
    await _short_story(cluster)
    assert WRITES - 4 <= cluster.losses.writes <= WRITES


@pytest.mark.parametrize(("number", "place"), each_loss(WRITES))
@story(0, **BY_HAND)
async def test_lost_messages_halve_no_merge(
    cluster: Cluster, number: int, place: LossPlace
) -> None:
    cluster.losses.place, cluster.losses.lost = place, frozenset({number})
    await _short_story(cluster)


@dataclass
class Interruption:
    """Freezes or kills the sidecar that makes the commit of this number, as it is on its way."""

    number: int
    kills: bool
    made: int = 0
    victim: Agent | None = None
    dying: asyncio.Future[None] | None = None

    def lie_in_wait(self, cluster: Cluster) -> None:
        for agent in cluster.living:
            agent.coordination.before_commit = lambda _, agent=agent: self._commit(agent)

    def _commit(self, agent: Agent) -> None:
        self.made += 1
        if self.made != self.number:
            return
        self.victim = agent
        if self.kills:
            self.dying = asyncio.ensure_future(agent.kill())
        else:
            agent.coordination.freeze_at_next_commit = lambda: None


@pytest.mark.parametrize("kills", [False, True], ids=["frozen", "killed"])
@pytest.mark.parametrize("number", range(1, MOST_COMMITS + 1))
@story(**BY_HAND)
async def test_a_writer_stops_in_each_write(cluster: Cluster, number: int, kills: bool) -> None:
    boundaries = await on_different_brokers(cluster, 2)
    interruption = Interruption(number, kills)
    interruption.lie_in_wait(cluster)
    merging = asyncio.ensure_future(merge(cluster, boundaries.bundles[0]))
    await cluster.until(lambda: interruption.victim is not None, within_s=30)
    await asyncio.sleep(2 * SESSION_S)
    victim = interruption.victim
    assert victim is not None
    if kills:
        cluster.start(victim.host)
    else:
        victim.coordination.thaw()
    await asyncio.gather(merging, return_exceptions=True)
    await one_or_two(cluster, boundaries)


@story(**BY_HAND)
async def test_boundaries_written_meanwhile_let_a_merge_try_again(cluster: Cluster) -> None:
    boundaries = await on_different_brokers(cluster, 2)
    written: list[int] = []
    operator = await cluster.operator()

    def write_first(operations: Sequence[Operation]) -> None:
        if not written and any(
            isinstance(one, SetData) and one.path == POLICIES for one in operations
        ):
            node = cluster.service.dump()[POLICIES]
            written.append(node.stat.version)
            writing.append(asyncio.ensure_future(operator.set(POLICIES, node.data)))

    writing: list[asyncio.Future[Any]] = []
    for agent in cluster.living:
        agent.coordination.before_commit = write_first
        agent.coordination.delay_commits_s = 0.1
    whole = await merge(cluster, boundaries.bundles[0])
    for agent in cluster.living:
        agent.coordination.delay_commits_s = 0.0
    assert len(writing) == 1
    assert cluster.warnings("bundle.merge.rejected")
    assert (await one_or_two(cluster, boundaries)).bundles == (whole,)


@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("rival", ["split", "unload", "second sidecar", "hand"])
@story(**BY_HAND)
async def test_rivals_of_a_merge_leave_one_or_two_bundles_and_no_order(
    cluster: Cluster, rival: str, after_s: float
) -> None:
    boundaries = await on_different_brokers(cluster, 2)
    lower, _ = boundaries.bundles
    app = cluster.leader.app
    merging = asyncio.ensure_future(merge(cluster, lower))
    await asyncio.sleep(after_s)
    try:
        if rival == "split":
            order = SplitOrder("specified_positions_divide", (0x20000000,))
            await app.bundle_requests.split(NAMESPACE, range_text(lower), order)
        elif rival == "unload":
            await app.bundle_requests.unload(NAMESPACE, None, None)
        elif rival == "second sidecar":
            cluster.start(cluster.server(boundaries_now(cluster).bundles[0]))
        else:
            holder = next(host for host in cluster.hosts if host.serving)
            nothing = encode_orders(Orders(cluster.orders(holder).epoch))
            await cluster.write(znodes.orders(holder.name), nothing)
    except (LookupRefused, AssertionError):
        assert not merging.cancelled()
    await asyncio.gather(merging, return_exceptions=True)
    await cluster.until(lambda: not orders_left(cluster), within_s=120)
    now = boundaries_now(cluster)
    assert len(now.bundles) <= 3
    await asyncio.gather(*(cluster.leader.look_up(topic_in(now, b)) for b in now.bundles))
    await cluster.settled(now.bundles, within_s=60)


@story(sidecars=2, **BY_HAND)
async def test_orders_of_a_newer_kind_are_refused_by_name_and_given_up(cluster: Cluster) -> None:
    """As a merge is by a sidecar that does not know it: nothing is touched."""
    boundaries = await on_different_brokers(cluster, 2)
    lower, _ = boundaries.bundles
    await cluster.leader_term.splits.order(lower, SplitOrder("fold_in_three", (1,)))
    await cluster.until(lambda: cluster.warnings("bundle.split.refused"))
    assert "algorithm 'fold_in_three'" in str(cluster.warnings("bundle.split.refused"))
    await cluster.until(lambda: not orders_left(cluster), within_s=120)
    await cluster.settled(boundaries.bundles)

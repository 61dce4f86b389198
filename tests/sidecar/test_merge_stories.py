"""Two bundles made one while clients look topics up and publish, whatever dies meanwhile."""

import asyncio
from itertools import islice
from typing import Any

import pytest
from stories import place_all, story

from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import position
from loadmanager.core.ids import BundleId, TopicName, parse_topic, range_of
from loadmanager.core.orders import SplitOrder
from loadmanager.core.splitting.merging import Merge
from loadmanager.core.wire.policies import decode_boundaries
from loadmanager.ports.administration import BundleUnknown, Conflict, MergeRefused, SplitRefused
from loadmanager.ports.leading import LeaderElsewhere
from loadmanager.ports.lookup import LookupRefused, Unavailable
from loadmanager.reference_broker.changes import Accepted
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import (
    NAMESPACE,
    Cluster,
    make_config,
    order,
    play,
    topic_in,
)
from tests.testbed.faults.wires import Losses, LossPlace

BY_HAND: dict[str, Any] = {"split": {"enabled": False}}


def boundaries_now(cluster: Cluster) -> Boundaries:
    """Return the namespace's bundles as they stand in the service."""
    path = znodes.local_policies(NAMESPACE)
    node = cluster.service.dump()[path]
    return decode_boundaries(path, NAMESPACE, node.data, node.stat.version)


def topics_in(boundaries: Boundaries, bundle: BundleId, count: int) -> list[TopicName]:
    """Return different topics that fall in ``bundle``."""
    numbered = (parse_topic(f"persistent://{NAMESPACE}/t-{number}") for number in range(10_000))
    found = (one for one in numbered if boundaries.at(position(one, "crc32")) == bundle)
    return list(islice(found, count))


def text(bundle: BundleId) -> str:
    """Return the range of a bundle as people write it."""
    return bundle.rpartition("/")[2]


def orders_left(cluster: Cluster) -> list[BundleId]:
    """Return what is ordered to be cut or merged anywhere."""
    return [bundle for host in cluster.hosts for bundle in cluster.orders(host).splits]


async def merge(cluster: Cluster, lower: BundleId, upper: BundleId) -> BundleId:
    """Ask the leader to merge two bundles, and wait until it says that it is done."""
    requests = cluster.leader.app.merge_requests
    return await requests.merge(NAMESPACE, text(lower), text(upper))


async def on_different_brokers(cluster: Cluster, bundles: int = 3) -> Boundaries:
    """Make a namespace whose first two bundles are on two brokers."""
    boundaries = await cluster.make_namespace(bundles)
    await place_all(cluster, boundaries)
    lower, upper = boundaries.bundles[:2]
    if cluster.server(lower) is cluster.server(upper):
        target = next(host for host in cluster.hosts if host is not cluster.server(lower))
        await cluster.move_surely(upper, target)
        await cluster.until(lambda: cluster.servers(upper) == [target])
    return boundaries


@story(**BY_HAND)
async def test_two_bundles_of_two_brokers_become_one_under_a_greater_token(
    cluster: Cluster,
) -> None:
    boundaries = await on_different_brokers(cluster)
    lower, upper, last = boundaries.bundles
    tokens = [cluster.server(half).serving[half] for half in (lower, upper)]
    whole = await merge(cluster, lower, upper)
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
async def test_the_next_one_is_meant_when_no_neighbour_is_named(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(4)
    await place_all(cluster, boundaries)
    requests = cluster.leader.app.merge_requests
    whole = await requests.merge(NAMESPACE, text(boundaries.bundles[1]), None)
    assert whole == Merge(*boundaries.bundles[1:3]).whole
    await cluster.settled(boundaries_now(cluster).bundles)


@story(**BY_HAND)
async def test_every_lookup_is_answered_while_bundles_are_merged_and_cut_again(
    cluster: Cluster,
) -> None:
    boundaries = await on_different_brokers(cluster, 4)
    topics = [topic_in(boundaries, bundle) for bundle in boundaries.bundles]
    done = asyncio.Event()

    async def keep_looking_up(agent: Agent) -> int:
        answered = 0
        while not done.is_set():
            for topic in topics:
                owner = await agent.look_up(topic)
                low, high = range_of(owner.bundle)
                assert low <= position(topic, "crc32") < high
                answered += 1
            await asyncio.sleep(0.003)
        return answered

    async with asyncio.TaskGroup() as tasks:
        lookers = [tasks.create_task(keep_looking_up(agent)) for agent in cluster.living]
        whole = await merge(cluster, *boundaries.bundles[:2])
        split = cluster.leader.app.split_requests.split
        await cluster.settled(boundaries_now(cluster).bundles)
        await split(NAMESPACE, text(whole), SplitOrder("range_equally_divide"))
        await cluster.settled(boundaries_now(cluster).bundles)
        await merge_once_there(cluster, *boundaries_now(cluster).bundles[:2])
        done.set()
    assert all(looker.result() > 100 for looker in lookers)
    await cluster.settled(boundaries_now(cluster).bundles)


@story(sidecars=1, **BY_HAND)
async def test_a_client_that_asks_again_publishes_soon_after(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(2)
    topics = await place_all(cluster, boundaries)
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
    requests = cluster.leader.app.merge_requests
    with pytest.raises(MergeRefused, match="no broker owns"):
        await merge(cluster, first, second)
    await place_all(cluster, boundaries)
    with pytest.raises(MergeRefused, match="are not adjacent"):
        await merge(cluster, first, third)
    with pytest.raises(MergeRefused, match="are not adjacent"):
        await merge(cluster, last, first)
    with pytest.raises(MergeRefused, match="are not adjacent"):
        await merge(cluster, first, first)
    with pytest.raises(MergeRefused, match="is the last bundle"):
        await requests.merge(NAMESPACE, text(last), None)
    with pytest.raises(BundleUnknown, match="not found"):
        await requests.merge(NAMESPACE, "0x00000000_0x30000000", None)
    follower = next(agent for agent in cluster.living if not agent.leads)
    with pytest.raises(LeaderElsewhere):
        await follower.app.merge_requests.merge(NAMESPACE, text(first), None)
    await cluster.settled(boundaries.bundles)


@story(**BY_HAND)
async def test_a_single_bundle_has_no_neighbour(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(1)
    await place_all(cluster, boundaries)
    (only,) = boundaries.bundles
    with pytest.raises(MergeRefused, match="a single bundle"):
        await merge(cluster, only, only)


@story(split={"max_topics": 5, "enabled": True})
async def test_what_would_be_cut_again_at_once_is_not_merged(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(2)
    await place_all(cluster, boundaries)
    for half in boundaries.bundles:
        broker = cluster.server(half).broker
        for topic in topics_in(boundaries, half, 3):
            broker.publish(topic)
    await asyncio.sleep(2.5)
    with pytest.raises(MergeRefused, match="cut again at once: it has 6 topics"):
        await merge(cluster, *boundaries.bundles)


@story(**BY_HAND)
async def test_a_half_with_something_under_way_is_left_to_that(cluster: Cluster) -> None:
    boundaries = await on_different_brokers(cluster)
    lower, upper, last = boundaries.bundles
    merging = asyncio.ensure_future(merge(cluster, lower, upper))
    await cluster.until(lambda: any(cluster.orders(host).splits for host in cluster.hosts))
    with pytest.raises(Conflict):
        await merge(cluster, upper, last)
    with pytest.raises((SplitRefused, BundleUnknown)):
        await cluster.leader.app.split_requests.split(
            NAMESPACE, text(lower), SplitOrder("range_equally_divide")
        )
    await merging
    await cluster.settled(boundaries_now(cluster).bundles)


@story(sidecars=2, **BY_HAND)
async def test_an_owner_that_may_not_have_both_is_named_with_the_reason(cluster: Cluster) -> None:
    boundaries = await on_different_brokers(cluster)
    first, second = cluster.hosts
    drains, brokers = cluster.leader.app.drain_requests, cluster.leader.cluster_state.brokers
    await drains.mark(first.name, by="test", reason="")
    await cluster.until(lambda: not first.serving and len(second.serving) == 3)
    await drains.mark(second.name, by="test", reason="")
    await cluster.until(lambda: brokers[second.name].registration.draining)
    with pytest.raises(MergeRefused, match=rf"may have both \({second.name}: draining\)"):
        await merge(cluster, *boundaries.bundles[:2])


@story(**BY_HAND)
async def test_a_half_that_is_sent_elsewhere_ends_the_merge(cluster: Cluster) -> None:
    boundaries = await on_different_brokers(cluster)
    lower, upper, _ = boundaries.bundles
    third = next(
        h for h in cluster.hosts if h not in {cluster.server(lower), cluster.server(upper)}
    )
    merging = asyncio.ensure_future(merge(cluster, lower, upper))
    await cluster.until(lambda: any(cluster.orders(host).splits for host in cluster.hosts))
    leader_term = cluster.leader.app.leading.leader_term
    assert leader_term is not None
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
    operator = await cluster.operator()
    await operator.delete(znodes.local_policies(NAMESPACE))
    with pytest.raises(LookupRefused):
        await merging
    await cluster.until(lambda: not any(host.serving for host in cluster.hosts), within_s=90)
    await cluster.until(
        lambda: not any(cluster.orders(host).bundles for host in cluster.hosts), within_s=90
    )


@pytest.mark.parametrize("after_s", [0.02, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("victim", ["leader", "agent", "broker"])
def test_one_dies_in_the_middle_and_all_is_served_by_one(victim: str, after_s: float) -> None:
    async def tell(cluster: Cluster) -> None:
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
        await cluster.until(lambda: not orders_left(cluster), within_s=120)
        now = boundaries_now(cluster)
        assert now.bundles in {boundaries.bundles, (Merge(lower, upper).whole, now.bundles[-1])}
        await asyncio.gather(*(cluster.living[0].look_up(topic_in(now, b)) for b in now.bundles))
        await cluster.settled(now.bundles, within_s=60)

    play(tell, 3, config=make_config(**BY_HAND))


async def _short_story(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.start(cluster.add_host())
    await cluster.ready()
    boundaries = await on_different_brokers(cluster)
    try:
        await merge(cluster, *boundaries.bundles[:2])
    except LookupRefused:  # The one who asked is told that its order may not be written.
        await asyncio.sleep(90.0)
    await cluster.settled(boundaries_now(cluster).bundles)


def _play(losses: Losses) -> int:
    async def tell(cluster: Cluster) -> None:
        cluster.losses = losses
        await _short_story(cluster)
        await asyncio.sleep(1.0)

    play(tell, sidecars=0, config=make_config(**BY_HAND))
    return losses.writes


WRITES = 24


def test_the_short_story_has_as_many_writes_as_are_lost_here() -> None:
    assert WRITES - 4 <= _play(Losses()) <= WRITES


@pytest.mark.parametrize("place", list(LossPlace))
@pytest.mark.parametrize("number", range(WRITES))
def test_no_single_lost_message_leaves_a_merge_half_done(number: int, place: LossPlace) -> None:
    _play(Losses(place=place, lost=frozenset({number})))

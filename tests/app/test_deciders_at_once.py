"""Several deciders at the same moment: what one decided earlier never undoes what another did."""

import asyncio
from collections.abc import Sequence
from typing import Any

from history_sinks import Archive
from stories import place_all, story

from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import TopicName
from loadmanager.core.orders import decode_orders
from loadmanager.core.wire import encode_boundaries
from loadmanager.faults.agent import Agent
from loadmanager.faults.cluster import NAMESPACE, Cluster
from loadmanager.ports import Node, Operation, SetData

BY_HAND: dict[str, Any] = {"split": {"enabled": False}}
LATE_S = 1.0


def _unexpected_errors(agent: Agent) -> float:
    """Return how many errors that nobody expected this process counted."""
    samples = (sample for metric in agent.registry.collect() for sample in metric.samples)
    return sum(one.value for one in samples if one.name == "loadmanager_unexpected_errors_total")


@story(checked=False, **BY_HAND)  # A namespace deleted by hand is not let go of first.
async def test_a_bundle_recalled_while_boundaries_are_read_disturbs_no_tick(
    cluster: Cluster,
) -> None:
    await place_all(cluster, await cluster.make_namespace(2))
    operator, leader = await cluster.operator(), cluster.leader
    again = encode_boundaries(Boundaries.even(NAMESPACE, 8))
    made = False

    def make_again(operations: Sequence[Operation]) -> None:
        # The leader found the namespace deleted, and is about to recall its bundles.
        nonlocal made
        recalls = any(
            isinstance(one, SetData)
            and one.path.startswith(znodes.ORDERS)
            and not decode_orders(one.path, one.data).bundles
            for one in operations
        )
        if recalls and not made:
            made = True
            created = operator.create(znodes.local_policies(NAMESPACE), again)
            asyncio.ensure_future(created).set_name("the namespace is made again")

    leader.coordination.before_commit = make_again
    leader.coordination.delay_replies(LATE_S)
    await operator.delete(znodes.local_policies(NAMESPACE))
    await cluster.until(lambda: made)
    await asyncio.sleep(10.0)
    assert leader.failure is None
    assert _unexpected_errors(leader) == 0
    assert cluster.service.epochs == [1]


@story(**BY_HAND)
async def test_an_unload_is_not_undone_by_a_lost_order_that_is_repeated(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(2)
    bundle = boundaries.bundles[0]
    await cluster.hold_lock(bundle)  # So it arrives nowhere, and its order counts as lost.
    first, second, _ = cluster.hosts
    leader, desk = cluster.leader, cluster.desk
    await desk.order({bundle: first.name})
    await asyncio.sleep(0.4)
    unloading: list[asyncio.Future[Any]] = []

    def unload(path: str, _node: Node | None) -> None:
        # A round compares the orders with the book, and repeats next what is lost.
        if path == znodes.orders(first.name) and not unloading:
            asked = desk.order_unload({bundle: first.name}, second.name)
            unloading.append(asyncio.ensure_future(asked))

    leader.coordination.delay_replies(0.1)
    leader.coordination.after_read = unload
    await cluster.until(lambda: unloading and unloading[0].done())
    assert unloading[0].result() == {}
    await asyncio.sleep(5.0)
    assert bundle in cluster.orders(second).bundles
    assert bundle not in cluster.orders(first).bundles


@story(
    0,
    shedding={
        "strategy": "ThresholdShedder",
        "grace_period_s": 60.0,
        "settings": {"loadBalancerBundleUnloadMinThroughputThreshold": 0.0},
    },
    **BY_HAND,
)
async def test_history_learns_of_a_round_whose_orders_stand_though_their_reply_was_lost(
    cluster: Cluster,
) -> None:
    archive = Archive()
    cluster.build = archive.kept
    for _ in range(3):
        cluster.start(cluster.add_host())
    await cluster.ready()
    boundaries = await cluster.make_namespace(12)
    topics = await place_all(cluster, boundaries)
    leader, hot = cluster.leader, cluster.hosts[0]

    def lose_reply(operations: Sequence[Operation]) -> None:
        if any(one.path == znodes.orders(hot.name) for one in operations):
            leader.coordination.before_commit = None
            leader.coordination.lose_next_reply()

    leader.coordination.before_commit = lose_reply
    before = {bundle: cluster.server(bundle).name for bundle in boundaries.bundles}
    hot.cpu_fraction = 0.95
    publishing = asyncio.ensure_future(_publish_for_ever(cluster, topics))
    await cluster.until(lambda: cluster.warnings("round.orders.failed"), within_s=60.0)
    hot.cpu_fraction = 0.1
    await asyncio.sleep(20.0)
    publishing.cancel()
    moved = {b for b in boundaries.bundles if cluster.server(b).name != before[b]}
    assert moved
    told = {line["bundle"] for line in archive.lines("hand_over") if line["source"] == hot.name}
    last = {line["bundle"]: line["outcome"] for line in archive.lines("move")}
    assert (moved - told, {b for b in moved if last[b] == "failed"}) == (set(), set())


async def _publish_for_ever(cluster: Cluster, topics: list[TopicName]) -> None:
    while True:
        for topic in topics:
            for host in cluster.hosts:
                host.broker.publish(topic, payload_bytes=5000)
        await asyncio.sleep(0.25)

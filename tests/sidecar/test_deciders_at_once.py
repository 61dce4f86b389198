"""Several deciders at the same moment: what one decided earlier never undoes what another did."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from history_sinks import Archive
from stories import place_all, publish_for_ever, served, story

from loadmanager.core import znodes
from loadmanager.core.bundle_task import (
    AskedBy,
    BundleTask,
    Dispatched,
    TaskEvent,
    TaskKind,
    TaskState,
)
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId
from loadmanager.core.orders import decode_orders
from loadmanager.core.plan import Cause
from loadmanager.core.wire.policies import encode_boundaries
from loadmanager.ports.coordination import Node, Operation, SetData
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, order

BY_HAND: dict[str, Any] = {"split": {"enabled": False}}
LATE_S = 1.0


def _unexpected_errors(agent: Agent) -> float:
    samples = (sample for metric in agent.registry.collect() for sample in metric.samples)
    return sum(one.value for one in samples if one.name == "loadmanager_unexpected_errors_total")


@story(checked=False, **BY_HAND)  # A namespace deleted by hand is not let go of first.
async def test_a_bundle_recalled_as_boundaries_are_read_disturbs_no_tick(cluster: Cluster) -> None:
    await served(cluster, 2)
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
    leader, leader_term = cluster.leader, cluster.leader_term
    await order(leader_term, {bundle: first.name})
    await asyncio.sleep(0.4)
    unloading: list[asyncio.Future[Any]] = []

    def unload(path: str, _node: Node | None) -> None:
        # A round compares the orders with the book, and repeats next what is lost.
        if path == znodes.orders(first.name) and not unloading:
            asked = leader_term.order_unload({bundle: first.name}, second.name)
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
async def test_history_learns_of_orders_whose_reply_was_lost(cluster: Cluster) -> None:
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
    publishing = asyncio.ensure_future(publish_for_ever(cluster, topics, 5000))
    await cluster.until(lambda: cluster.warnings("round.orders.failed"), within_s=60.0)
    hot.cpu_fraction = 0.1
    await asyncio.sleep(20.0)
    publishing.cancel()
    moved = {b for b in boundaries.bundles if cluster.server(b).name != before[b]}
    assert moved
    told = {line["bundle"] for line in archive.lines("hand_over") if line["source"] == hot.name}
    last = {line["bundle"]: line["outcome"] for line in archive.lines("move")}
    assert (moved - told, {b for b in moved if last[b] == "failed"}) == (set(), set())


@story(2, **BY_HAND)
async def test_an_error_of_one_decider_leaves_no_other_without_an_answer(cluster: Cluster) -> None:
    boundaries = await served(cluster, 2)
    tasks, leader = cluster.leader_term.tasks, cluster.leader

    def fail(found: Dispatched) -> None:
        raise RuntimeError(f"never seen before: {found.ordered}")

    def moved(bundle: BundleId) -> BundleTask:
        source = cluster.server(bundle)
        return BundleTask(
            kind=TaskKind.MOVE,
            bundles=(bundle,),
            source=source.name,
            target=next(host.name for host in cluster.hosts if host is not source),
            cause=Cause.REQUESTED,
            asked_by=AskedBy.PEOPLE,
        )

    first, second = (moved(bundle) for bundle in boundaries.bundles)
    answers = await asyncio.gather(tasks.dispatch([first], known=fail), tasks.dispatch([second]))
    assert [list(one.ordered) for one in answers] == [[b] for b in boundaries.bundles]
    assert _unexpected_errors(leader) == 1
    await cluster.settled(boundaries.bundles)


@story(2, **BY_HAND)
async def test_a_task_that_cannot_go_on_is_counted_and_opened_anew(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(2)
    bundle, leader_term, target = boundaries.bundles[0], cluster.leader_term, cluster.hosts[0].name
    await cluster.hold_lock(bundle)  # So its task does not end.
    await order(leader_term, {bundle: target})
    task = leader_term.tasks.tasks.of(bundle)
    assert task is not None
    # What no code does: the task of a bundle is another one than what is followed.
    vars(leader_term.tasks.tasks)["_of"][bundle] = replace(
        task, state=TaskState.UNCONFIRMED, source=None
    )
    for one in leader_term.tasks.tasks:
        leader_term.tasks._advance(one, TaskEvent.DONE)
    assert _unexpected_errors(cluster.leader) == 1
    assert leader_term.tasks.tasks.of(bundle) is None
    leader_term.tasks.observe()
    again = leader_term.tasks.tasks.of(bundle)
    assert again is not None
    assert (again.target, again.asked_by) == (target, AskedBy.RECONCILIATION)

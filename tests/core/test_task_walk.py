"""Live tasks and their arbitration, walked through everything that can happen to two bundles.

Placements and moves among three brokers; with splits and merges as well, the first few
hundred states among two.
From each state that can be reached each decider proposes what it can, alone or at the same
moment as others; writes succeed, are refused or lose their reply; locks are taken, released
and lost; tasks are done, repeated or given up, and terms end.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import pytest
from task_model import (
    BOUNDED,
    BROKERS,
    BUDGET,
    BUNDLES,
    Batch,
    Happened,
    Leader,
    Live,
    World,
    abstract,
    batches,
    renamed,
)

from loadmanager.core.bundle_task import (
    TRANSITIONS,
    BundleTask,
    IllegalTaskEvent,
    TaskEvent,
    TaskState,
)
from loadmanager.core.ids import BrokerId, BundleId

OUTCOMES = (
    (TaskEvent.ORDER_WRITTEN, True),
    (TaskEvent.REPLY_LOST, True),
    (TaskEvent.REPLY_LOST, False),
)
"""What the leader knows of a write, and whether it stands."""
UNWRITTEN = (TaskEvent.ORDER_REFUSED, TaskEvent.WITHDRAWN, TaskEvent.TERM_ENDED)


@dataclass(frozen=True)
class Walk:
    """What there is, and each event that came so far with the state it came in."""

    brokers: tuple[BrokerId, ...]
    cuts: bool
    most: float = math.inf
    happened: Happened = field(default_factory=set)


@pytest.mark.parametrize(
    "walk",
    [Walk(BROKERS, cuts=False), Walk(BROKERS[:2], cuts=True, most=300)],
    ids=["moves", "all kinds"],
)
def test_what_must_hold_of_tasks_holds_in_every_state_that_is_reached(walk: Walk) -> None:
    seen, known = {renamed(World())}, {World()}
    waiting = deque(known)
    looked = 0
    while waiting and looked < walk.most:
        looked += 1
        for world in futures(waiting.popleft(), walk):
            if world in known:
                continue
            known.add(world)
            # Worlds that differ in the names of brokers and bundles alone are one.
            name = renamed(world)
            if name not in seen:
                seen.add(name)
                waiting.append(world)
    assert len(seen) > 300
    assert waiting or walk.happened == set(TRANSITIONS)


def futures(world: World, walk: Walk) -> Iterator[World]:
    leader = Leader(world, walk.happened)
    leader.end_term()
    yield checked(leader)
    for bundle in BUNDLES:
        leader = Leader(world, walk.happened)
        obey(leader, bundle)
        if world.lost:
            checked(leader)
            leader.read()
        yield checked(leader)
    if world.lost:
        leader = Leader(world, walk.happened)
        leader.read()
        yield checked(leader)
        return
    yield from written(world, walk)
    for bundle in BUNDLES:
        yield from ended(world, walk, bundle)


def obey(leader: Leader, bundle: BundleId) -> None:
    """Let brokers take or release a bundle as ordered, known to the leader or not, or lose it."""
    owned = leader.owners[bundle] is not None
    leader.owners[bundle] = None if owned else leader.assigned.get(bundle)


def written(world: World, walk: Walk) -> Iterator[World]:
    trial = Leader(world, walk.happened)
    # Batches that come to the same tasks are one.
    effects = {
        effect(trial, batch): batch
        for batch in batches(trial.assigned, walk.brokers, cuts=walk.cuts)
    }
    admitted = [batch for (_, tasks), batch in effects.items() if tasks]
    for batch, (event, stands) in product(admitted, OUTCOMES):
        leader = Leader(world, walk.happened)
        leader.write(batch, event, stands=stands)
        yield checked(leader)
    for batch, event in product(admitted[:1], UNWRITTEN):
        leader = Leader(world, walk.happened)
        leader.write(batch, event, stands=False)
        assert checked(leader) == world


def effect(leader: Leader, batch: Batch) -> tuple[object, frozenset[Live]]:
    """Return what comes of a batch, as far as it matters; the budgets are kept at each step."""
    arbitration = leader.arbitration()
    admitted: list[BundleTask] = []
    for request in batch:
        new = arbitration.admit(request).tasks
        admitted += new
        replaced = {bundle for task in admitted for bundle in task.bundles}
        left = [task for task in leader.tasks if not replaced & set(task.bundles)]
        for broker in {b for task in new if task.asked_by in BOUNDED for b in task.parties}:
            assert between(broker, [*left, *admitted]) <= BUDGET
    changes = arbitration.changes
    orders = tuple((b, changes.assigned.get(b), changes.splits.get(b, b)) for b in BUNDLES)
    return (orders, frozenset(map(abstract, admitted)))


def between(broker: str, tasks: Sequence[BundleTask]) -> int:
    return sum(broker in task.parties for task in tasks)


def ended(world: World, walk: Walk, bundle: BundleId) -> Iterator[World]:
    """Yield what can become of a bundle's task but for new orders."""
    task = Leader(world, walk.happened).tasks.of(bundle)
    if task is not None:
        for event in TaskEvent:
            leader = Leader(world, walk.happened)
            task = leader.tasks.of(bundle)
            assert task is not None
            following = TRANSITIONS.get((task.state, event))
            if following is None:
                with pytest.raises(IllegalTaskEvent):
                    leader.advance(task, event)
            elif not following.ended:
                leader.advance(task, event)
            else:
                leader.end(task, event)
            if event is TaskEvent.SERVED_ELSEWHERE:
                others = set(walk.brokers) - {task.target}
                leader.owners[bundle] = min(others)
            yield checked(leader)


def checked(leader: Leader) -> World:
    """Let the leader observe, and check what must always hold; return the world then."""
    leader.observe()
    tasks = list(leader.tasks)
    bundles = [bundle for task in tasks for bundle in task.bundles]
    assert len(bundles) == len(set(bundles)), "two live tasks of one bundle"
    for task in tasks:
        assert task.epoch == leader.tasks.epoch
        assert task.state in {TaskState.UNCONFIRMED, TaskState.ORDERED, TaskState.RELEASED}
        assert leader.lost or task.state is not TaskState.UNCONFIRMED
        assert leader.lost or leader.stands(task)
    for broker in BROKERS:
        assert leader.tasks.under_way(broker) == between(broker, tasks)
    under_way = {b for b, to in leader.assigned.items() if leader.owners[b] != to}
    assert leader.lost or set(bundles) >= under_way | leader.cuts.keys(), "an order has no task"
    return leader.world()

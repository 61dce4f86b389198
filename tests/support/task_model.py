"""A leader's tasks, orders and owners, small enough to walk through all that can happen.

Two bundles and three brokers, with `LiveTasks` and `Arbitration` as they are and, in a few
lines, what the task controller does with both.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from loadmanager.core.bundle_task import (
    Arbitration,
    AskedBy,
    BundleTask,
    LiveTasks,
    TaskEvent,
    TaskKind,
    TaskState,
)
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause
from loadmanager.core.splitting.merging import Merge

BUNDLES = Boundaries.even(Namespace("t/n"), 2).bundles
BROKERS = tuple(BrokerId(f"b{number}:8080") for number in (1, 2, 3))
BUDGET = 1
BOUNDED = {AskedBy.DRAIN, AskedBy.BALANCING}
_PAIRS = tuple(permutations(BUNDLES))
_CUT = SplitOrder("range_equally_divide")
_MERGE = Merge(*BUNDLES).orders()
_ALIKE = {AskedBy.UNOWNED: AskedBy.PEOPLE, AskedBy.RECONCILIATION: AskedBy.BALANCING}
"""Askers whose live tasks give way to the same proposals as those of another."""

_Cut = TaskKind | None
Happened = set[tuple[TaskState, TaskEvent]]
Batch = tuple[tuple[BundleTask, ...], ...]
"""The proposals of some deciders at one moment, in order of their right."""


@dataclass(frozen=True, slots=True)
class Live:
    kind: TaskKind
    bundles: tuple[BundleId, ...]
    source: BrokerId | None
    target: BrokerId
    asked_by: AskedBy
    state: TaskState


@dataclass(frozen=True, slots=True)
class World:
    """For each bundle its standing order and its owner; the live tasks.

    ``lost`` says that the reply to the last write was lost: the leader does not know ``orders``.
    """

    orders: tuple[tuple[BrokerId | None, _Cut], ...] = ((None, None), (None, None))
    owners: tuple[BrokerId | None, ...] = (None, None)
    tasks: tuple[Live, ...] = ()
    lost: bool = False


class Leader:
    """A world at work. ``happened`` collects each event with the state it came in."""

    def __init__(self, world: World, happened: Happened) -> None:
        self.happened = happened
        self.lost = world.lost
        orders = dict(zip(BUNDLES, world.orders, strict=True))
        self.assigned = {b: broker for b, (broker, _) in orders.items() if broker}
        self.cuts = {b: _order(b, cut) for b, (_, cut) in orders.items() if cut}
        self.owners = dict(zip(BUNDLES, world.owners, strict=True))
        self.tasks = LiveTasks(1)
        for one in world.tasks:
            cut = one.kind in {TaskKind.SPLIT, TaskKind.MERGE}
            splits = {b: _order(b, one.kind) for b in one.bundles} if cut else {}
            wanted = proposal(
                one.kind, one.bundles, one.target, one.asked_by, source=one.source, splits=splits
            )
            lost = one.state is TaskState.UNCONFIRMED
            event = TaskEvent.REPLY_LOST if lost else TaskEvent.ORDER_WRITTEN
            task = self.tasks.advance(self.tasks.admit(wanted, 0.0), event, 0.0)[-1]
            if one.state is TaskState.RELEASED:
                self.tasks.advance(task, TaskEvent.SOURCE_RELEASED, 0.0)

    def world(self) -> World:
        return World(
            tuple((self.assigned.get(b), _cut(self.cuts.get(b))) for b in BUNDLES),
            tuple(self.owners.values()),
            tuple(map(abstract, sorted(self.tasks, key=lambda one: one.bundle))),
            self.lost,
        )

    def advance(self, task: BundleTask, event: TaskEvent) -> BundleTask:
        (after,) = self.tasks.advance(task, event, 1.0)
        self.happened.add((task.state, event))
        return after

    def arbitration(self) -> Arbitration:
        return Arbitration(
            tasks=self.tasks,
            assigned=self.assigned,
            owner=self.owners.get,
            most_per_broker=BUDGET,
            now_s=1.0,
        )

    def write(self, batch: Batch, event: TaskEvent, *, stands: bool) -> None:
        """Write what is proposed; ``stands`` says whether it stands, ``event`` what is known."""
        arbitration = self.arbitration()
        admitted = [task for request in batch for task in arbitration.admit(request).tasks]
        if stands:
            self.assigned, self.cuts = arbitration.changes.apply(self.assigned, self.cuts)
        self.lost = event is TaskEvent.REPLY_LOST
        for task in admitted:
            self._enter(task, event)

    def _enter(self, task: BundleTask, event: TaskEvent) -> None:
        former = {one.number: one for one in self.tasks}
        *replaced, after = self.tasks.advance(task, event, 1.0)
        self.happened.add((task.state, event))
        for one in replaced:
            assert one.state is TaskState.SUPERSEDED
            self.happened.add((former[one.number].state, TaskEvent.REPLACED))
        assert after.state.ended is (self.tasks.of(after.bundle) is not after)

    def read(self) -> None:
        self.lost = False
        for task in self.tasks:
            if task.state is TaskState.UNCONFIRMED:
                stands = self.stands(task)
                self.advance(task, TaskEvent.ORDER_WRITTEN if stands else TaskEvent.ORDER_REFUSED)

    def end_term(self) -> None:
        """End the term; the next leader reads what stands."""
        for task in self.tasks:
            self.advance(task, TaskEvent.TERM_ENDED)
        assert not list(self.tasks)
        self.tasks = LiveTasks(self.tasks.epoch + 1)
        self.lost = False

    def end(self, task: BundleTask, event: TaskEvent) -> None:
        """End a task; what it was to split or merge is so, or is to be so no more."""
        self.advance(task, event)
        for bundle in task.splits:
            del self.cuts[bundle]

    def stands(self, task: BundleTask) -> bool:
        there = all(self.assigned.get(bundle) == task.target for bundle in task.bundles)
        return there and all(self.cuts.get(b) == order for b, order in task.splits.items())

    def observe(self) -> None:
        for task in self.tasks:
            if not task.relocates or task.state is TaskState.UNCONFIRMED:
                continue
            owner, now = self.owners[task.bundle], task
            if task.state is TaskState.ORDERED and task.source not in {None, owner}:
                now = self.advance(task, TaskEvent.SOURCE_RELEASED)
            if owner == task.target:
                self.advance(now, TaskEvent.DONE)
        if self.lost:
            return
        for task in self.tasks:
            if not self.stands(task):
                self.advance(task, TaskEvent.REPLACED)
        for wanted in list(self._orphans()):
            self._enter(self.tasks.admit(wanted, 1.0), TaskEvent.ORDER_WRITTEN)

    def _orphans(self) -> Iterator[BundleTask]:
        """Yield a proposal for each order that is not carried out and has no task."""
        cuts = {b: order for b, order in self.cuts.items() if self.tasks.of(b) is None}
        if cuts == _MERGE and len(set(self.assigned.values())) == 1:
            target = self.assigned[BUNDLES[0]]
            yield proposal(TaskKind.MERGE, BUNDLES, target, AskedBy.RECONCILIATION, splits=cuts)
            return
        for bundle, target in self.assigned.items():
            owner, kind = self.owners[bundle], _cut(cuts.get(bundle))
            if self.tasks.of(bundle) is not None or not (kind or owner != target):
                continue
            yield proposal(
                kind or (TaskKind.MOVE if owner else TaskKind.PLACE),
                (bundle,),
                target,
                AskedBy.RECONCILIATION,
                source=owner,
                splits={bundle: cuts[bundle]} if kind else {},
            )


def abstract(task: BundleTask) -> Live:
    return Live(
        task.kind,
        task.bundles,
        task.source if task.parties else None,
        task.target,
        _ALIKE.get(task.asked_by, task.asked_by),
        task.state,
    )


def _order(bundle: BundleId, kind: TaskKind) -> SplitOrder:
    return _MERGE[bundle] if kind is TaskKind.MERGE else _CUT


def _cut(order: SplitOrder | None) -> _Cut:
    if order is None:
        return None
    return TaskKind.SPLIT if order == _CUT else TaskKind.MERGE


def proposal(
    kind: TaskKind,
    bundles: tuple[BundleId, ...],
    target: BrokerId,
    asked_by: AskedBy,
    *,
    source: BrokerId | None = None,
    planned: Mapping[BundleId, BrokerId] | None = None,
    splits: Mapping[BundleId, SplitOrder] | None = None,
) -> BundleTask:
    """Return a proposal, decided while these orders were ``planned``."""
    return BundleTask(
        kind=kind,
        bundles=bundles,
        source=source,
        target=target,
        cause=Cause.IMBALANCE,
        asked_by=asked_by,
        planned=planned or {},
        splits=splits or {},
    )


def batches(
    planned: Mapping[BundleId, BrokerId], brokers: Sequence[BrokerId], *, cuts: bool
) -> Iterator[Batch]:
    """Yield what deciders propose: each alone, and some that meet at one moment."""

    def to(target: BrokerId, bundle: BundleId, asked_by: AskedBy) -> BundleTask:
        return proposal(TaskKind.MOVE, (bundle,), target, asked_by, planned=planned)

    for bundle, asked_by, target in product(BUNDLES, AskedBy, brokers):
        yield ((to(target, bundle, asked_by),),)
    if cuts:
        yield from _cutting(planned, brokers)
        return
    for (one, other), first, second in product(_PAIRS, brokers, brokers):
        yield ((to(first, one, AskedBy.DRAIN),), (to(second, other, AskedBy.BALANCING),))
        yield ((to(first, one, AskedBy.UNOWNED),), (to(second, one, AskedBy.BALANCING),))
        yield ((to(first, one, AskedBy.BALANCING), to(second, other, AskedBy.BALANCING)),)


def _cutting(planned: Mapping[BundleId, BrokerId], brokers: Sequence[BrokerId]) -> Iterator[Batch]:
    people = AskedBy.PEOPLE

    def cut(bundle: BundleId, asked_by: AskedBy) -> BundleTask:
        target, splits = planned.get(bundle, brokers[0]), {bundle: _CUT}
        return proposal(TaskKind.SPLIT, (bundle,), target, asked_by, planned=planned, splits=splits)

    for bundle, asked_by in product(BUNDLES, AskedBy):
        yield ((cut(bundle, asked_by),),)
    for target in brokers:
        merge = proposal(TaskKind.MERGE, BUNDLES, target, people, planned=planned, splits=_MERGE)
        yield ((merge,),)
        for one, other in _PAIRS:
            move = proposal(TaskKind.MOVE, (one,), target, people, planned=planned)
            yield ((move,), (cut(other, people),))


def renamed(world: World) -> tuple[object, ...]:
    """Return what is the same for all worlds that differ in names of bundles and brokers alone."""
    return min(
        _numbered(world, dict(zip((None, *BROKERS), (0, *numbers), strict=True)), bundles)
        for numbers in permutations((1, 2, 3))
        for bundles in (BUNDLES, BUNDLES[::-1])
    )


_RANKS = {one: rank for kind in (TaskKind, TaskState) for rank, one in enumerate(kind, start=1)}


def _numbered(
    world: World, number: Mapping[BrokerId | None, int], bundles: Iterable[BundleId]
) -> tuple[object, ...]:
    rows = dict(zip(BUNDLES, zip(world.orders, world.owners, strict=True), strict=True))
    of = {bundle: task for task in world.tasks for bundle in task.bundles}
    found: list[tuple[int, ...]] = []
    for bundle in bundles:
        (broker, cut), owner = rows[bundle]
        row: tuple[int, ...] = (number[broker], _RANKS[cut] if cut else 0, number[owner])
        task = of.get(bundle)
        if task is not None:
            ranks = (_RANKS[task.kind], task.asked_by, _RANKS[task.state])
            row += (*ranks, len(task.bundles), number[task.source], number[task.target])
        found.append(row)
    return (world.lost, *found)

"""The life of one bundle task, as a table: a placement, move, split or merge under way.

This file holds everything that changes a task's state, and the tasks that have not ended. The
leader's task controller is its only caller.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, namespace_of, range_of
from loadmanager.core.orders import OrderChanges, SplitOrder
from loadmanager.core.plan import Cause, Move
from loadmanager.core.rates import Rates
from loadmanager.core.splitting.merging import merges_in, whole_ordered


class TaskKind(StrEnum):
    PLACE = "place"
    MOVE = "move"
    SPLIT = "split"
    MERGE = "merge"


class AskedBy(IntEnum):
    """What proposes a task; the lower number takes precedence for the same bundle."""

    UNOWNED = 0  # No broker serves the bundle: a lookup waits, or its broker left.
    PEOPLE = 1  # The admin API.
    DRAIN = 2  # Its broker is draining.
    # The orders that stand are not carried out, though no task of this term says so.
    RECONCILIATION = 3
    BALANCING = 4  # A round of the leader.

    @property
    def word(self) -> str:
        return self.name.lower()


class TaskState(StrEnum):
    PROPOSED = "proposed"
    UNCONFIRMED = "unconfirmed"  # Its order was sent and the reply was lost: it may stand or not.
    ORDERED = "ordered"
    RELEASED = "released"
    SERVING = "serving"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    TIMED_OUT = "timed_out"
    LANDED_ELSEWHERE = "landed_elsewhere"
    STUCK = "stuck"  # Its source has been releasing the bundle for longer than it may.
    # The target owns the bundle, but clients do not reach its topics there.
    OWNED_NOT_SERVED = "owned_not_served"

    @property
    def ended(self) -> bool:
        return self not in _LIVE


class TaskEvent(StrEnum):
    ORDER_WRITTEN = "order_written"
    ORDER_REFUSED = "order_refused"
    WITHDRAWN = "withdrawn"  # Its proposer withdrew it before it was ordered.
    REPLY_LOST = "reply_lost"
    REPEATED = "repeated"
    SOURCE_RELEASED = "source_released"
    DONE = "done"  # The target serves the bundle, or the boundaries show the split or merge.
    GAVE_UP = "gave_up"  # The agent that carries it out reports that it cannot.
    SERVED_ELSEWHERE = "served_elsewhere"
    EXPIRED = "expired"
    STUCK = "stuck"
    NOT_SERVED = "not_served"
    REPLACED = "replaced"  # Another task has its bundle now, or the bundle no longer exists.
    TERM_ENDED = "term_ended"


_LIVE: Final = frozenset(
    {TaskState.PROPOSED, TaskState.UNCONFIRMED, TaskState.ORDERED, TaskState.RELEASED}
)
_S, _E = TaskState, TaskEvent

TRANSITIONS: Final[Mapping[tuple[TaskState, TaskEvent], TaskState]] = {
    # One commit that checks the epoch writes the orders of many tasks.
    (_S.PROPOSED, _E.ORDER_WRITTEN): _S.ORDERED,
    # ZooKeeper refused it (too large), or this leader may no longer lead.
    (_S.PROPOSED, _E.ORDER_REFUSED): _S.FAILED,
    # Nothing is undone: the orders are read again before anything else is written.
    (_S.PROPOSED, _E.REPLY_LOST): _S.UNCONFIRMED,
    # A limit on moves, or an unfinished split, prevents it.
    (_S.PROPOSED, _E.WITHDRAWN): _S.SUPERSEDED,
    # The term ended before it was written.
    (_S.PROPOSED, _E.TERM_ENDED): _S.SUPERSEDED,
    # The orders were read: it stands, as if the reply had arrived.
    (_S.UNCONFIRMED, _E.ORDER_WRITTEN): _S.ORDERED,
    # The orders were read: it does not stand, and its decider decides again.
    (_S.UNCONFIRMED, _E.ORDER_REFUSED): _S.FAILED,
    # The next leader reads the orders and creates its own tasks for those that stand.
    (_S.UNCONFIRMED, _E.TERM_ENDED): _S.SUPERSEDED,
    # The source dropped the lock; no broker serves the bundle until the target does.
    (_S.ORDERED, _E.SOURCE_RELEASED): _S.RELEASED,
    # A placement has no source; and the release may not be observed before the target serves.
    (_S.ORDERED, _E.DONE): _S.SERVING,
    # The order may have been deleted or damaged; writing it again changes no order that stands.
    (_S.ORDERED, _E.REPEATED): _S.ORDERED,
    # The agent that carries it out reports that it cannot.
    (_S.ORDERED, _E.GAVE_UP): _S.FAILED,
    # A broker other than the target acquired the bundle.
    (_S.ORDERED, _E.SERVED_ELSEWHERE): _S.LANDED_ELSEWHERE,
    # A Pulsar broker closes its topics for longer than it may; it is followed to its end.
    (_S.ORDERED, _E.STUCK): _S.STUCK,
    # A Pulsar broker acquired it, and does not load its topics.
    (_S.ORDERED, _E.NOT_SERVED): _S.OWNED_NOT_SERVED,
    # A split or merge that is not made in time is withdrawn.
    (_S.ORDERED, _E.EXPIRED): _S.TIMED_OUT,
    # The order of a task with higher precedence, or requested by people, replaced it.
    (_S.ORDERED, _E.REPLACED): _S.SUPERSEDED,
    # Its order stands, for the next leader to follow.
    (_S.ORDERED, _E.TERM_ENDED): _S.SUPERSEDED,
    # The clients' wait is over.
    (_S.RELEASED, _E.DONE): _S.SERVING,
    # As before the release.
    (_S.RELEASED, _E.STUCK): _S.STUCK,
    # As before the release.
    (_S.RELEASED, _E.NOT_SERVED): _S.OWNED_NOT_SERVED,
    # As before the release: the target may have lost its order.
    (_S.RELEASED, _E.REPEATED): _S.RELEASED,
    # The target cannot acquire it; a bundle without an owner is placed again.
    (_S.RELEASED, _E.GAVE_UP): _S.FAILED,
    # Another broker acquired the bundle before the target.
    (_S.RELEASED, _E.SERVED_ELSEWHERE): _S.LANDED_ELSEWHERE,
    # If moves have a deadline: it passed before the target served.
    (_S.RELEASED, _E.EXPIRED): _S.TIMED_OUT,
    # For example, the target left meanwhile, and the bundle is placed elsewhere.
    (_S.RELEASED, _E.REPLACED): _S.SUPERSEDED,
    # Its order stands, for the next leader to follow.
    (_S.RELEASED, _E.TERM_ENDED): _S.SUPERSEDED,
}
"""The next state for each possible event; the diagram in docs/architecture.md is made of it."""


class IllegalTaskEvent(LoadManagerError):
    """An event occurred at a task for which it is not possible: a fault of the caller."""


class Pause(NamedTuple):
    """When topics were last served by the source, and first seen active at the target."""

    seen_before_s: float
    seen_after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleTask:
    """One placement, move, split or merge, from its proposal to its end. Immutable.

    ``bundles`` are one, or the two halves of a merge; the ``target`` of a split is to make it.
    ``planned`` are the orders for its bundles at the time of the decision: if they have changed
    before it is written, it is refused, except a move requested by people. ``influence`` is the
    traffic that the target is predicted to gain and the source to lose, ``reason`` why it is
    proposed, if that is more than its cause. ``number`` is unique in its
    epoch, from 1; 0 before it is admitted. Times are on the leader's monotonic clock, when it
    reached that state; ``attempted_at_s`` is when the order was last written.
    """

    kind: TaskKind
    bundles: tuple[BundleId, ...]
    source: BrokerId | None
    target: BrokerId
    cause: Cause
    asked_by: AskedBy
    planned: Mapping[BundleId, BrokerId] = field(default_factory=dict)
    splits: Mapping[BundleId, SplitOrder] = field(default_factory=dict)
    influence: Rates | None = None
    reason: str = ""
    number: int = 0
    epoch: int = 0
    state: TaskState = TaskState.PROPOSED
    proposed_at_s: float = 0.0
    ordered_at_s: float | None = None
    released_at_s: float | None = None
    ended_at_s: float | None = None
    attempted_at_s: float | None = None
    attempts: int = 0
    last_event: TaskEvent | None = None
    note: str = ""
    pause: Pause | None = None

    @property
    def bundle(self) -> BundleId:
        return self.bundles[0]

    @property
    def relocates(self) -> bool:
        return self.kind in {TaskKind.PLACE, TaskKind.MOVE}

    @property
    def parties(self) -> tuple[BrokerId, ...]:
        """The brokers between which a bundle moves, including a move for a split on arrival."""
        if not self.relocates and self.source in {None, self.target}:
            return ()
        return tuple(dict.fromkeys(one for one in (self.source, self.target) if one is not None))

    @property
    def pause_s(self) -> float | None:
        """For how long at most no broker served the bundle; None if that is not known."""
        if self.pause is not None:
            return self.pause.seen_after_s - self.pause.seen_before_s
        since_s = self.ordered_at_s if self.source is None else self.released_at_s
        if since_s is None or self.ended_at_s is None or self.state is not TaskState.SERVING:
            return None
        return self.ended_at_s - since_s


def task_of(move: Move, asked_by: AskedBy, **more: Any) -> BundleTask:
    """Return a task to propose; ``more`` are its further fields, such as ``splits`` of a split."""
    kind = TaskKind.SPLIT if "splits" in more else TaskKind.MOVE
    return BundleTask(
        kind=TaskKind.PLACE if move.source is None else kind,
        bundles=(move.bundle,),
        source=move.source,
        target=move.target,
        cause=move.cause,
        asked_by=asked_by,
        **more,
    )


def advanced(
    task: BundleTask, event: TaskEvent, now_s: float, note: str = "", pause: Pause | None = None
) -> BundleTask:
    """Raises `IllegalTaskEvent`: ``event`` cannot happen in the task's state."""
    state = TRANSITIONS.get((task.state, event))
    if state is None:
        subject = f"task {task.number} ({task.kind.value} of {task.bundles[0]})"
        what = f"{event.value} cannot happen in state {task.state.value}"
        raise IllegalTaskEvent(f"{subject}: {what}")
    task = replace(task, state=state, last_event=event, note=note or task.note, pause=pause)
    if event in {TaskEvent.ORDER_WRITTEN, TaskEvent.REPEATED}:
        task = replace(task, attempts=task.attempts + 1, attempted_at_s=now_s)
    if event is TaskEvent.ORDER_WRITTEN:
        task = replace(task, ordered_at_s=now_s)
    elif event is TaskEvent.SOURCE_RELEASED:
        task = replace(task, released_at_s=now_s)
    elif state.ended:
        task = replace(task, ended_at_s=now_s)
    return task


Owner = Callable[[BundleId], BrokerId | None]
Assigned = Mapping[BundleId, BrokerId]
Splits = Mapping[BundleId, SplitOrder]

# Deciders subject to the budget; unowned bundles and requests by people do not wait.
_BOUNDED = frozenset({AskedBy.DRAIN, AskedBy.BALANCING})


class LiveTasks:
    """The live tasks of one epoch, at most one for each bundle, and their count by broker."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._of: dict[BundleId, BundleTask] = {}
        self._parties: Counter[BrokerId] = Counter()
        self._last_number = 0

    def __iter__(self) -> Iterator[BundleTask]:
        """Yield each task once; tasks may be changed during the iteration."""
        return iter(list({task.number: task for task in self._of.values()}.values()))

    def __len__(self) -> int:
        return len(self._of)

    def of(self, bundle: BundleId) -> BundleTask | None:
        return self._of.get(bundle)

    def number_of(self, bundle: BundleId) -> int:
        task = self._of.get(bundle)
        return 0 if task is None else task.number

    def under_way(self, broker: BrokerId) -> int:
        return self._parties[broker]

    def obstacle(
        self, proposal: BundleTask, most_per_broker: int, others: Mapping[BrokerId, int]
    ) -> str | None:
        """Return why a proposal cannot become a task now, None if it can.

        A live task gives way to a proposal of the same or higher precedence. Drains and rounds may
        have at most ``most_per_broker`` tasks to and from each broker, including ``others`` about
        to be ordered.
        """
        former = self._tasks_of(proposal.bundles)
        for task in former:
            if not _gives_way(task, proposal.asked_by):
                return f"{task.kind.value} at {task.target} is under way (task {task.number})"
        stays = proposal.splits and proposal.source == proposal.target
        if stays or proposal.asked_by not in _BOUNDED:
            return None
        for broker in (proposal.source, proposal.target):
            if broker is not None:
                leaving = sum(broker in task.parties for task in former)
                if self._parties[broker] - leaving + others.get(broker, 0) >= most_per_broker:
                    return f"{most_per_broker} tasks to and from {broker} are under way"
        return None

    def admit(self, proposal: BundleTask, now_s: float) -> BundleTask:
        self._last_number += 1
        return replace(proposal, number=self._last_number, epoch=self.epoch, proposed_at_s=now_s)

    def advance(
        self,
        task: BundleTask,
        event: TaskEvent,
        now_s: float,
        note: str = "",
        pause: Pause | None = None,
    ) -> tuple[BundleTask, ...]:
        """Change the state of a task; return the tasks that gave way to it, then the task itself.

        Raises `IllegalTaskEvent`, also if it is neither proposed nor live.
        """
        new = task.state is TaskState.PROPOSED
        if not new and any(self._of.get(bundle) is not task for bundle in task.bundles):
            raise IllegalTaskEvent(f"task {task.number} is not the live task of {task.bundles}")
        after = advanced(task, event, now_s, note, pause)
        if not new and after.state.ended:
            for bundle in task.bundles:
                del self._of[bundle]
            self._parties.subtract(task.parties)
        if after.state.ended:
            return (after,)
        replaced: list[BundleTask] = []
        if new:
            why = f"task {task.number} took its place"
            for former in self._tasks_of(task.bundles):
                replaced += self.advance(former, TaskEvent.REPLACED, now_s, why)
            self._parties.update(after.parties)
        self._of |= dict.fromkeys(after.bundles, after)
        return (*replaced, after)

    def drop(self, task: BundleTask) -> None:
        """Forget a task that can no longer be followed, regardless of its bundles."""
        for bundle, one in list(self._of.items()):
            if one.number == task.number:
                del self._of[bundle]
        self._parties = Counter(broker for one in self for broker in one.parties)

    def _tasks_of(self, bundles: Iterable[BundleId]) -> tuple[BundleTask, ...]:
        found = (self._of.get(bundle) for bundle in bundles)
        return tuple({task.number: task for task in found if task is not None}.values())


def _gives_way(task: BundleTask, by: AskedBy) -> bool:
    if task.state is TaskState.UNCONFIRMED or by is AskedBy.BALANCING:
        return False
    return by is AskedBy.PEOPLE or by <= task.asked_by


@dataclass(slots=True)
class Dispatched:
    """``piggybacked`` is whether the additional operations of the same commit were written."""

    ordered: dict[BundleId, BrokerId] = field(default_factory=dict)
    refused: dict[BundleId, str] = field(default_factory=dict)
    tasks: list[BundleTask] = field(default_factory=list)
    too_large: Exception | None = None
    piggybacked: bool = False


@dataclass(slots=True, kw_only=True)
class Arbitration:
    """Live tasks, none of them unconfirmed, standing orders and owners, and the changes to make."""

    tasks: LiveTasks
    assigned: Assigned
    owner: Owner
    most_per_broker: int
    now_s: float
    _to: dict[BundleId, BrokerId] = field(default_factory=dict)
    _splits: dict[BundleId, SplitOrder | None] = field(default_factory=dict)
    _under_way: Counter[BrokerId] = field(default_factory=Counter)

    @property
    def changes(self) -> OrderChanges:
        return OrderChanges(self._to, self._splits)

    def admit(self, proposals: Sequence[BundleTask]) -> Dispatched:
        """Turn the proposals of one decider into tasks, except those that something prevents.

        Deciders are to be in order of precedence, highest first.
        """
        found = Dispatched()
        for proposal in map(self._merged, proposals):
            if self._stands(proposal):
                found.ordered |= dict.fromkeys(proposal.bundles, proposal.target)
                if proposal.asked_by is AskedBy.PEOPLE:
                    self._change(proposal)  # Rewriting it repairs a damaged order.
            elif (why := self._obstacle(proposal)) is not None:
                found.refused |= dict.fromkeys(proposal.bundles, why)
            else:
                self._change(proposal)
                task = self.tasks.admit(proposal, self.now_s)
                self._under_way.update(task.parties)
                found.tasks.append(task)
        return found

    def _merged(self, proposal: BundleTask) -> BundleTask:
        """Return the proposal with the current owner as its source, and with any pending split."""
        bundle = proposal.bundles[0]
        proposal = replace(proposal, source=self.owner(bundle))
        task = self.tasks.of(bundle)
        if task is None or task.kind is not TaskKind.SPLIT or proposal.splits:
            return proposal
        return replace(proposal, kind=TaskKind.SPLIT, splits=task.splits)

    def _stands(self, proposal: BundleTask) -> bool:
        bundle, target = proposal.bundles[0], proposal.target
        task = self.tasks.of(bundle)
        if task is not None:
            wanted = (proposal.kind, target, proposal.splits)
            return (task.kind, task.target, task.splits) == wanted
        there = self.owner(bundle) == target == self.assigned.get(bundle)
        return there and not proposal.splits

    def _obstacle(self, proposal: BundleTask) -> str | None:
        obeyed = proposal.asked_by is AskedBy.PEOPLE and not proposal.splits
        for bundle in proposal.bundles:
            if bundle in self._to:
                return "something with more right is ordered for it at the same moment"
            planned, before = self.assigned.get(bundle), proposal.planned.get(bundle)
            if planned is None and before is not None:
                return "it was split, merged or deleted meanwhile"
            if not obeyed and planned != before:
                return f"it was ordered to {planned} meanwhile"
        return self.tasks.obstacle(proposal, self.most_per_broker, self._under_way)

    def _change(self, proposal: BundleTask) -> None:
        for bundle in proposal.bundles:
            task = self.tasks.of(bundle)
            if task is not None:
                # Keep the change admitted for the other half of a merge.
                self._splits = dict.fromkeys(task.splits) | self._splits
            self._to[bundle] = proposal.target
        self._splits |= proposal.splits


CUT_WITHIN_S: Final = 60.0  # How long an order to split or merge stands before it is withdrawn.


def stands(task: BundleTask, assigned: Assigned, splits: Splits) -> bool:
    placed = all(assigned.get(bundle) == task.target for bundle in task.bundles)
    return placed and all(splits.get(bundle) == order for bundle, order in task.splits.items())


def ended_by(task: BundleTask, assigned: Assigned, splits: Splits) -> TaskEvent | None:
    if task.state is TaskState.UNCONFIRMED or stands(task, assigned, splits):
        return None
    # A split or merged bundle was replaced in the orders by its parts or by the merged bundle.
    gone = not any(bundle in assigned for bundle in task.bundles)
    made = not task.relocates and gone and any(_overlaps(task, bundle) for bundle in assigned)
    return TaskEvent.DONE if made else TaskEvent.REPLACED


def _overlaps(task: BundleTask, bundle: BundleId) -> bool:
    low, high = range_of(task.bundles[0])[0], range_of(task.bundles[-1])[1]
    lower, upper = range_of(bundle)
    return namespace_of(bundle) == namespace_of(task.bundle) and lower < high and low < upper


def seen(task: BundleTask, owner: BrokerId | None, *, serving: bool) -> Iterator[TaskEvent]:
    if not task.relocates or task.state is TaskState.UNCONFIRMED:
        return
    if task.state is TaskState.ORDERED and task.source not in {None, owner}:
        yield TaskEvent.SOURCE_RELEASED
    if owner == task.target and serving:
        yield TaskEvent.DONE


def overdue(
    task: BundleTask, owner: Owner, brokers: Container[BrokerId], now_s: float, lost_after_s: float
) -> TaskEvent | None:
    """Return the event due for a task that was not carried out in time, None for none.

    If the target is one of ``brokers`` and does not own a bundle ``lost_after_s`` after the order
    was last written, the order is written again: it may have been deleted or corrupted.
    """
    if task.attempted_at_s is None or task.ordered_at_s is None:
        return None  # It is unknown whether the order was written.
    if not task.relocates and now_s - task.ordered_at_s > CUT_WITHIN_S:
        return TaskEvent.EXPIRED
    waits = task.target in brokers and any(owner(bundle) != task.target for bundle in task.bundles)
    return TaskEvent.REPEATED if waits and now_s - task.attempted_at_s >= lost_after_s else None


def unfollowed(
    tasks: LiveTasks, owner: Owner, assigned: Assigned, splits: Splits
) -> Iterator[BundleTask]:
    """Yield proposals for the orders that stand, are not carried out and have no task."""
    for bundle, target in assigned.items():
        source = owner(bundle)
        if source != target and tasks.of(bundle) is None:
            yield BundleTask(
                kind=TaskKind.PLACE if source is None else TaskKind.MOVE,
                bundles=(bundle,),
                source=source,
                target=target,
                cause=Cause.UNOWNED if source is None else Cause.INHERITED,
                asked_by=AskedBy.RECONCILIATION,
            )
    cuts = {bundle: order for bundle, order in splits.items() if tasks.of(bundle) is None}
    merges = [
        both.halves for both in merges_in(cuts) if assigned[both.lower] == assigned[both.upper]
    ]
    # A half whose other half no longer exists, or is on another broker, has a task as well,
    # which expires.
    alone = cuts.keys() - {half for halves in merges for half in halves}
    for some in [*merges, *((bundle,) for bundle in sorted(alone))]:
        merged = whole_ordered(some[0], cuts[some[0]]) is not None
        yield BundleTask(
            kind=TaskKind.MERGE if merged else TaskKind.SPLIT,
            bundles=some,
            source=None,
            target=assigned[some[0]],
            cause=Cause.INHERITED,
            asked_by=AskedBy.RECONCILIATION,
            splits={bundle: cuts[bundle] for bundle in some},
        )

"""The life of one bundle task, as a table: a placement, move, split or merge under way.

A task begins as a proposal of the leader and ends in one of five states. This file holds
everything that changes a task's state, and uses neither ZooKeeper nor HTTP nor a clock: it takes
an event with its time and returns the task after it. `core/live_tasks.py` keeps the tasks that
have not ended; the leader's task controller is the only caller of both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause
from loadmanager.core.rates import Rates


class TaskKind(StrEnum):
    PLACE = "place"
    MOVE = "move"
    SPLIT = "split"
    MERGE = "merge"


class AskedBy(IntEnum):
    """What proposes a task; the lower number takes precedence for the same bundle."""

    UNOWNED = 0
    """No broker serves the bundle: a lookup waits, or its broker left."""

    PEOPLE = 1
    """The admin API."""

    DRAIN = 2
    """Its broker is draining."""

    RECONCILIATION = 3
    """The orders that stand are not carried out, though no task of this term says so."""

    BALANCING = 4
    """A round of the leader."""

    @property
    def word(self) -> str:
        return self.name.lower()


class TaskState(StrEnum):
    PROPOSED = "proposed"
    UNCONFIRMED = "unconfirmed"
    """Its order was sent and the reply was lost: it may stand or not."""

    ORDERED = "ordered"
    RELEASED = "released"
    SERVING = "serving"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    TIMED_OUT = "timed_out"
    LANDED_ELSEWHERE = "landed_elsewhere"
    STUCK = "stuck"
    """Its source has been releasing the bundle for longer than it may."""

    OWNED_NOT_SERVED = "owned_not_served"
    """The target owns the bundle, but clients do not reach its topics there."""

    @property
    def ended(self) -> bool:
        return self in _ENDED


class TaskEvent(StrEnum):
    ORDER_WRITTEN = "order_written"
    ORDER_REFUSED = "order_refused"
    WITHDRAWN = "withdrawn"
    """Its proposer withdrew it before it was ordered."""

    REPLY_LOST = "reply_lost"
    REPEATED = "repeated"
    SOURCE_RELEASED = "source_released"
    DONE = "done"
    """The target serves the bundle, or the boundaries show the split or merge."""

    GAVE_UP = "gave_up"
    """The agent that carries it out reports that it cannot."""

    SERVED_ELSEWHERE = "served_elsewhere"
    EXPIRED = "expired"
    STUCK = "stuck"
    NOT_SERVED = "not_served"
    REPLACED = "replaced"
    """Another task has its bundle now, or the bundle no longer exists."""

    TERM_ENDED = "term_ended"


_ENDED: Final = frozenset(
    {
        TaskState.SERVING,
        TaskState.FAILED,
        TaskState.SUPERSEDED,
        TaskState.TIMED_OUT,
        TaskState.LANDED_ELSEWHERE,
        TaskState.STUCK,
        TaskState.OWNED_NOT_SERVED,
    }
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
    """An event occurred in a state in which it is not possible: a fault of the caller."""

    def __init__(self, task: "BundleTask", event: TaskEvent) -> None:
        subject = f"task {task.number} ({task.kind.value} of {task.bundles[0]})"
        super().__init__(f"{subject}: {event.value} cannot happen in state {task.state.value}")
        self.task = task
        self.event = event


class Pause(NamedTuple):
    """The time within which clients waited, on the leader's monotonic clock.

    Attributes:
        seen_before_s: when the topics were last known to be served by the source.
        seen_after_s: when most of them were first seen active at the target.
    """

    seen_before_s: float
    seen_after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleTask:
    """One placement, move, split or merge, from its proposal to its end. Immutable.

    Attributes:
        bundles: one bundle, or the two halves of a merge.
        source: broker that owned the bundle when the task was ordered, None for none.
        target: broker that is to own the bundle; for a split, the broker that is to make it.
        planned: the orders for its bundles at the time of the decision. If they have changed
            before the task is written, the decision is outdated, and the task is refused; only a
            move requested by people is ordered nevertheless.
        splits: the split order of each bundle, for splits and merges.
        influence: traffic that the target is predicted to gain and the source to lose, from
            averages; None if unknown.
        number: unique in its epoch, from 1; 0 before it is admitted.
        proposed_at_s, ordered_at_s, released_at_s, ended_at_s: when it reached that state, on
            the leader's monotonic clock; None if it has not.
        attempted_at_s: when the order was last written, for the ``attempts``-th time.
        note: why it ended, for display.
        pause: as measured by the traffic of its topics; None if it was not.
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
        if self.source is None or self.source == self.target:
            return (self.target,)
        return (self.source, self.target)

    @property
    def pause_s(self) -> float | None:
        """For how long at most no broker served the bundle; None if that is not known."""
        if self.pause is not None:
            return self.pause.seen_after_s - self.pause.seen_before_s
        since_s = self.ordered_at_s if self.source is None else self.released_at_s
        if since_s is None or self.ended_at_s is None or self.state is not TaskState.SERVING:
            return None
        return self.ended_at_s - since_s


def advanced(
    task: BundleTask, event: TaskEvent, now_s: float, note: str = "", pause: Pause | None = None
) -> BundleTask:
    """Raises `IllegalTaskEvent`: ``event`` cannot happen in the task's state."""
    state = TRANSITIONS.get((task.state, event))
    if state is None:
        raise IllegalTaskEvent(task, event)
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

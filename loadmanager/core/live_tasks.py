from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from loadmanager.core.bundle_task import AskedBy, BundleTask, Pause, TaskEvent, TaskState, advanced
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId

_BOUNDED = frozenset({AskedBy.DRAIN, AskedBy.BALANCING})
"""Deciders subject to the budget; unowned bundles and requests by people do not wait."""


class BrokenInvariant(LoadManagerError):
    """An invariant of the live tasks is violated: a fault of this program."""


class LiveTasks:
    """The live tasks of one epoch, by bundle. Mutable: the task controller changes it.

    Invariants, of which `advance` checks those of the changed task: a bundle has at most one
    live task; all tasks belong to this epoch and none of them has ended; the tasks to and from
    each broker are counted. `obstacle` returns whether one more task is within the budget.
    """

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

        A live task gives way to a proposal of the same or higher precedence, except that a round
        replaces no task and an unconfirmed task gives way to none. Drains and rounds may have at
        most ``most_per_broker`` tasks to and from each broker, including the ``others`` about to
        be ordered.
        """
        former = self._tasks_of(proposal.bundles)
        for task in former:
            if not _gives_way(task, proposal):
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
        """Return a proposal as a task of this term; it becomes live with `advance`."""
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

        A proposed task is live from then on until it ends. Raises `IllegalTaskEvent`: ``event``
        cannot happen in the task's state; `BrokenInvariant`: the task is neither proposed nor the
        live task of its bundles.
        """
        new = task.state is TaskState.PROPOSED
        if not new and any(self._of.get(bundle) is not task for bundle in task.bundles):
            raise BrokenInvariant(f"task {task.number} is not the live task of {task.bundles}")
        after = advanced(task, event, now_s, note, pause)
        if not new and after.state.ended:
            for bundle in task.bundles:
                del self._of[bundle]
            self._count(task, -1)
        if after.state.ended:
            return (after,)
        replaced: list[BundleTask] = []
        if new:
            why = f"task {task.number} took its place"
            for former in self._tasks_of(task.bundles):
                replaced += self.advance(former, TaskEvent.REPLACED, now_s, why)
            self._count(after, 1)
        self._of |= dict.fromkeys(after.bundles, after)
        self._check(after)
        return (*replaced, after)

    def drop(self, task: BundleTask) -> None:
        """Forget a task that can no longer be followed, regardless of its bundles."""
        for bundle, one in list(self._of.items()):
            if one.number == task.number:
                del self._of[bundle]
        self._parties = Counter(broker for one in self for broker in one.parties)

    def check(self) -> None:
        """Raise `BrokenInvariant` if any invariant of the live tasks is violated."""
        for task in self:
            self._check(task)
        parties = Counter(broker for task in self for broker in task.parties)
        if +self._parties != parties:
            raise BrokenInvariant(f"tasks by broker are {parties}; counted {+self._parties}")

    def _tasks_of(self, bundles: Iterable[BundleId]) -> tuple[BundleTask, ...]:
        found = (self._of.get(bundle) for bundle in bundles)
        return tuple({task.number: task for task in found if task is not None}.values())

    def _count(self, task: BundleTask, by: int) -> None:
        for broker in task.parties:
            self._parties[broker] += by
            if not self._parties[broker]:
                del self._parties[broker]

    def _check(self, task: BundleTask) -> None:
        if task.epoch != self.epoch:
            raise BrokenInvariant(f"task {task.number} is of epoch {task.epoch}, not {self.epoch}")
        if task.state.ended or task.state is TaskState.PROPOSED:
            raise BrokenInvariant(f"task {task.number} is live as {task.state.value}")
        if any(self._of.get(bundle) is not task for bundle in task.bundles):
            raise BrokenInvariant(f"task {task.number} has not all of its bundles")


def _gives_way(task: BundleTask, proposal: BundleTask) -> bool:
    if task.state is TaskState.UNCONFIRMED:
        return False
    if proposal.asked_by is AskedBy.PEOPLE:
        return True
    if proposal.asked_by is AskedBy.BALANCING:
        return False
    return proposal.asked_by <= task.asked_by

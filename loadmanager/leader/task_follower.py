from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from loadmanager.common.cluster_state import OwnerView
from loadmanager.core.bundle_task import (
    BundleTask,
    LiveTasks,
    Pause,
    TaskEvent,
    TaskState,
    ended_by,
    seen,
    unfollowed,
)
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BundleId
from loadmanager.ports.host import Clock
from loadmanager.ports.orders import StandingOrders

_ENDED_KEPT: Final = 200


@dataclass(slots=True, eq=False)
class TaskFollower:
    """Advances live tasks; ``ended`` holds the last ended tasks, latest last."""

    tasks: LiveTasks
    orders: StandingOrders
    owners: OwnerView
    clock: Clock
    listener: Callable[[BundleTask], None]
    caught: Callable[[str, BaseException], None]
    ended: deque[BundleTask] = field(default_factory=lambda: deque(maxlen=_ENDED_KEPT), init=False)

    def __post_init__(self) -> None:
        """Follow owners, and the outcomes of orders that owners do not show."""
        self.owners.owner_changes.subscribe(self._follow)
        self.orders.follow(self._reported)

    def close(self) -> None:
        self.owners.owner_changes.unsubscribe(self._follow)
        for task in self.tasks:
            self.advance(task, TaskEvent.TERM_ENDED, "the term ended")

    def observe(self) -> None:
        """Compare the live tasks with owners and orders, and open missing tasks.

        It iterates over all bundles; a change of owners iterates over all tasks.
        """
        self._follow()
        if not self.orders.known:
            return  # A write is under way.
        assigned, splits = self.orders.assigned, self.orders.splits
        for task in self.tasks:
            ended = ended_by(task, assigned, splits)
            if ended is not None:
                there = task.bundle in assigned
                why = "its order was withdrawn" if there else "the bundle no longer exists"
                self.advance(task, ended, "" if ended is TaskEvent.DONE else why)
        for proposal in unfollowed(self.tasks, self.owners.listed_owner, assigned, splits):
            task = self.tasks.admit(proposal, self.clock.monotonic_s())
            self.advance(task, TaskEvent.ORDER_WRITTEN)

    def advance(
        self, task: BundleTask, event: TaskEvent, note: str = "", pause: Pause | None = None
    ) -> BundleTask:
        try:
            changed = self.tasks.advance(task, event, self.clock.monotonic_s(), note, pause)
        except LoadManagerError as error:
            # A fault of this program. `observe` opens the task again if its order stands.
            self.caught("tasks", error)
            self.tasks.drop(task)
            return task
        for one in changed:
            if one.state.ended:
                self.ended.append(one)
            try:
                self.listener(one)
            except Exception as error:  # noqa: BLE001 - the other tasks are followed, too
                self.caught("tasks", error)
        return changed[-1]

    def _follow(self) -> None:
        for task in self.tasks:
            holding = self.owners.owners.get(task.bundle)
            owner, serving = (holding.broker, holding.serving) if holding else (None, False)
            now = task
            for event in seen(task, owner, serving=serving):
                now = self.advance(now, event)

    def _reported(
        self, bundle: BundleId, event: TaskEvent, why: str, pause: Pause | None = None
    ) -> None:
        task = self.tasks.of(bundle)
        if task is not None and task.state is not TaskState.UNCONFIRMED:
            self.advance(task, event, why, pause)

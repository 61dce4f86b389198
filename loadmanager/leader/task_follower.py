"""Follows the tasks of one term to their ends, from owners and orders."""

from collections import deque
from collections.abc import Callable
from typing import Final

from loadmanager.common.cluster_state import OwnerView
from loadmanager.core.bundle_task import BundleTask, TaskEvent, TaskState
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.following import ended_by, seen, unfollowed
from loadmanager.core.ids import BundleId
from loadmanager.core.live_tasks import LiveTasks
from loadmanager.ports.host import Clock
from loadmanager.ports.orders import StandingOrders

_ENDED_KEPT: Final = 200


class TaskFollower:
    """Advances live tasks; ``ended`` holds the last ended tasks, latest last."""

    def __init__(
        self,
        tasks: LiveTasks,
        orders: StandingOrders,
        owners: OwnerView,
        clock: Clock,
        *,
        listener: Callable[[BundleTask], None],
        caught: Callable[[str, BaseException], None],
    ) -> None:
        self._tasks = tasks
        self._orders = orders
        self._owners = owners
        self._clock = clock
        self._listener = listener
        self._caught = caught
        self.ended: deque[BundleTask] = deque(maxlen=_ENDED_KEPT)
        owners.owner_changes.subscribe(self._follow)
        orders.follow(self._reported)

    def close(self) -> None:
        """End all tasks with the term."""
        self._owners.owner_changes.unsubscribe(self._follow)
        for task in self._tasks:
            self.advance(task, TaskEvent.TERM_ENDED, "the term ended")

    def observe(self) -> None:
        """Compare the live tasks with owners and orders, and open missing tasks.

        It iterates over all bundles; a change of owners iterates over all tasks.
        """
        self._follow()
        if not self._orders.known:
            return  # A write is under way.
        assigned, splits = self._orders.assigned, self._orders.splits
        for task in self._tasks:
            ended = ended_by(task, assigned, splits)
            if ended is not None:
                there = task.bundle in assigned
                why = "its order was withdrawn" if there else "the bundle no longer exists"
                self.advance(task, ended, "" if ended is TaskEvent.DONE else why)
        for proposal in unfollowed(self._tasks, self._owners.listed_owner, assigned, splits):
            task = self._tasks.admit(proposal, self._clock.monotonic_s())
            self.advance(task, TaskEvent.ORDER_WRITTEN)

    def advance(self, task: BundleTask, event: TaskEvent, note: str = "") -> BundleTask:
        """Return the task after an event, and report each task that it changed."""
        try:
            changed = self._tasks.advance(task, event, self._clock.monotonic_s(), note)
        except LoadManagerError as error:
            # A fault of this program. `observe` opens the task again if its order stands.
            self._caught("tasks", error)
            self._tasks.drop(task)
            return task
        for one in changed:
            if one.state.ended:
                self.ended.append(one)
            self._listener(one)
        return changed[-1]

    def _follow(self) -> None:
        for task in self._tasks:
            holding = self._owners.owners.get(task.bundle)
            owner, serving = (holding.broker, holding.serving) if holding else (None, False)
            now = task
            for event in seen(task, owner, serving=serving):
                now = self.advance(now, event)

    def _reported(self, bundle: BundleId, event: TaskEvent, why: str) -> None:
        task = self._tasks.of(bundle)
        if task is not None and task.state is not TaskState.UNCONFIRMED:
            self.advance(task, event, why)

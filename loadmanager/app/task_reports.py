"""What is reported of bundle tasks: metrics here, history through the chronicle."""

from loadmanager.app.chronicle import Chronicle
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskState
from loadmanager.telemetry.metrics import Metrics


class TaskReports:
    """Counts the tasks of one term by state, and hands each change on to history."""

    def __init__(self, metrics: Metrics, chronicle: Chronicle) -> None:
        self._metrics = metrics
        self._chronicle = chronicle
        self._live: set[int] = set()

    def task_changed(self, task: BundleTask) -> None:
        """Take note of a task in its new state."""
        self._chronicle.task_changed(task)
        if task.state.ended:
            self._live.discard(task.number)
            self._metrics.task_ended(task.kind.value, task.state.value)
        elif task.relocates:
            self._live.add(task.number)
        own = task.relocates and task.asked_by is not AskedBy.RECONCILIATION
        if own and task.state is TaskState.SERVING and task.ended_at_s and task.ordered_at_s:
            took_s = task.ended_at_s - task.ordered_at_s
            self._metrics.hand_over_duration_seconds.observe(took_s)
        self._metrics.moves_in_flight.set(len(self._live))

"""What is reported of bundle tasks: metrics here, history through the chronicle."""

from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskState
from loadmanager.leader.history_recorder import HistoryRecorder
from loadmanager.ports import Clock
from loadmanager.telemetry.metrics import Metrics


class TaskReports:
    """Counts the tasks of one term by state, and hands each change on to history.

    The age of the oldest is computed when metrics are read: 0 once all have ended, as they
    do with the term.
    """

    def __init__(self, metrics: Metrics, recorder: HistoryRecorder, clock: Clock) -> None:
        self._metrics = metrics
        self._recorder = recorder
        self._clock = clock
        self._proposed_at_s: dict[int, float] = {}
        self._moving: set[int] = set()
        metrics.oldest_task_age_seconds.set_function(self._oldest_age_s)

    def task_changed(self, task: BundleTask) -> None:
        """Take note of a task in its new state."""
        self._recorder.task_changed(task)
        if task.state.ended:
            self._proposed_at_s.pop(task.number, None)
            self._moving.discard(task.number)
            self._metrics.task_ended(task.kind.value, task.state.value)
        else:
            self._proposed_at_s[task.number] = task.proposed_at_s
            if task.relocates:
                self._moving.add(task.number)
        own = task.relocates and task.asked_by is not AskedBy.RECONCILIATION
        if own and task.state is TaskState.SERVING and task.ended_at_s and task.ordered_at_s:
            took_s = task.ended_at_s - task.ordered_at_s
            self._metrics.hand_over_duration_seconds.observe(took_s)
        self._metrics.moves_in_flight.set(len(self._moving))

    def _oldest_age_s(self) -> float:
        now_s = self._clock.monotonic_s()
        return now_s - min(list(self._proposed_at_s.values()), default=now_s)

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from loadmanager.core.broker_table import BrokerLoad
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskState
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.optimality import MOVING
from loadmanager.core.rates import Rates
from loadmanager.leader.history_recorder import HistoryRecorder
from loadmanager.ports.host import Clock
from loadmanager.ports.overview import TaskGain
from loadmanager.telemetry.metrics import Metrics


class TaskReports:
    """Counts the tasks of one term by state, and passes each change on to history.

    The age of the oldest task is computed when metrics are read; it is 0 once all have ended, as
    they do with the term.
    """

    def __init__(self, metrics: Metrics, recorder: HistoryRecorder, clock: Clock) -> None:
        self._metrics = metrics
        self._recorder = recorder
        self._clock = clock
        self._proposed_at_s: dict[int, float] = {}
        self._moving: set[int] = set()
        metrics.oldest_task_age_seconds.set_function(self._oldest_age_s)

    def task_changed(self, task: BundleTask) -> None:
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


_SETTLED_S: Final = 10.0
"""Delay after a move from which a report covers only the time after it."""

_MOST_KEPT: Final = 256


class TaskGains:
    """Keeps, for the last moves of one term, the largest use of their sources before and after."""

    def __init__(self, tracker: LoadTracker) -> None:
        self._tracker = tracker
        self._gains: dict[int, TaskGain] = {}
        self._ended: dict[int, BundleTask] = {}

    def task_changed(self, task: BundleTask) -> None:
        if task.state is TaskState.ORDERED and task.number not in self._gains:
            load = None if task.source is None else self._tracker.loads.get(task.source)
            if load is not None and task.relocates and task.influence is not None:
                self._gains[task.number] = _expected(load, task.influence)
                while len(self._gains) > _MOST_KEPT:
                    oldest = next(iter(self._gains))
                    del self._gains[oldest]
                    self._ended.pop(oldest, None)
        elif task.state is TaskState.SERVING and task.number in self._gains:
            self._ended[task.number] = task

    def updated(self) -> Mapping[int, TaskGain]:
        """Update and return the gains by task number, as far as they are known."""
        loads = self._tracker.loads
        for number, task in list(self._ended.items()):
            load = None if task.source is None else loads.get(task.source)
            if load is None:
                del self._ended[number]
            elif task.ended_at_s is not None and load.seen_s >= task.ended_at_s + _SETTLED_S:
                self._gains[number] = replace(self._gains[number], after=_largest(load))
                del self._ended[number]
        return self._gains


def _expected(load: BrokerLoad, influence: Rates) -> TaskGain:
    before, totals = _largest(load), load.totals
    share = (
        _share(influence.msgs_per_s, totals.msgs_per_s)
        + _share(influence.bytes_per_s, totals.bytes_per_s)
    ) / 2
    return TaskGain(before=before, expected=before * (1.0 - share))


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 0 else 0.0


def _largest(load: BrokerLoad) -> float:
    known = [load.usage[one] / load.limit[one] for one in MOVING if load.limit[one] > 0]
    return max(known, default=0.0)

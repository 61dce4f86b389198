"""What an attached controller sees, decides and does, as lines of history for the pipeline."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from loadmanager.attach.observation import Observation
from loadmanager.attach.reports import Reports
from loadmanager.core.bundle_task import BundleTask, TaskKind, TaskState
from loadmanager.core.cluster import ClusterView
from loadmanager.core.history import (
    Record,
    RoundTold,
    Stream,
    cut_record,
    report_record,
    round_records,
    task_records,
    term_record,
)
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.plan import Cause, Move, Reason, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.snapshot import Choice
from loadmanager.core.splitting import parts_at
from loadmanager.core.tally import LoadTally
from loadmanager.ports import HistorySink

STRATEGY: Final = "greedy_rate"
"""What the moves of `core.even_rates` are called in history."""


@dataclass(slots=True)
class _Decided:
    """A round whose moves are under way; ``ordered`` are those of which an order was sent."""

    told: RoundTold
    view: ClusterView
    plan: Plan
    ordered: set[BundleId] = field(default_factory=set)


@dataclass(slots=True)
class AttachHistory:
    """Writes the reports, rounds, moves and tasks of one controller's term.

    A round is written when its moves have ended, at the next one or at the end. None is a
    base: a replay cannot begin in this history.

    Attributes:
        balances: whether moves are made, not only proposed.
        most_moves: as the controller's rules have it.
        epoch: of the term, 0 where nobody else could lead.
    """

    sink: HistorySink
    reports: Reports
    interval_s: float
    most_moves: int
    balances: bool
    epoch: int = 0
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic_s: Callable[[], float] = time.monotonic
    _tally: LoadTally = field(default_factory=LoadTally)
    _reported_s: dict[BrokerId, float] = field(default_factory=dict)
    _decided: _Decided | None = None
    _rounds: int = 0
    _moves: int = 0

    def began(self) -> None:
        """Write that the term begins."""
        self._tell(self.wall_ms(), [term_record(self.wall_ms(), self.epoch, "began")])

    def ended(self) -> None:
        """Write the last round, and that the term is over."""
        self._write_round()
        self._tell(self.wall_ms(), [term_record(self.wall_ms(), self.epoch, "ended")])

    def round(self, seen: Observation, held: str) -> None:
        """Write the reports of one look, and keep what was decided on it."""
        self._write_round()
        at_ms, now_s = self.wall_ms(), self.monotonic_s()
        for gone in self._tally.brokers - set(seen.cluster.brokers):
            self._tally.forget(gone, now_s)
            self._reported_s.pop(gone, None)
        reports = self.reports.of(seen.cluster, seen.samples, at_ms)
        for broker, report in reports.items():
            self._report(report, seen.samples[broker].window_s, now_s)
        self._tally.sample()
        self._rounds += 1
        acts = self.balances and not held
        moves = tuple(
            Move(one.bundle, one.source, one.target, Cause.IMBALANCE) for one in seen.proposals
        )
        plan = Plan(
            moves=moves if acts else (),
            observed=() if acts else moves,
            refusals=_refusals(seen, held),
            memory=RoundMemory(),
        )
        told = RoundTold(
            at_ms=at_ms,
            epoch=self.epoch,
            number=self._rounds,
            outcome="observed" if plan.observed else "quiet",
            took_s=None,
            planner=Planner(),
            steering="active" if self.balances else "observing",
            tick_interval_s=self.interval_s,
            reported_at_ms={broker: one.reported_at_ms for broker, one in reports.items()},
            decided_by=Choice(STRATEGY, {"most_moves": self.most_moves}),
        )
        view = self._tally.view(now_s, policies=seen.cluster.isolation)
        self._decided = _Decided(told, view, plan)

    def task(self, task: BundleTask) -> None:
        """Write a task in its new state, and what a split has cut."""
        at_ms, now_s = self.wall_ms(), self.monotonic_s()
        if self._decided is not None and task.state is TaskState.ORDERED:
            self._decided.ordered.add(task.bundle)
        records = task_records(at_ms, task, now_s)
        if task.kind is TaskKind.SPLIT and task.state is TaskState.SERVING:
            (cut,) = task.splits[task.bundle].positions
            parts = parts_at(task.bundle, cut)
            records.append(
                cut_record(at_ms, epoch=self.epoch, action="split", whole=task.bundle, parts=parts)
            )
        self._tell(at_ms, records)

    def _report(self, report: LoadReport, window_s: float, now_s: float) -> None:
        self._tally.report(report, now_s)
        former_s = self._reported_s.get(report.broker)
        self._reported_s[report.broker] = now_s
        at_ms = report.reported_at_ms
        interval_s = None if former_s is None else now_s - former_s
        self.sink.offer(
            Stream.REPORTS,
            at_ms,
            lambda: [
                report_record(
                    report,
                    at_ms=at_ms,
                    due="first" if interval_s is None else "age",
                    interval_s=interval_s,
                    window_s=window_s,
                )
            ],
        )

    def _write_round(self) -> None:
        decided, self._decided = self._decided, None
        if decided is None:
            return
        plan, first_move = decided.plan, self._moves + 1
        self._moves += len(plan.moves) + len(plan.observed)
        told = replace(
            decided.told,
            outcome="moved"
            if decided.ordered
            else "failed"
            if plan.moves
            else decided.told.outcome,
            not_ordered={one.bundle for one in plan.moves} - decided.ordered,
        )
        self.sink.offer(
            Stream.ROUNDS,
            told.at_ms,
            lambda: round_records(told, decided.view, plan, first_move),
        )

    def _tell(self, at_ms: int, records: Iterable[Record]) -> None:
        self.sink.offer(Stream.ROUNDS, at_ms, lambda: records)


def _refusals(seen: Observation, held: str) -> tuple[Refusal, ...]:
    """Return why the round, brokers without a sample and bundles with traffic were left alone."""
    found = [Refusal(broker, Reason.LOAD_UNKNOWN, why) for broker, why in seen.missing.items()]
    found += [Refusal(bundle, Reason.NOT_OFFERED, why) for bundle, why in seen.staying.items()]
    if held:
        return (Refusal("", Reason.COOLING_DOWN, held), *found)
    if seen.proposals:
        return tuple(found)
    return (Refusal("", Reason.WITHIN_THRESHOLD, seen.verdict), *found)

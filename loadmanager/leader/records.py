from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskState
from loadmanager.core.cluster import ClusterView
from loadmanager.core.explaining import Decision, Outcome, move_decision, refusal_decision
from loadmanager.core.history.records import (
    RoundFacts,
    bundles_records,
    move_record,
    record_of,
    round_records,
    task_records,
)
from loadmanager.core.history.schema import CUT, OPTIMALITY, SHADOW, TERM_CHANGE, TICK, Kind, Stream
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker, Tally
from loadmanager.core.memory import RoundMemory, shifted
from loadmanager.core.optimality import MOVING, Optimality
from loadmanager.core.plan import Move, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.policies import Policies
from loadmanager.core.shadow import Shadowed
from loadmanager.ports.history import HistorySink
from loadmanager.ports.host import Clock
from loadmanager.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewInput:
    """The immutable input of a view; ``excluded`` brokers count as draining."""

    now_s: float
    tally: Tally
    assigned: Mapping[BundleId, BrokerId]
    policies: Policies
    excluded: frozenset[BrokerId]

    def view(self) -> ClusterView:
        view = self.tally.view(self.now_s, in_flight=self.assigned, policies=self.policies)
        if not self.excluded:
            return view
        brokers = view.brokers
        out = np.array([name in self.excluded for name in brokers.names], dtype=np.bool_)
        return replace(view, brokers=brokers.having(draining=brokers.draining | out))


MOST_DECISIONS: Final = 2000
MOST_SUBJECTS: Final = 20_000

_Kept = tuple[Decision | None, Decision | None]


@dataclass(eq=False)
class DecisionLog:
    """The latest decisions of one term overall, and the last move and refusal of each subject."""

    clock: Clock
    epoch: int
    task_of: Callable[[BundleId], int] = lambda _: 0
    most_decisions: int = MOST_DECISIONS
    most_subjects: int = MOST_SUBJECTS

    def __post_init__(self) -> None:
        self._recent: deque[Decision] = deque(maxlen=self.most_decisions)
        self._about: OrderedDict[str, _Kept] = OrderedDict()
        self.refusals: dict[str, list[Refusal]] | None = None
        self.rounds = 0
        self._entries = 0
        self.last_round_at_ms = 0

    def round_done(self, plan: Plan, brokers: Iterable[BrokerId]) -> None:
        """Record the refusals and observed moves of a round; `moved` records what is ordered."""
        self.rounds += 1
        self.last_round_at_ms = self.clock.wall_ms()
        self.refusals = {}
        for refusal in plan.refusals:
            self.refusals.setdefault(refusal.subject, []).append(refusal)
        known = frozenset[str](brokers)
        at: Any = {"at_ms": self.last_round_at_ms, "epoch": self.epoch, "number": self.rounds}
        found = [move_decision(one, Outcome.OBSERVED, **at) for one in plan.observed]
        found += [refusal_decision(one, **at) for one in plan.refusals]
        for decision in map(self._entered, found):
            # A round has an entry for every broker; these would displace the moves.
            if decision.subject not in known:
                self._recent.append(decision)

    def moved(self, moves: Iterable[Move]) -> None:
        self._order(moves, Outcome.MOVED, at_ms=self.last_round_at_ms, number=self.rounds)

    def placed(self, moves: Iterable[Move]) -> None:
        self._order(moves, Outcome.PLACED, at_ms=self.clock.wall_ms(), number=0)

    def _order(self, moves: Iterable[Move], outcome: Outcome, *, at_ms: int, number: int) -> None:
        for move in moves:
            decision = move_decision(move, outcome, at_ms=at_ms, epoch=self.epoch, number=number)
            decision = replace(decision, task=self.task_of(move.bundle))
            self._recent.append(self._entered(decision))

    def unplaced(self, refusals: Iterable[Refusal]) -> None:
        """Record why unowned bundles were not placed; they are tried again soon."""
        at_ms = self.clock.wall_ms()
        for one in refusals:
            self._entered(refusal_decision(one, at_ms=at_ms, epoch=self.epoch))

    def decisions(self, subject: str = "") -> Sequence[Decision]:
        """Return the latest decisions, and with them the last about ``subject``, newest first."""
        known = {one.number: one for one in (*self._recent, *self.about(subject))}
        return [known[number] for number in sorted(known, reverse=True)]

    def about(self, subject: str) -> tuple[Decision, ...]:
        kept = [one for one in self._about.get(subject, (None, None)) if one is not None]
        return tuple(sorted(kept, key=lambda one: (one.at_ms, one.round), reverse=True))

    def _entered(self, decision: Decision) -> Decision:
        self._entries += 1
        decision = replace(decision, number=self._entries)
        left_alone = decision.outcome is Outcome.LEFT_ALONE
        parties = (decision.subject, decision.source, decision.target)
        for subject in dict.fromkeys(party for party in parties if party):
            move, refusal = self._about.pop(subject, (None, None))
            self._about[subject] = (move, decision) if left_alone else (decision, refusal)
        while len(self._about) > self.most_subjects:
            self._about.popitem(last=False)
        return decision


@dataclass(slots=True)
class _Decided:
    """A round: ``ordered`` are its moves that stand as orders, None while unknown."""

    facts: RoundFacts
    view: ClusterView
    plan: Plan
    ordered: frozenset[BundleId] | None = None
    over: bool = False


@dataclass(eq=False)
class HistoryRecorder:
    """Passes the records of one term to the sink; does nothing if history is disabled.

    Base rounds are the first round, every `base_every_rounds`-th round, and the first one after
    a change of settings, constraints or bundle ranges.
    """

    history: HistorySink
    wall_ms: Callable[[], int]
    monotonic_s: Callable[[], float]
    epoch: int
    tracker: LoadTracker
    base_every_rounds: int

    def __post_init__(self) -> None:
        self._on = self.history.wants(Stream.ROUNDS)
        self._began = False
        self._ticks = 0
        self._rounds = 0
        self._moves = 0
        self._taken: dict[BrokerId, int] = {}
        self._left: set[BrokerId] = set()
        self._facts: RoundFacts | None = None
        self._decided: _Decided | None = None
        self._based_on: tuple[Planner, Policies] | None = None

    def began(self) -> None:
        self._began = True
        self._record(TERM_CHANGE, event="began")

    def ended(self) -> None:
        if self._began:
            self._began = False
            self._write_round()
            self._record(TERM_CHANGE, event="ended")

    # --- reports and samples -----------------------------------------------------------

    def took(self, broker: BrokerId, reported_at_ms: int) -> None:
        self._taken[broker] = reported_at_ms

    def forgot(self, broker: BrokerId) -> None:
        self._left.add(broker)

    def ticked(self) -> None:
        self._ticks += 1
        self._record_tick(sampled=True)

    def _record_tick(self, *, sampled: bool) -> None:
        taken, self._taken = self._taken, {}
        left, self._left = self._left, set()
        self._record(
            TICK,
            tick=self._ticks,
            sampled=sampled,
            taken={"broker": list(taken), "reported_at_ms": list(taken.values())},
            left=sorted(left),
        )

    # --- decisions -----------------------------------------------------------------------

    def began_round(
        self,
        now_s: float,
        view: Callable[[], ClusterView],
        memory: RoundMemory,
        *,
        planner: Planner,
        policies: Policies,
        steering: str,
        reported_at_ms: Mapping[BrokerId, int],
        doubtful: bool = False,
    ) -> None:
        """Note the input of a round and its ``memory``, before ticks change the averages."""
        if not self._on:
            return
        self._write_round()
        if self._facts is not None:
            # The previous round was never decided, so nothing can be replayed from it.
            self._based_on = None
        if self._taken or self._left:
            self._record_tick(sampled=False)
        self._rounds += 1
        facts = RoundFacts(
            at_ms=self.wall_ms(),
            epoch=self.epoch,
            round=self._rounds,
            outcome="",
            took_s=None,
            tick=self._ticks,
            planner=planner,
            steering=steering,
            session_doubtful=doubtful,
            reported_at_ms=reported_at_ms,
        )
        former, self._based_on = self._based_on, (planner, policies)
        if former != self._based_on or (self._rounds - 1) % self.base_every_rounds == 0:
            offset_s = facts.at_ms / 1000 - now_s
            memory = shifted(memory, offset_s)
            facts = replace(facts, memory=memory, averages=self.tracker.averages())
            # Recorded at once: ticks before the end of the round apply on top of these.
            bundles = facts
            self.history.offer(Stream.ROUNDS, facts.at_ms, lambda: bundles_records(bundles, view()))
        self._facts = facts

    def decided(self, view: ClusterView, plan: Plan) -> None:
        facts, self._facts = self._facts, None
        if facts is not None:
            self._decided = _Decided(facts, view, plan)

    def orders_known(self, ordered: Collection[BundleId]) -> None:
        decided = self._decided
        if decided is not None:
            decided.ordered = frozenset(ordered)
            if decided.over:
                self._write_round()

    def round_over(
        self,
        outcome: str,
        *,
        took_s: float | None,
        tick_interval_s: float,
        unowned: Callable[[], Sequence[BundleId]] = tuple,
    ) -> None:
        """Record the last decided round, or leave it to `orders_known` after a lost reply."""
        decided = self._decided
        if decided is None:
            return
        decided.over = True
        decided.facts = replace(
            decided.facts,
            outcome=outcome,
            took_s=took_s,
            tick_interval_s=tick_interval_s,
            unowned=unowned(),
        )
        if outcome != "failed" or decided.ordered is not None:
            self._write_round()

    def _write_round(self) -> None:
        decided, self._decided = self._decided, None
        if decided is None:
            return
        plan, view, first_move = decided.plan, decided.view, self._moves + 1
        self._moves += len(plan.moves) + len(plan.observed)
        ordered = decided.ordered or frozenset()
        facts = replace(
            decided.facts,
            outcome="moved" if ordered else decided.facts.outcome or "failed",
            not_ordered={move.bundle for move in plan.moves} - ordered,
        )
        self.history.offer(
            Stream.ROUNDS, facts.at_ms, lambda: round_records(facts, view, plan, first_move)
        )

    def assessed(self, found: Optimality) -> None:
        self._record(OPTIMALITY, found)

    def shadowed(self, strategy: str, shadowed: Shadowed) -> None:
        self._record(SHADOW, shadowed, strategy=strategy)

    def placed(self, moves: Sequence[Move], view: ClusterView, planner: Planner) -> None:
        if not moves:
            return
        first_move = self._moves + 1
        self._moves += len(moves)
        at_ms = self.wall_ms()
        self.history.offer(
            Stream.ROUNDS,
            at_ms,
            lambda: [
                move_record(
                    move,
                    "placed" if move.source is None else "moved",
                    view=view,
                    planner=planner,
                    at_ms=at_ms,
                    epoch=self.epoch,
                    number=0,
                    move_number=number,
                )
                for number, move in enumerate(moves, start=first_move)
            ],
        )

    def task_changed(self, task: BundleTask) -> None:
        if not self._began:
            return
        at_ms, now_s = self.wall_ms(), self.monotonic_s()
        self.history.offer(Stream.ROUNDS, at_ms, lambda: task_records(at_ms, task, now_s))

    def cut(self, action: str, whole: BundleId, parts: Sequence[BundleId]) -> None:
        # Averages were divided or summed: a replay has to restart from a new base.
        self._based_on = None
        self._record(CUT, action=action, whole=whole, parts=list(parts))

    # --- within ----------------------------------------------------------------------------

    def _record(self, kind: Kind, source: object = None, **given: Any) -> None:
        at_ms, term = self.wall_ms(), {"epoch": self.epoch, "round": self._rounds}
        self.history.offer(
            Stream.ROUNDS, at_ms, lambda: [record_of(kind, at_ms, source, **term, **given)]
        )


_SETTLED_S: Final = 10.0
"""Delay after a move from which a report covers only the time after it."""

_MOST_KEPT: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGain:
    """The effect of a task: the largest use of its source before, and as expected after it.

    ``after`` is what the source's first report after the end of the task says, None before
    that: other moves and changes of traffic count in it.
    """

    before: float
    expected: float
    after: float | None = None


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
                before, totals = _largest(load), load.totals
                share = (
                    _share(task.influence.msgs_per_s, totals.msgs_per_s)
                    + _share(task.influence.bytes_per_s, totals.bytes_per_s)
                ) / 2
                self._gains[task.number] = TaskGain(before=before, expected=before * (1.0 - share))
                while len(self._gains) > _MOST_KEPT:
                    oldest = next(iter(self._gains))
                    del self._gains[oldest]
                    self._ended.pop(oldest, None)
        elif task.state is TaskState.SERVING and task.number in self._gains:
            self._ended[task.number] = task

    def updated(self) -> Mapping[int, TaskGain]:
        loads = self._tracker.loads
        for number, task in list(self._ended.items()):
            load = None if task.source is None else loads.get(task.source)
            if load is None:
                del self._ended[number]
            elif task.ended_at_s is not None and load.seen_s >= task.ended_at_s + _SETTLED_S:
                self._gains[number] = replace(self._gains[number], after=_largest(load))
                del self._ended[number]
        return self._gains


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 0 else 0.0


def _largest(load: BrokerLoad) -> float:
    known = [load.usage[one] / load.limit[one] for one in MOVING if load.limit[one] > 0]
    return max(known, default=0.0)


def show_live_tasks(metrics: Metrics, tasks: Iterable[BundleTask], clock: Clock) -> None:
    def oldest_age_s() -> float:
        now_s = clock.monotonic_s()
        return now_s - min((one.proposed_at_s for one in tasks), default=now_s)

    metrics.oldest_task_age_seconds.set_function(oldest_age_s)
    metrics.moves_in_flight.set_function(lambda: sum(one.relocates for one in tasks))


def count_task(metrics: Metrics, task: BundleTask) -> None:
    if task.state.ended:
        metrics.tasks_ended.labels(task.kind.value, task.state.value).inc()
    own = task.relocates and task.asked_by is not AskedBy.RECONCILIATION
    if own and task.state is TaskState.SERVING and task.ended_at_s and task.ordered_at_s:
        metrics.hand_over_duration_seconds.observe(task.ended_at_s - task.ordered_at_s)

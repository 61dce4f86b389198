from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from loadmanager.attach.observation import Observation
from loadmanager.attach.sampling import SampledLoads
from loadmanager.attach.strategy import DecidedRound, Strategy
from loadmanager.core.bundle_task import BundleTask, TaskKind, TaskState
from loadmanager.core.cluster import ClusterView
from loadmanager.core.history.records import (
    Record,
    cut_record,
    task_records,
    term_record,
    tick_record,
)
from loadmanager.core.history.rounds import RoundFacts, bundles_records, round_records
from loadmanager.core.history.schema import Stream
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Reason, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.policies import Policies
from loadmanager.core.round_memory import shifted
from loadmanager.core.splitting.cutting import parts_at
from loadmanager.ports.history import HistorySink, offer_report


@dataclass(slots=True)
class _Decided:
    """A round whose moves are under way; ``ordered`` are the bundles with an order."""

    facts: RoundFacts
    view: ClusterView
    plan: Plan
    ordered: set[BundleId] = field(default_factory=set)


@dataclass(slots=True)
class AttachHistory:
    """Writes the reports, rounds, moves and tasks of one controller's term.

    A window is a tick, and a round if the strategy decided in it. A round is written after its
    moves have ended: at the next window, or at the end of the term. Bases are the first round,
    every ``base_every_rounds``-th after it, and each one after a change of the planner's settings
    or of the policies.
    """

    sink: HistorySink
    strategy: Strategy
    loads: SampledLoads
    interval_s: float
    balances: bool
    epoch: int = 0
    base_every_rounds: int = 60
    _reported_s: dict[BrokerId, float] = field(default_factory=dict)
    _decided: _Decided | None = None
    _based_on: tuple[Planner, Policies] | None = None
    _rounds: int = 0
    _moves: int = 0

    def began(self) -> None:
        at_ms = self.loads.wall_ms()
        self._record(at_ms, [term_record(at_ms, self.epoch, "began")])

    def ended(self) -> None:
        self._write_round()
        at_ms = self.loads.wall_ms()
        self._record(at_ms, [term_record(at_ms, self.epoch, "ended")])

    def round(self, seen: Observation, held: str) -> None:
        """Write the reports of one window, and keep its decision for `_write_round`."""
        self._write_round()
        self._write_window(seen)
        decided = self.strategy.decided
        if decided is None:
            return
        self._rounds += 1
        plan = self._acted(decided.plan, seen, held)
        facts = RoundFacts(
            at_ms=self.loads.at_ms,
            epoch=self.epoch,
            number=self._rounds,
            outcome="observed" if plan.observed else "quiet",
            took_s=None,
            tick=self.loads.ticks,
            planner=decided.planner,
            steering="active" if self.balances else "observing",
            tick_interval_s=self.interval_s,
            reported_at_ms=dict.fromkeys(self.loads.taken, self.loads.at_ms),
        )
        if self._is_base(decided):
            offset_s = facts.at_ms / 1000 - decided.view.now_s
            facts = replace(
                facts,
                memory=shifted(decided.memory, offset_s),
                averages=self.loads.tracker.averages(),
            )
            bundles, view = facts, decided.view
            self.sink.offer(Stream.ROUNDS, facts.at_ms, lambda: bundles_records(bundles, view))
        self._decided = _Decided(facts, decided.view, plan)

    def _acted(self, plan: Plan, seen: Observation, held: str) -> Plan:
        """Return a plan with its moves as made or observed, and the refusals of ``seen`` added."""
        acts = self.balances and not held
        return replace(
            plan,
            moves=plan.moves if acts else (),
            observed=() if acts else plan.moves,
            refusals=(*plan.refusals, *_refusals(seen, held)),
        )

    def _is_base(self, decided: DecidedRound) -> bool:
        former, self._based_on = self._based_on, (decided.planner, decided.view.policies)
        return former != self._based_on or (self._rounds - 1) % self.base_every_rounds == 0

    def _write_window(self, seen: Observation) -> None:
        loads = self.loads
        for gone in loads.left:
            self._reported_s.pop(gone, None)
        for broker, report in loads.taken.items():
            former_s = self._reported_s.get(broker)
            self._reported_s[broker] = loads.now_s
            interval_s = None if former_s is None else loads.now_s - former_s
            offer_report(
                self.sink,
                report,
                loads.at_ms,
                due="first" if interval_s is None else "age",
                interval_s=interval_s,
                window_s=seen.samples[broker].window_s,
            )
        tick = tick_record(
            loads.at_ms,
            epoch=self.epoch,
            number=self._rounds,
            tick=loads.ticks,
            sampled=True,
            taken=dict.fromkeys(loads.taken, loads.at_ms),
            left=loads.left,
        )
        self._record(loads.at_ms, [tick])

    def task(self, task: BundleTask) -> None:
        """Write a task in its new state, and the parts of a finished split."""
        at_ms, now_s = self.loads.wall_ms(), self.loads.monotonic_s()
        if self._decided is not None and task.state is TaskState.ORDERED:
            self._decided.ordered.add(task.bundle)
        records = task_records(at_ms, task, now_s)
        if task.kind is TaskKind.SPLIT and task.state is TaskState.SERVING:
            (cut,) = task.splits[task.bundle].positions
            parts = parts_at(task.bundle, cut)
            # The averages continue with the parts, so a replay needs a new base.
            self._based_on = None
            records.append(
                cut_record(at_ms, epoch=self.epoch, action="split", whole=task.bundle, parts=parts)
            )
        self._record(at_ms, records)

    def _write_round(self) -> None:
        decided, self._decided = self._decided, None
        if decided is None:
            return
        plan, first_move = decided.plan, self._moves + 1
        self._moves += len(plan.moves) + len(plan.observed)
        facts = replace(
            decided.facts,
            outcome="moved"
            if decided.ordered
            else "failed"
            if plan.moves
            else decided.facts.outcome,
            not_ordered={one.bundle for one in plan.moves} - decided.ordered,
        )
        self.sink.offer(
            Stream.ROUNDS,
            facts.at_ms,
            lambda: round_records(facts, decided.view, plan, first_move),
        )

    def _record(self, at_ms: int, records: Iterable[Record]) -> None:
        self.sink.offer(Stream.ROUNDS, at_ms, lambda: records)


def _refusals(seen: Observation, held: str) -> tuple[Refusal, ...]:
    """Return why the round, brokers without a sample and bundles with traffic were left alone."""
    found = [Refusal(broker, Reason.LOAD_UNKNOWN, why) for broker, why in seen.missing.items()]
    found += [Refusal(bundle, Reason.NOT_OFFERED, why) for bundle, why in seen.staying.items()]
    if held:
        return (Refusal("", Reason.COOLING_DOWN, held), *found)
    if seen.proposals or seen.refusals:
        return tuple(found)
    return (Refusal("", Reason.WITHIN_THRESHOLD, seen.verdict), *found)

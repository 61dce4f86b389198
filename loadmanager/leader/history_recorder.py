from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from loadmanager.common.context import Context
from loadmanager.core.bundle_task import BundleTask
from loadmanager.core.cluster import ClusterView
from loadmanager.core.history.records import (
    Record,
    cut_record,
    optimality_record,
    shadow_record,
    task_records,
    term_record,
    tick_record,
)
from loadmanager.core.history.rounds import RoundFacts, bundles_records, move_record, round_records
from loadmanager.core.history.schema import Stream
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.optimality import Optimality
from loadmanager.core.plan import Move
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.policies import Policies
from loadmanager.core.round_memory import RoundMemory, shifted
from loadmanager.core.shadow import Shadowed
from loadmanager.leader.sight import Sight


@dataclass(slots=True)
class _Decided:
    """A round: ``ordered`` are its moves that stand as orders, None while unknown."""

    facts: RoundFacts
    view: ClusterView
    plan: Plan
    ordered: frozenset[BundleId] | None = None
    over: bool = False


class HistoryRecorder:
    """Passes the records of one term to the sink; does nothing if history is disabled.

    Base rounds are the first round, every `base_every_rounds`-th round, and the first one after
    a change of settings, constraints or bundle ranges.
    """

    def __init__(
        self, context: Context, epoch: int, tracker: LoadTracker, *, base_every_rounds: int
    ) -> None:
        self._on = context.history.wants(Stream.ROUNDS)
        self._context = context
        self._epoch = epoch
        self._tracker = tracker
        self._base_every_rounds = base_every_rounds
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
        self._record(lambda at_ms: [term_record(at_ms, self._epoch, "began")])

    def ended(self) -> None:
        if self._began:
            self._began = False
            self._write_round()
            self._record(lambda at_ms: [term_record(at_ms, self._epoch, "ended")])

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
        tick, number = self._ticks, self._rounds
        self._record(
            lambda at_ms: [
                tick_record(
                    at_ms,
                    epoch=self._epoch,
                    number=number,
                    tick=tick,
                    sampled=sampled,
                    taken=taken,
                    left=left,
                )
            ]
        )

    # --- decisions -----------------------------------------------------------------------

    def began_round(
        self,
        sight: Sight,
        memory: RoundMemory,
        *,
        planner: Planner,
        steering: str,
        doubtful: bool,
    ) -> None:
        """Note the input of a round, and its ``memory``.

        Call it before the round is decided: ticks in the meantime apply on top of these
        averages.
        """
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
            at_ms=self._context.clock.wall_ms(),
            epoch=self._epoch,
            number=self._rounds,
            outcome="",
            took_s=None,
            tick=self._ticks,
            planner=planner,
            steering=steering,
            session_doubtful=doubtful,
            reported_at_ms=self._reported_at_ms(sight),
        )
        if self._is_base(sight.policies, planner):
            offset_s = facts.at_ms / 1000 - sight.now_s
            memory = shifted(memory, offset_s)
            facts = replace(facts, memory=memory, averages=self._tracker.averages())
            # Recorded at once: ticks before the end of the round apply on top of these.
            bundles = facts
            self._context.history.offer(
                Stream.ROUNDS, facts.at_ms, lambda: bundles_records(bundles, sight.view())
            )
        self._facts = facts

    def decided(self, view: ClusterView, plan: Plan) -> None:
        facts, self._facts = self._facts, None
        if facts is not None:
            self._decided = _Decided(facts, view, plan)

    def orders_known(self, ordered: Collection[BundleId]) -> None:
        """Note which moves of the last decided round stand as orders."""
        decided = self._decided
        if decided is not None:
            decided.ordered = frozenset(ordered)
            if decided.over:
                self._write_round()

    def round_over(
        self,
        outcome: str,
        *,
        took_s: float,
        tick_interval_s: float,
        unowned: Callable[[], Sequence[BundleId]],
    ) -> None:
        """Record the last decided round and its outcome.

        If the reply to its orders was lost, it is recorded by `orders_known`.
        """
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
        self._context.history.offer(
            Stream.ROUNDS, facts.at_ms, lambda: round_records(facts, view, plan, first_move)
        )

    def assessed(self, found: Optimality) -> None:
        epoch, number = self._epoch, self._rounds
        self._record(lambda at_ms: [optimality_record(at_ms, epoch, number, found)])

    def shadowed(self, strategy: str, shadowed: Shadowed) -> None:
        epoch, number = self._epoch, self._rounds
        self._record(lambda at_ms: [shadow_record(at_ms, epoch, number, strategy, shadowed)])

    def placed(self, moves: Sequence[Move], view: ClusterView, planner: Planner) -> None:
        if not moves:
            return
        first_move = self._moves + 1
        self._moves += len(moves)
        self._record(
            lambda at_ms: [
                move_record(
                    move,
                    "placed" if move.source is None else "moved",
                    view=view,
                    planner=planner,
                    at_ms=at_ms,
                    epoch=self._epoch,
                    number=0,
                    move_number=number,
                )
                for number, move in enumerate(moves, start=first_move)
            ]
        )

    def task_changed(self, task: BundleTask) -> None:
        if not self._began:
            return
        now_s = self._context.clock.monotonic_s()
        self._record(lambda at_ms: task_records(at_ms, task, now_s))

    def cut(self, action: str, whole: BundleId, parts: Sequence[BundleId]) -> None:
        # Averages were divided or summed: a replay has to restart from a new base.
        self._based_on = None
        self._record(
            lambda at_ms: [
                cut_record(at_ms, epoch=self._epoch, action=action, whole=whole, parts=parts)
            ]
        )

    # --- within ----------------------------------------------------------------------------

    def _is_base(self, policies: Policies, planner: Planner) -> bool:
        former, self._based_on = self._based_on, (planner, policies)
        changed = former is None or former[0] != planner or former[1] is not policies
        return changed or (self._rounds - 1) % self._base_every_rounds == 0

    def _reported_at_ms(self, sight: Sight) -> dict[BrokerId, int]:
        known = self._context.cluster_state.loads.reports
        names = sight.tally.started_at_ms
        return {name: known[name].report.reported_at_ms for name in names if name in known}

    def _record(self, make: Callable[[int], Iterable[Record]]) -> None:
        """Offer records to the sink, which ignores them if it does not write this stream."""
        at_ms = self._context.clock.wall_ms()
        self._context.history.offer(Stream.ROUNDS, at_ms, lambda: make(at_ms))

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import structlog

from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings, sleep_interruptibly
from loadmanager.core.balance_course import BalancePoint
from loadmanager.core.balancing import BalancingMode
from loadmanager.core.bundle_task import Dispatched
from loadmanager.core.cluster import ClusterView
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.optimality import Divided, Optimality
from loadmanager.core.plan import cut_short
from loadmanager.core.planner import EARLY_ROUND_S, Plan, Planner
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.shadow import Seen, Shadow, after_round
from loadmanager.leader.decisions import Decider
from loadmanager.leader.election import Deposed, Term, TermGivenUp
from loadmanager.leader.leader_state import LeaderState
from loadmanager.leader.placement import PlacementWorker
from loadmanager.leader.reconciliation import Reconciler
from loadmanager.leader.records import HistoryRecorder
from loadmanager.leader.splits import Splits
from loadmanager.leader.task_controller import TaskController
from loadmanager.ports.coordination import Connection, CoordinationError
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()


_SHARE_OF_TIME: Final = 0.05
"""Maximum fraction of a leader's time for this; rounds that follow too soon are skipped."""

_MOST_KEPT: Final = 720
"""Number of rounds kept: one hour at one round every five seconds."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """How far the cluster was from the best possible at a round of the leader's term."""

    optimality: Optimality
    round: int
    at_ms: int


@dataclass(slots=True)
class OptimalityWatch:
    """Computes the distance from the best possible after the orders of a round are written.

    So it delays no move. The results are exported as metrics, recorded in history and kept:
    ``last`` is that of this term's last round, ``course`` those of the last hour, which the next
    leader inherits. ``shadows`` are those of this term by the classes of their strategies; each
    starts from the leader's view when it is configured or the term begins.
    """

    context: Context
    decider: Decider
    recorder: HistoryRecorder
    last: Assessment | None = None
    course: deque[BalancePoint] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))
    shadows: dict[str, Shadow] = field(default_factory=dict)
    _planners: dict[str, Planner] = field(default_factory=dict)
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    _round: tuple[ClusterView, Plan] | None = None
    _not_before_s: float = float("-inf")

    def decided(self, view: ClusterView, plan: Plan) -> None:
        self._round = (view, plan)

    async def round_over(self) -> None:
        """Compute the optimality of the round and run the shadows, unless it is too soon."""
        done, self._round = self._round, None
        began_s = self.context.clock.monotonic_s()
        if done is None or began_s < self._not_before_s:
            return
        view, plan = done
        planner, memory = self.decider.planner, self.decider.memory
        found, parts = None, None
        try:
            found, parts = await self.context.computing.compute(_assessed, planner, view, memory)
        except Exception as error:  # noqa: BLE001 - a failed assessment does not fail the round
            self.context.unexpected.caught("round", error)
        if found is None or parts is None:
            self._show(None)
        else:
            self._show(found)
            seen = Seen(view=view, divided=parts, optimality=found, moves=plan.moves)
            await self._run_shadows(seen)
        ended_s = self.context.clock.monotonic_s()
        self._not_before_s = ended_s + (ended_s - began_s) / _SHARE_OF_TIME

    def _show(self, found: Optimality | None) -> None:
        self.context.metrics.optimality.found(found)
        past = self.decider.decision_log
        self.last = None
        if found is not None:
            self.last = Assessment(found, round=past.rounds, at_ms=past.last_round_at_ms)
            self.course.append(
                BalancePoint(
                    at_ms=self.last.at_ms,
                    gap=found.gap_within_policies,
                    largest=found.largest,
                    bound=found.bound_within_policies,
                )
            )
            self.recorder.assessed(found)

    async def _run_shadows(self, seen: Seen) -> None:
        wanted = self.decider.settings.now.shadows
        for strategy in self._planners.keys() - wanted.keys():
            self._forget(strategy)
        for strategy, configured in wanted.items():
            if self._planners.get(strategy) != configured:
                self.shadows[strategy], self._planners[strategy] = Shadow(), configured
        for strategy, planner in self._planners.items():
            try:
                shadow = await self.context.computing.compute(
                    after_round, self.shadows[strategy], planner, seen, self._rng
                )
            except Exception as error:  # noqa: BLE001 - no shadow disturbs the leader
                self.context.unexpected.caught("round", error)
                continue
            self.shadows[strategy] = shadow
            self.context.metrics.shadows.after_round(strategy, shadow)
            self.recorder.shadowed(strategy, shadow.rounds[-1])

    def _forget(self, strategy: str) -> None:
        del self._planners[strategy], self.shadows[strategy]
        self.context.metrics.shadows.forget(strategy)

    def end(self) -> None:
        for strategy in list(self._planners):
            self._forget(strategy)
        self.context.metrics.optimality.found(None)


def _assessed(
    planner: Planner, view: ClusterView, memory: RoundMemory
) -> tuple[Optimality | None, Divided | None]:
    return planner.optimality(view, memory), planner.divided(view, memory)


MOST_FAILED_ROUNDS: Final = 3


def report_plan(metrics: Metrics, strategy: str, plan: Plan, epoch: int) -> None:
    for move in (*plan.moves, *plan.observed):
        metrics.moves.labels(strategy, move.cause.value).inc()
        log.info(
            "bundle.move.decided" if plan.moves else "bundle.move.observed",
            bundle=move.bundle,
            source=move.source,
            target=move.target,
            cause=move.cause.value,
            epoch=epoch,
        )
    metrics.rounds_cut_short.inc(bool(cut_short(plan.refusals)))
    for refusal in plan.refusals:
        metrics.refusals.labels(strategy, refusal.reason.value).inc()
        log.debug(
            "round.subject.refused",
            subject=refusal.subject or "cluster",
            reason=refusal.reason.value,
            detail=refusal.detail,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The ticks and rounds of one term; if ``brokers_own``, nothing is repaired."""

    context: Context
    term: Term
    settings: RuntimeSettings
    tracker: LoadTracker
    decider: Decider
    tasks: TaskController
    splits: Splits
    placement_worker: PlacementWorker
    reconciler: Reconciler
    leader_state: LeaderState
    recorder: HistoryRecorder
    optimality_watch: OptimalityWatch
    brokers_own: bool = False

    async def tick(self) -> None:
        while True:
            await self._pause(lambda: self.settings.now.rhythm.tick_interval_s)
            try:
                self.tracker.weigh(self.settings.now.planner.weights)
                await self.decider.take_reports_in_turns()
                self.tracker.sample()
                self.recorder.ticked()
                self.tasks.observe()
                if not self.brokers_own:
                    await self.splits.adopt_parts()
            except CoordinationError as error:
                log.warning("leadership.tick.failed", error=str(error))
            except Deposed:
                raise
            except Exception as error:  # noqa: BLE001 - no error of one tick ends the sidecar
                self.context.unexpected.caught("tick", error)

    async def find_stray_locks(self) -> None:
        while True:
            await self._pause(lambda: self.settings.now.rhythm.round_interval_s)
            try:
                await self.reconciler.find_strays()
            except CoordinationError as error:
                log.debug("leadership.locks.unread", error=str(error))
            except Exception as error:  # noqa: BLE001 - no error of one look ends the sidecar
                self.context.unexpected.caught("stray locks", error)

    async def run(self) -> None:
        """Raises `Deposed`, or `TermGivenUp`: rounds fail for an unknown reason."""
        failed_in_a_row = 0
        while True:
            self.context.liveness.begun("round", lambda: self.settings.now.rhythm.round_interval_s)
            await self._until_due()
            started_s = self.context.clock.monotonic_s()
            unexpected = False
            try:
                outcome = await self._round_or_repeated()
            except CoordinationError as error:
                outcome = "failed"
                log.warning("round.orders.failed", error=str(error))
            except Deposed:
                raise
            except Exception as error:  # noqa: BLE001 - no error of one round ends the sidecar
                outcome, unexpected = "failed", True
                self.context.unexpected.caught("round", error)
            failed_in_a_row = failed_in_a_row + 1 if unexpected else 0
            if failed_in_a_row == MOST_FAILED_ROUNDS:
                raise TermGivenUp(f"{failed_in_a_row} rounds in a row failed unexpectedly")
            self.context.metrics.rounds.labels(outcome).inc()
            took_s = self.context.clock.monotonic_s() - started_s
            self.context.metrics.round_duration_seconds.observe(took_s)
            self.recorder.round_over(
                outcome,
                took_s=took_s,
                tick_interval_s=self.settings.now.rhythm.tick_interval_s,
                unowned=lambda: self.placement_worker.unowned,
            )
            await self.optimality_watch.round_over()

    async def _pause(self, interval_s: Callable[[], float]) -> None:
        await sleep_interruptibly(self.context.clock, interval_s, self.context.clock.sleep)

    async def _until_due(self) -> None:
        looked_s = self.context.clock.monotonic_s()

        async def early(nap_s: float) -> bool:
            nonlocal looked_s
            await self.context.clock.sleep(nap_s)
            if self.context.clock.monotonic_s() < looked_s + EARLY_ROUND_S:
                return False
            looked_s = self.context.clock.monotonic_s()
            try:
                return await self.decider.due_early()
            except Exception as error:  # noqa: BLE001 - the round at the interval's end says more
                self.context.unexpected.caught("round", error)
                return False

        await sleep_interruptibly(
            self.context.clock, lambda: self.settings.now.rhythm.round_interval_s, early
        )

    async def _round_or_repeated(self) -> str:
        try:
            return await self._round()
        except (CoordinationError, Deposed):
            raise
        except Exception as error:
            if not self.decider.quarantine_new(error):
                raise
            self.context.unexpected.caught("round", error)
        return await self._round()

    async def _round(self) -> str:
        outcome = await self._decided_and_ordered()
        self.decider.round_succeeded()
        return outcome

    async def _decided_and_ordered(self) -> str:
        doubtful = self.context.coordination.session.connection is not Connection.CONNECTED
        if not doubtful:
            await self.tasks.confirm()
        decided = await self.decider.round(session_doubtful=doubtful)
        plan = decided.plan
        self.optimality_watch.decided(decided.view, plan)
        strategy = type(self.decider.planner.shedder).__name__
        report_plan(self.context.metrics, strategy, plan, self.term.epoch)
        cuts = self.decider.steering.balancing.mode is BalancingMode.ACTIVE
        if cuts and not doubtful:
            await self.splits.order_oversized()
        found: Dispatched | None = None
        if plan.moves:
            state = await self.leader_state.write(plan.memory)
            found = await self.decider.order_round(decided, state)
        if found is None or not found.piggybacked:
            await self.leader_state.leave(self.decider.memory)
        if not (doubtful or self.brokers_own):
            await self.reconciler.reconcile()
        if found is None:
            return "observed" if plan.observed else "quiet"
        if found.too_large is not None:
            return "failed"
        sources = {move.source for move in plan.moves if move.bundle in found.ordered}
        self.context.metrics.bundles_unloaded(len(found.ordered), len(sources))
        return "moved" if found.ordered else "refused"

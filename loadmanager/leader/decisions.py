"""Decides on the view of the cluster, without brokers whose reports may have made a round fail.

Figures are bounded where they are read, so no report should make a decision raise an exception.
If one does, it would stop balancing for the whole cluster, under this leader and the next. The
failed round is repeated without the brokers whose reports are new since the last that succeeded.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import structlog

from loadmanager.common.cluster_state import KnownLoads
from loadmanager.common.constraints import Constraints
from loadmanager.common.context import Context
from loadmanager.common.documents import BalancingModeWatch
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.averages import BundleAverages
from loadmanager.core.balancing import Balancing, steered
from loadmanager.core.bundle_task import AskedBy, Dispatched, task_of
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.memory import RoundMemory
from loadmanager.core.optimality import BalancePoint, Optimality
from loadmanager.core.plan import Cause, Move, Reason, Refusal, cut_short
from loadmanager.core.planner import NONE_LEAVE, Plan, Planner
from loadmanager.core.playback import Decided, Playback
from loadmanager.core.rates import Rates
from loadmanager.core.shadow import Seen, Shadow, after_round
from loadmanager.leader.reconciliation import Reconciler
from loadmanager.leader.records import DecisionLog, HistoryRecorder, ViewInput
from loadmanager.leader.task_controller import TaskController
from loadmanager.ports.coordination import SetData
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()


REPORTS_A_TURN: Final = 8
"""How many reports are taken in one after the other in a turn of the event loop: 0.7 ms with 100
bundles each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The view and memory of the leader of ``epoch`` at one time, on its own clock.

    ``unowned`` are about to be placed; ``quarantined`` are excluded, with their report's error.
    """

    epoch: int
    view: ClusterView
    averages: Mapping[BundleId, BundleAverages]
    memory: RoundMemory
    planner: Planner
    balancing: Balancing
    unowned: tuple[BundleId, ...]
    quarantined: Mapping[BrokerId, str] = field(default_factory=dict)

    @property
    def steered(self) -> Planner:
        return steered(self.planner, self.balancing.mode)


_MUSTS: Final = frozenset(
    {Reason.DRAINING, Reason.REPORT_STALE, Reason.DOMAIN_UNSUPPORTED, Reason.ISOLATED}
)


@dataclass(frozen=True, slots=True)
class Choices:
    """Moves to next owners, and why other bundles have none, when the orders were ``assigned``."""

    moves: tuple[Move, ...]
    refusals: Mapping[BundleId, tuple[Refusal, ...]]
    view: ClusterView
    assigned: Mapping[BundleId, BrokerId]


@dataclass(slots=True, eq=False)
class Decider:
    """Takes in reports and decides on views of them, for one term.

    ``_quarantined`` has the version and the error of each report that is left out. ``_used`` and
    ``_sound`` are the versions of the reports in the round under way, and in the last one that
    succeeded.
    """

    context: Context
    settings: RuntimeSettings
    tasks: TaskController
    constraints: Constraints
    tracker: LoadTracker
    recorder: HistoryRecorder
    reconciler: Reconciler
    decision_log: DecisionLog
    steering: BalancingModeWatch
    rng: np.random.Generator
    _taken: dict[BrokerId, KnownLoads] = field(default_factory=dict, init=False)
    _quarantined: dict[BrokerId, tuple[int, str]] = field(default_factory=dict, init=False)
    _used: Mapping[BrokerId, int] = field(default_factory=dict, init=False)
    _sound: Mapping[BrokerId, int] = field(default_factory=dict, init=False)
    memory: RoundMemory = field(default_factory=RoundMemory, init=False)
    round_rng: np.random.Generator = field(init=False)
    """Only for rounds: placements use the other generator at the same time."""

    def __post_init__(self) -> None:
        (self.round_rng,) = self.rng.spawn(1)

    @property
    def planner(self) -> Planner:
        return self.settings.now.planner

    @property
    def steered(self) -> Planner:
        return steered(self.planner, self.steering.balancing.mode)

    def take_reports(self) -> None:
        for _broker in self._take_changed():
            pass
        reports = self.context.cluster_state.loads.reports.keys() - self._quarantined
        for broker in self._taken.keys() - reports:
            del self._taken[broker]
            self.tracker.forget(broker, self.context.clock.monotonic_s())
            self.recorder.forgot(broker)

    async def take_reports_in_turns(self) -> None:
        """Do as `take_reports`, and let other tasks of the event loop run meanwhile."""
        for number, _broker in enumerate(self._take_changed(), 1):
            if number % REPORTS_A_TURN == 0:
                await asyncio.sleep(0)
        self.take_reports()

    def _take_changed(self) -> Iterator[BrokerId]:
        """Add the reports not taken yet, and yield the broker of each; others may come between."""
        self._readmit()  # Brokers that reported again are not left out any more.
        reports = self.context.cluster_state.loads.reports
        for broker in list(reports):
            known = reports.get(broker)
            taken = known is self._taken.get(broker)
            if known is None or taken or broker in self._quarantined:
                continue
            self._taken[broker] = known
            self.tracker.report(known.report, known.seen_at_s)
            self.recorder.took(broker, known.report.reported_at_ms)
            yield broker

    def view(self, afresh: Collection[BundleId] = ()) -> ClusterView:
        view_input = self.view_input()
        ordered = view_input.assigned
        if afresh:
            ordered = {bundle: to for bundle, to in ordered.items() if bundle not in afresh}
        return replace(view_input, assigned=ordered).view()

    def view_input(self) -> ViewInput:
        self.take_reports()
        return ViewInput(
            now_s=self.context.clock.monotonic_s(),
            tally=self.tracker.tally(),
            assigned=dict(self.tasks.assigned),
            policies=self.constraints.policies,
            excluded=self.reconciler.excluded,
        )

    # --- brokers whose reports may have made a round fail ------------------------------

    @property
    def quarantined(self) -> Mapping[BrokerId, str]:
        return {broker: why for broker, (_, why) in self._quarantined.items()}

    def _readmit(self) -> None:
        """Readmit the brokers that have reported again or left."""
        known = self.context.cluster_state.loads.reports
        for broker, (mzxid, _) in list(self._quarantined.items()):
            if broker not in known or known[broker].mzxid != mzxid:
                del self._quarantined[broker]
                log.info("broker.report.retried", broker=broker)
        self.context.metrics.brokers_left_out.set(len(self._quarantined))

    def round_succeeded(self) -> None:
        self._sound = self._used

    def quarantine_new(self, error: Exception) -> bool:
        """Leave out the brokers with new reports after a failed round, if others have none new."""
        new = [name for name, mzxid in self._used.items() if self._sound.get(name) != mzxid]
        why = f"{type(error).__name__}: {error}"
        if not new or len(new) == len(self._used):
            log.error("broker.report.cause_not_found", brokers=len(self._used), error=why)
            return False
        for broker in new:
            self._quarantined[broker] = (self._used[broker], why)
            log.error("broker.report.left_out", broker=broker, error=why)
        self.context.metrics.brokers_left_out.set(len(self._quarantined))
        return True

    def end(self) -> None:
        self._quarantined.clear()
        self.context.metrics.brokers_left_out.set(0)

    # --- decisions -----------------------------------------------------------------------

    async def round(self, *, session_doubtful: bool) -> tuple[Decided, Mapping[BundleId, BrokerId]]:
        """Return what a round decides, and the orders that it is based on."""
        self._readmit()
        known = self.context.cluster_state.loads.reports
        self._used = {
            name: one.mzxid for name, one in known.items() if name not in self._quarantined
        }
        view_input, former, planner = self.view_input(), self.memory, self.steered
        self.recorder.began_round(
            view_input.now_s,
            view_input.view,
            former,
            planner=planner,
            policies=view_input.policies,
            steering=self.steering.balancing.mode.value,
            reported_at_ms={
                name: known[name].report.reported_at_ms
                for name in sorted(self.tracker.brokers)
                if name in known
            },
            doubtful=session_doubtful,
        )
        decided = await self.context.computing.compute(
            decide_round, planner, view_input, former, self.round_rng, session_doubtful
        )
        view, plan = decided.view, decided.plan
        plan = replace(plan, memory=plan.memory.with_changes(former, self.memory))
        self.recorder.decided(view, plan)
        self.memory = plan.memory_before_orders(self.memory)
        self.decision_log.round_done(plan, view.brokers.names)
        return replace(decided, plan=plan), view_input.assigned

    async def due_early(self) -> bool:
        view_input, memory, planner = self.view_input(), self.memory, self.steered
        compute = self.context.computing.compute
        return await compute(lambda: planner.due_early(view_input.view(), memory))

    async def order_round(
        self, decided: Decided, assigned: Mapping[BundleId, BrokerId], extra_write: SetData
    ) -> Dispatched:
        """Order the moves that are not outdated; raises as `TaskController.dispatch`."""
        plan, outdated = decided.plan, self._outdated(decided)
        for bundle, why in outdated.items():
            log.info("bundle.move.outdated", bundle=bundle, why=why)
        moves = [move for move in plan.moves if move.bundle not in outdated]

        def known(found: Dispatched) -> None:
            self.memory = plan.memory_after_orders(self.memory, found.ordered)
            self.decision_log.moved(move for move in plan.moves if move.bundle in found.ordered)
            self.recorder.orders_known(found.ordered)

        choices = Choices(tuple(moves), {}, decided.view, assigned)
        return await self._dispatch(choices, AskedBy.BALANCING, known, extra_write)

    async def order(
        self, choices: Choices, asked_by: AskedBy, extra_write: SetData | None = None
    ) -> Dispatched:
        """Order choices made between two rounds; those requested have a cool-down afterwards."""

        def known(found: Dispatched) -> None:
            stand = [move for move in choices.moves if move.bundle in found.ordered]
            if asked_by is AskedBy.PEOPLE:
                self.memory = self.rested(found.ordered, choices.view.now_s)
            self.decision_log.placed(stand)
            self.recorder.placed(stand, choices.view, self.planner)

        return await self._dispatch(choices, asked_by, known, extra_write)

    async def _dispatch(
        self,
        choices: Choices,
        asked_by: AskedBy,
        known: Callable[[Dispatched], None],
        extra_write: SetData | None,
    ) -> Dispatched:
        assigned, view = choices.assigned, choices.view
        proposals = [
            task_of(
                *(move, asked_by),
                planned={b: assigned[b] for b in (move.bundle,) if b in assigned},
                influence=Rates(*view.short_rates(move.bundle).tolist()),
            )
            for move in choices.moves
        ]
        found = await self.tasks.dispatch(proposals, extra_write=extra_write, known=known)
        left = [one.source for one in choices.moves if one.source and one.bundle in found.ordered]
        self.context.metrics.bundles_unloaded(len(left), len(set(left)))
        return found

    def _outdated(self, decided: Decided) -> Mapping[BundleId, str]:
        """Return the moves whose target can no longer take them, or all, and why."""
        why = ""
        if decided.planner != self.steered:
            why = "settings or the balancing mode changed meanwhile"
        elif decided.view.policies is not self.constraints.policies:
            why = "policies changed meanwhile"
        if why:
            return dict.fromkeys((move.bundle for move in decided.plan.moves), why)
        brokers, seen = self.context.cluster_state.brokers, decided.view.brokers
        began = dict(zip(seen.names, seen.started_at_ms, strict=True))
        unassignable = {*self.reconciler.excluded, *self._quarantined}
        found: dict[BundleId, str] = {}
        for bundle, target in ((move.bundle, move.target) for move in decided.plan.moves):
            if target not in brokers:
                found[bundle] = f"{target} left meanwhile"
            elif brokers[target].registration.started_at_ms != began.get(target):
                found[bundle] = f"{target} restarted meanwhile"
            elif not brokers[target].registration.takes:
                found[bundle] = f"{target} is draining or cordoned now"
            elif target in unassignable:
                found[bundle] = f"{target} is assigned no bundles now"
        return found

    def choose(
        self,
        bundles: Collection[BundleId],
        leaving: Mapping[BundleId, BrokerId] = NONE_LEAVE,
        cause: Cause = Cause.UNOWNED,
    ) -> Choices:
        """Return a next owner for each bundle, not the one it is ``leaving``, or why none."""
        view, assigned = self.view(afresh=bundles), self.tasks.assigned
        playback = Playback(self.planner, self.rng, self.memory)
        moves, refusals = playback.place(view, bundles, leaving, cause)
        self.memory = playback.memory
        for why in refusals.values():
            self.decision_log.unplaced(why)
        return Choices(tuple(moves), refusals, view, assigned)

    def barred(
        self, bundles: Collection[BundleId], brokers: Collection[BrokerId]
    ) -> Mapping[BrokerId, str]:
        view = self.view(afresh=bundles)
        return {
            BrokerId(refusal.subject): refusal.reason.value
            for bundle in bundles
            for refusal in self.planner.filters.eligible(view, bundle).refusals()
            if refusal.reason in _MUSTS and refusal.subject in brokers
        }

    def rested(self, bundles: Collection[BundleId], now_s: float) -> RoundMemory:
        """Return the memory with a cool-down for these bundles from ``now_s``, as after a round."""
        moved_at_s = {**self.memory.moved_at_s, **dict.fromkeys(bundles, now_s)}
        return replace(self.memory, moved_at_s=moved_at_s)


def decide_round(
    planner: Planner,
    view_input: ViewInput,
    memory: RoundMemory,
    rng: np.random.Generator,
    session_doubtful: bool,
) -> Decided:
    """Return the decision of a round; draining brokers are emptied between rounds."""
    view = view_input.view()
    plan = Playback(planner, rng, memory).round(view, session_doubtful=session_doubtful)
    return Decided(planner, view, memory, plan)


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

    decider: Decider
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
        context = self.decider.context
        done, self._round = self._round, None
        began_s = context.clock.monotonic_s()
        if done is None or began_s < self._not_before_s:
            return
        view, plan = done
        planner, memory = self.decider.planner, self.decider.memory
        found, parts = None, None
        try:
            found, parts = await context.computing.compute(
                lambda: (planner.optimality(view, memory), planner.divided(view, memory))
            )
        except Exception as error:  # noqa: BLE001 - a failed assessment does not fail the round
            context.unexpected.caught("round", error)
        if found is None or parts is None:
            self._show(None)
        else:
            self._show(found)
            seen = Seen(view=view, divided=parts, optimality=found, moves=plan.moves)
            await self._run_shadows(seen)
        ended_s = context.clock.monotonic_s()
        self._not_before_s = ended_s + (ended_s - began_s) / _SHARE_OF_TIME

    def _show(self, found: Optimality | None) -> None:
        self.decider.context.metrics.optimality.found(found)
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
            self.decider.recorder.assessed(found)

    async def _run_shadows(self, seen: Seen) -> None:
        wanted = self.decider.settings.now.shadows
        for strategy in self._planners.keys() - wanted.keys():
            self._forget(strategy)
        for strategy, configured in wanted.items():
            if self._planners.get(strategy) != configured:
                self.shadows[strategy], self._planners[strategy] = Shadow(), configured
        for strategy, planner in self._planners.items():
            try:
                shadow = await self.decider.context.computing.compute(
                    after_round, self.shadows[strategy], planner, seen, self._rng
                )
            except Exception as error:  # noqa: BLE001 - no shadow disturbs the leader
                self.decider.context.unexpected.caught("round", error)
                continue
            self.shadows[strategy] = shadow
            self.decider.context.metrics.shadows.after_round(strategy, shadow)
            self.decider.recorder.shadowed(strategy, shadow.rounds[-1])

    def _forget(self, strategy: str) -> None:
        del self._planners[strategy], self.shadows[strategy]
        self.decider.context.metrics.shadows.forget(strategy)

    def end(self) -> None:
        for strategy in list(self._planners):
            self._forget(strategy)
        self.decider.context.metrics.optimality.found(None)

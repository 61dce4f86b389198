from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import numpy as np
import structlog

from loadmanager.common.balancing_mode import BalancingModeWatch
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.balancing import steered
from loadmanager.core.bundle_task import AskedBy, BundleTask, Dispatched, TaskKind
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Cause, Move, Reason, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.rates import Rates
from loadmanager.core.round_memory import RoundMemory
from loadmanager.leader.cluster_view import ViewBuilder
from loadmanager.leader.decision_log import DecisionLog
from loadmanager.leader.history_recorder import HistoryRecorder
from loadmanager.leader.sight import Sight
from loadmanager.leader.task_controller import TaskController
from loadmanager.ports.coordination import SetData
from loadmanager.ports.host import Computing

log = structlog.get_logger()

_MUSTS: Final = frozenset(
    {Reason.DRAINING, Reason.REPORT_STALE, Reason.DOMAIN_UNSUPPORTED, Reason.ISOLATED}
)
_NOBODY: Mapping[BundleId, BrokerId] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Choices:
    """The moves of bundles to their next owners, and why other bundles have none.

    ``assigned`` are the orders at the time of the decision.
    """

    moves: tuple[Move, ...]
    refusals: Mapping[BundleId, tuple[Refusal, ...]]
    view: ClusterView
    assigned: Mapping[BundleId, BrokerId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    planner: Planner
    sight: Sight
    view: ClusterView
    plan: Plan


@dataclass(slots=True, eq=False)
class Decider:
    settings: RuntimeSettings
    view_builder: ViewBuilder
    tasks: TaskController
    decision_log: DecisionLog
    steering: BalancingModeWatch
    rng: np.random.Generator
    recorder: HistoryRecorder
    computing: Computing
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

    async def round(self, *, session_doubtful: bool) -> Decided:
        """Return the decisions of one round; `order_round` orders and records its moves.

        It is computed outside the event loop from immutable values: `order_round` detects
        changes made meanwhile.
        """
        sight, former, planner = self.view_builder.sight(), self.memory, self.steered
        self.recorder.began_round(
            sight,
            former,
            planner=planner,
            steering=self.steering.balancing.mode.value,
            doubtful=session_doubtful,
        )
        view, plan = await self.computing.compute(
            decide_round, planner, sight, former, self.round_rng, session_doubtful
        )
        plan = replace(plan, memory=plan.memory.with_changes(former, self.memory))
        self.recorder.decided(view, plan)
        self.memory = plan.memory_before_orders(self.memory)
        self.decision_log.round_done(plan, view.brokers.names)
        return Decided(planner=planner, sight=sight, view=view, plan=plan)

    async def due_early(self) -> bool:
        sight, memory, planner = self.view_builder.sight(), self.memory, self.steered
        return await self.computing.compute(_due_early, planner, sight, memory)

    async def order_round(self, decided: Decided, rider: SetData) -> Dispatched:
        """Order the moves of a round; raises as `TaskController.dispatch`.

        Outdated moves are left out. Orders are recorded as soon as their outcome is known, which
        may be later if the reply was lost.
        """
        plan, outdated = decided.plan, self._outdated(decided)
        for bundle, why in outdated.items():
            log.info("bundle.move.outdated", bundle=bundle, why=why)
        moves = [move for move in plan.moves if move.bundle not in outdated]

        def known(found: Dispatched) -> None:
            self.memory = plan.memory_after_orders(self.memory, found.ordered)
            self.decision_log.moved(move for move in plan.moves if move.bundle in found.ordered)
            self.recorder.orders_known(found.ordered)

        standing = decided.sight.assigned
        proposals = _proposals(moves, decided.view, standing, AskedBy.BALANCING)
        return await self.tasks.dispatch(proposals, rider=rider, known=known)

    async def order(
        self, choices: Choices, asked_by: AskedBy, rider: SetData | None = None
    ) -> Dispatched:
        """Order choices made between two rounds; raises and records as `order_round`.

        Bundles moved by request have a cool-down afterwards, as those moved by a round.
        """

        def known(found: Dispatched) -> None:
            stand = [move for move in choices.moves if move.bundle in found.ordered]
            if asked_by is AskedBy.PEOPLE:
                self.memory = self.rested(found.ordered, choices.view.now_s)
            self.decision_log.placed(stand)
            self.recorder.placed(stand, choices.view, self.planner)

        proposals = _proposals(choices.moves, choices.view, choices.assigned, asked_by)
        return await self.tasks.dispatch(proposals, rider=rider, known=known)

    def _outdated(self, decided: Decided) -> Mapping[BundleId, str]:
        why = ""
        if decided.planner != self.steered:
            why = "settings or the balancing mode changed meanwhile"
        elif decided.sight.policies is not self.view_builder.policies:
            why = "policies changed meanwhile"
        if why:
            return dict.fromkeys((move.bundle for move in decided.plan.moves), why)
        return self.view_builder.outdated(decided.sight, decided.plan.moves)

    def choose(
        self,
        bundles: Collection[BundleId],
        leaving: Mapping[BundleId, BrokerId] = _NOBODY,
        cause: Cause = Cause.UNOWNED,
    ) -> Choices:
        """Return a next owner for each bundle, or why there is none.

        A bundle is never assigned to the broker that it is ``leaving`` for ``cause``.
        """
        view = seen = self.view_builder.view(afresh=bundles)
        assigned = self.tasks.assigned
        moves: list[Move] = []
        refusals: dict[BundleId, tuple[Refusal, ...]] = {}
        for bundle in bundles:
            answer = self.planner.place(
                view,
                bundle,
                self.memory,
                self.rng,
                leaving=leaving.get(bundle),
                cause=cause,
            )
            view, self.memory = answer.view, answer.memory
            if answer.move is None:
                refusals[bundle] = answer.refusals
                self.decision_log.unplaced(answer.refusals)
            else:
                moves.append(answer.move)
        return Choices(tuple(moves), refusals, seen, assigned)

    def barred(
        self, bundles: Collection[BundleId], brokers: Collection[BrokerId]
    ) -> Mapping[BrokerId, str]:
        """Return which of these brokers may not own all of the bundles, and why.

        Only mandatory rules apply, not those for even distribution.
        """
        view = self.view_builder.view(afresh=bundles)
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
    sight: Sight,
    memory: RoundMemory,
    rng: np.random.Generator,
    session_doubtful: bool,
) -> tuple[ClusterView, Plan]:
    """Return the view of a round, and its plan; draining brokers are emptied between rounds."""
    view = sight.view()
    return view, planner.round(view, memory, rng, session_doubtful=session_doubtful, draining=False)


def _due_early(planner: Planner, sight: Sight, memory: RoundMemory) -> bool:
    return planner.due_early(sight.view(), memory)


def _proposals(
    moves: Iterable[Move],
    view: ClusterView,
    assigned: Mapping[BundleId, BrokerId],
    asked_by: AskedBy,
) -> list[BundleTask]:
    return [
        BundleTask(
            kind=TaskKind.PLACE if move.source is None else TaskKind.MOVE,
            bundles=(move.bundle,),
            source=move.source,
            target=move.target,
            cause=move.cause,
            asked_by=asked_by,
            planned={b: assigned[b] for b in (move.bundle,) if b in assigned},
            influence=Rates(*view.short_rates(move.bundle).tolist()),
        )
        for move in moves
    ]

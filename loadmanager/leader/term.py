"""One term of a leader: what others may ask of it, and its parts at work."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import structlog

from loadmanager.common.balancing_mode import BalancingModeWatch
from loadmanager.common.cluster_state import OwnerView
from loadmanager.common.constraints import Constraints
from loadmanager.common.context import Context
from loadmanager.common.cost_model_watch import CostModelWatch
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.bundle_task import AskedBy, BundleTask
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.orders import OrderChanges
from loadmanager.core.plan import Cause, Move
from loadmanager.leader.absent_brokers import AbsentBrokers
from loadmanager.leader.adoption import Adoption
from loadmanager.leader.cluster_view import Look, ViewBuilder
from loadmanager.leader.decision_log import DecisionLog
from loadmanager.leader.decisions import Choices, Decider
from loadmanager.leader.drain import Drain
from loadmanager.leader.election import Term
from loadmanager.leader.harmful_reports import HarmfulReports
from loadmanager.leader.history_recorder import HistoryRecorder
from loadmanager.leader.leader_state import LeaderState
from loadmanager.leader.optimality import OptimalityWatch
from loadmanager.leader.order_book import OrderBook
from loadmanager.leader.placement import PlacementWorker
from loadmanager.leader.placement_queue import PlacementQueue, why
from loadmanager.leader.reconciliation import Reconciler
from loadmanager.leader.rounds import Rounds
from loadmanager.leader.shadows import Shadows
from loadmanager.leader.splits import Splits
from loadmanager.leader.task_controller import TaskController
from loadmanager.leader.task_gains import TaskGains
from loadmanager.leader.task_reports import TaskReports
from loadmanager.leader.untaken_orders import UntakenOrders
from loadmanager.leader.warm_start import WarmStart
from loadmanager.ports import CoordinationError, StandingOrders

log = structlog.get_logger()


class ForeignTerm(Protocol):
    """What a term needs over brokers that own bundles by themselves, and obey no agent."""

    @property
    def orders(self) -> StandingOrders:
        """Keeps the orders of the term, and has them carried out."""

    @property
    def owners(self) -> OwnerView:
        """What is seen of who owns bundles."""

    def held(self) -> str:
        """Return why nothing may move now, "" if it may."""

    async def run(self, wanted: Callable[[], bool]) -> None:
        """Do what has to be done beside the rounds, until cancelled.

        ``wanted`` returns whether moves are wanted now for the sake of balance.
        """

    def close(self) -> None:
        """End with the term."""


class LeaderTerm:
    """One term of leadership at work.

    With a ``foreign`` term nothing is placed, cut or repaired here: brokers do that themselves.
    """

    def __init__(
        self,
        context: Context,
        term: Term,
        tuning: RuntimeSettings,
        *,
        cluster: str,
        rng: np.random.Generator,
        foreign: ForeignTerm | None = None,
        base_every_rounds: int = 15,
        seed_max_age_days: float = 7.0,
    ) -> None:
        self._context = context
        self._term = term
        self._tuning = tuning
        self._foreign = foreign
        self._owners: OwnerView = context.cluster_state if foreign is None else foreign.owners
        self._constraints = Constraints(context, cluster)
        self._tally = LoadTracker(weights=tuning.now.planner.weights)
        self._recorder = HistoryRecorder(
            context, term.epoch, self._tally, base_every_rounds=base_every_rounds
        )
        self._seeding = WarmStart(
            context, self._tally, cluster=cluster, max_age_days=seed_max_age_days
        )
        self.began_at_ms = context.clock.wall_ms()
        self.gains = TaskGains(self._tally)
        self.tasks = self._task_controller()
        self.decision_log = DecisionLog(
            context.clock, term.epoch, task_of=self.tasks.tasks.number_of
        )
        self._untaken = UntakenOrders(context, self.tasks)
        self._adoption = Adoption(context, self.tasks, self._tally, self._recorder)
        self._harmful = HarmfulReports(context)
        self._viewing = ViewBuilder(
            context,
            self.tasks,
            self._constraints,
            self._tally,
            recorder=self._recorder,
            harmful=self._harmful,
            untaken=self._untaken,
        )
        self._steering = BalancingModeWatch(context, foreign.held if foreign else str)
        self._costing = CostModelWatch(context, tuning)
        self._deciding = Decider(
            self._costing,
            self._viewing,
            self.tasks,
            self.decision_log,
            self._steering,
            rng,
            recorder=self._recorder,
        )
        self.shadowing = Shadows(context, tuning, self._costing, self._recorder)
        self.assessing = OptimalityWatch(context, self._deciding, self._recorder, self.shadowing)
        self.splits = Splits(
            context, self.tasks, self._tally, tuning, self._adoption, self._deciding
        )
        self._inheritance = LeaderState(context, term, self._tally, self.splits)
        self._placing = self._placement_worker()
        self._rounds = self._all_rounds()

    def _task_controller(self) -> TaskController:
        context, foreign = self._context, self._foreign
        reports = TaskReports(context.metrics, self._recorder, context.clock)

        def task_changed(task: BundleTask) -> None:
            reports.task_changed(task)
            self.gains.task_changed(task)

        return TaskController(
            self._term.epoch,
            OrderBook(context, self._term) if foreign is None else foreign.orders,
            self._owners,
            context.clock,
            bounds=lambda: self._tuning.now.task_bounds,
            listener=task_changed,
            caught=context.unexpected.caught,
        )

    def _placement_worker(self) -> PlacementWorker:
        return PlacementWorker(
            self._context,
            self.tasks,
            absences=AbsentBrokers(self._context, self.tasks, self._tuning),
            deciding=self._deciding,
            untaken=self._untaken,
            wanted=PlacementQueue(self._context.metrics),
            emptying=Drain(self._context, self._owners, self.tasks, self._tuning),
            brokers_own=self._foreign is not None,
        )

    def _all_rounds(self) -> Rounds:
        return Rounds(
            context=self._context,
            term=self._term,
            tuning=self._tuning,
            tally=self._tally,
            viewing=self._viewing,
            deciding=self._deciding,
            tasks=self.tasks,
            splits=self.splits,
            placing=self._placing,
            reconciler=Reconciler(
                self._context, self.tasks, self._adoption, self._untaken, self.decision_log
            ),
            inheritance=self._inheritance,
            recorder=self._recorder,
            harmful=self._harmful,
            assessing=self.assessing,
            brokers_own=self._foreign is not None,
        )

    @property
    def brokers(self) -> LoadTracker:
        """What brokers reported, and when others left."""
        return self._tally

    @property
    def balancing(self) -> Balancing:
        """How far this leader goes by itself now."""
        return self._steering.balancing

    @property
    def unowned(self) -> tuple[BundleId, ...]:
        """The bundles that are about to be placed."""
        return self._placing.unowned

    @property
    def left_out(self) -> Mapping[BrokerId, str]:
        """The brokers that are decided without, with the error that their report caused."""
        return self._harmful.brokers

    def look(self) -> Look:
        """Return what this leader sees and remembers now."""
        return Look(
            epoch=self._term.epoch,
            view=self._viewing.view(),
            averages=self._tally.averages(),
            memory=self._deciding.memory,
            planner=self._deciding.planner,
            balancing=self._steering.balancing,
            costs=self._costing.document,
            unowned=self._placing.unowned,
            left_out=self._harmful.brokers,
        )

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            Deposed: somebody else leads (in an exception group).
            TermGivenUp: three rounds in a row failed unexpectedly (in an exception group).
            CoordinationError: the orders of the former leader cannot be read.
        """
        documents = (self._constraints, self._steering, self._costing)
        for one in documents:
            one.open()
        try:
            for one in documents:
                await one.read()
            self._recorder.began()
            await self.tasks.open()
            self._deciding.memory = await self._inheritance.take()
            await self._seeding.sow()
            self._viewing.take_reports()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._rounds.tick(), name="ticks")
                tasks.create_task(self._placing.run(), name="placements")
                tasks.create_task(self._rounds.run(), name="rounds")
                if self._foreign is not None:
                    tasks.create_task(self._foreign.run(self._wants_moves), name="foreign brokers")
        finally:
            for one in documents:
                one.close()
            self._placing.end(self._term.epoch)
            self.tasks.close()
            if self._foreign is not None:
                self._foreign.close()
            self._recorder.ended()
            self._harmful.end()
            self.assessing.end()

    def _wants_moves(self) -> bool:
        active = self._steering.wanted.mode is BalancingMode.ACTIVE
        return active and not self._deciding.planner.settings.observe

    async def assign(self, bundle: BundleId) -> BrokerId:
        """Decide who is to own ``bundle``; a bundle under way keeps its plan.

        Raises:
            Unavailable: no broker can take it, or the order could not be written.
            NotLeader: the term ended meanwhile.
        """
        holding = self._context.cluster_state.live_owner(bundle)
        if holding is not None:
            return holding.broker
        return self.planned(bundle) or await self._placing.assign(bundle)

    def planned(self, bundle: BundleId) -> BrokerId | None:
        """Return the registered broker that is to own ``bundle``."""
        return self._placing.planned(bundle)

    async def order_unload(
        self, leaving: Mapping[BundleId, BrokerId], destination: BrokerId | None
    ) -> Mapping[BundleId, str]:
        """Order bundles away from the brokers that own them; return why the others stay.

        They go to ``destination``, or to the best place but the one they leave. What
        was moved rests, as it does after a round. Raises as `TaskController.dispatch`.
        """
        leaving = await self._still_whole(leaving)
        if destination is None:
            choices = self._deciding.choose(leaving, leaving, Cause.REQUESTED)
        else:
            moves = [Move(b, source, destination, Cause.REQUESTED) for b, source in leaving.items()]
            choices = Choices(tuple(moves), {}, self._viewing.view())
        # Under any leader: what will be remembered is written with the orders.
        rested = self._deciding.rested([move.bundle for move in choices.moves], choices.view.now_s)
        state = self._inheritance.write(rested)
        found = await self._deciding.order(choices, AskedBy.PEOPLE, state)
        if found.ordered and not found.rode:
            try:
                await self._inheritance.leave(self._deciding.memory)
            except CoordinationError as error:  # The next round stores it.
                log.warning("leadership.state.unwritten", error=str(error))
        sources = {leaving[bundle] for bundle in found.ordered}
        self._context.metrics.bundles_unloaded(len(found.ordered), len(sources))
        for bundle, target in found.ordered.items():
            log.info("bundle.unload.ordered", bundle=bundle, source=leaving[bundle], target=target)
        if found.too_large is not None:
            raise found.too_large
        return {
            **{bundle: why(reasons) for bundle, reasons in choices.refusals.items()},
            **found.refused,
        }

    async def recall(self, namespace: Namespace) -> None:
        """Take back all orders of a namespace; raises as `TaskController.change`."""

        def gone() -> OrderChanges:
            assigned = self.tasks.assigned
            return OrderChanges(gone=[one for one in assigned if namespace_of(one) == namespace])

        await self.tasks.change(gone)

    async def _still_whole(
        self, bundles: Mapping[BundleId, BrokerId]
    ) -> Mapping[BundleId, BrokerId]:
        """Return those that were not cut meanwhile: an order would bring the whole back."""
        if self._foreign is not None:
            return bundles
        booked = bundles.keys() & self.tasks.assigned.keys()
        await self.splits.adopt_parts()
        cut = booked - self.tasks.assigned.keys()
        return {bundle: broker for bundle, broker in bundles.items() if bundle not in cut}

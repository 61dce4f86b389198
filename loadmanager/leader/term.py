"""The leader's desk for one term: what others may ask of it, and its parts at work."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import structlog

from loadmanager.common.balancing_mode import Steering
from loadmanager.common.cluster_state import OwnerView
from loadmanager.common.constraints import Constraints
from loadmanager.common.context import Parts
from loadmanager.common.cost_model_watch import Costing
from loadmanager.common.runtime_settings import Tuning
from loadmanager.core.balancing import BalancingMode
from loadmanager.core.bundle_task import AskedBy
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.load_tracker import LoadTally
from loadmanager.core.orders import OrderChanges
from loadmanager.core.plan import Cause, Move
from loadmanager.leader.absent_brokers import Absences
from loadmanager.leader.adoption import Adoption
from loadmanager.leader.cluster_view import Look, Viewing
from loadmanager.leader.decision_log import Recollection
from loadmanager.leader.decisions import Choices, Deciding
from loadmanager.leader.drain import Emptying
from loadmanager.leader.election import Term
from loadmanager.leader.harmful_reports import HarmfulReports
from loadmanager.leader.history_recorder import Chronicle
from loadmanager.leader.leader_state import Inheritance
from loadmanager.leader.optimality import Assessing
from loadmanager.leader.order_book import OrderBook
from loadmanager.leader.placement import Placing
from loadmanager.leader.placement_queue import Wanted, why
from loadmanager.leader.reconciliation import Reconciler
from loadmanager.leader.rounds import Rounds
from loadmanager.leader.shadows import Shadowing
from loadmanager.leader.splits import Splits
from loadmanager.leader.task_controller import TaskController
from loadmanager.leader.task_reports import TaskReports
from loadmanager.leader.untaken_orders import Untaken
from loadmanager.leader.warm_start import Seeding
from loadmanager.ports import StandingOrders

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


class Desk:
    """One term of leadership at work.

    With a ``foreign`` term nothing is placed, cut or repaired here: brokers do that themselves.
    """

    def __init__(
        self,
        parts: Parts,
        term: Term,
        tuning: Tuning,
        *,
        cluster: str,
        rng: np.random.Generator,
        foreign: ForeignTerm | None = None,
        base_every_rounds: int = 15,
        seed_max_age_days: float = 7.0,
    ) -> None:
        self._parts = parts
        self._term = term
        self._foreign = foreign
        self._constraints = Constraints(parts, cluster)
        self._tally = LoadTally(weights=tuning.now.planner.weights)
        self._chronicle = chronicle = Chronicle(
            parts, term.epoch, self._tally, base_every_rounds=base_every_rounds
        )
        owners = parts.picture if foreign is None else foreign.owners
        self.tasks = tasks = TaskController(
            term.epoch,
            OrderBook(parts, term) if foreign is None else foreign.orders,
            owners,
            parts.clock,
            bounds=lambda: tuning.now.task_bounds,
            listener=TaskReports(parts.metrics, chronicle, parts.clock).task_changed,
            caught=parts.unexpected.caught,
        )
        untaken = Untaken(parts, tasks)
        self._harmful = HarmfulReports(parts)
        self._viewing = Viewing(
            parts,
            tasks,
            self._constraints,
            self._tally,
            chronicle=chronicle,
            harmful=self._harmful,
            untaken=untaken,
        )
        self.recollection = Recollection(parts.clock, term.epoch, task_of=tasks.tasks.number_of)
        self._steering = Steering(parts) if foreign is None else Steering(parts, foreign.held)
        self._costing = Costing(parts, tuning)
        self._deciding = Deciding(
            self._costing,
            self._viewing,
            tasks,
            self.recollection,
            self._steering,
            rng,
            chronicle=chronicle,
        )
        self.shadowing = Shadowing(parts, tuning, self._costing, chronicle)
        self.assessing = Assessing(parts, self._deciding, chronicle, self.shadowing)
        adoption = Adoption(parts, tasks, self._tally, chronicle)
        self.splits = Splits(parts, tasks, self._tally, tuning, adoption, self._deciding)
        self._placing = Placing(
            parts,
            tasks,
            absences=Absences(parts, tasks, tuning),
            deciding=self._deciding,
            untaken=untaken,
            wanted=Wanted(parts.metrics),
            emptying=Emptying(parts, owners, tasks, tuning),
            brokers_own=foreign is not None,
        )
        self._inheritance = Inheritance(parts, term, self._tally, self.splits)
        self._seeding = Seeding(parts, self._tally, cluster=cluster, max_age_days=seed_max_age_days)
        self._rounds = Rounds(
            parts=parts,
            term=term,
            tuning=tuning,
            tally=self._tally,
            viewing=self._viewing,
            deciding=self._deciding,
            tasks=tasks,
            splits=self.splits,
            placing=self._placing,
            reconciler=Reconciler(parts, tasks, adoption, untaken, self.recollection),
            inheritance=self._inheritance,
            chronicle=chronicle,
            harmful=self._harmful,
            assessing=self.assessing,
            brokers_own=foreign is not None,
        )

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
            self._chronicle.began()
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
            self._chronicle.ended()
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
        holding = self._parts.picture.live_owner(bundle)
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
        sources = {leaving[bundle] for bundle in found.ordered}
        self._parts.metrics.bundles_unloaded(len(found.ordered), len(sources))
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

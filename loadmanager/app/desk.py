"""The leader's desk for one term: it samples, plans, places, and writes orders."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import structlog

from loadmanager.app.accounting import Look
from loadmanager.app.changes import Changes
from loadmanager.app.constraints import Constraints
from loadmanager.app.electing import Term
from loadmanager.app.emptying import Emptying
from loadmanager.app.hand_overs import HandOvers
from loadmanager.app.inheritance import Inheritance
from loadmanager.app.order_book import OrderBook
from loadmanager.app.parts import Parts
from loadmanager.app.recollection import Recollection
from loadmanager.app.reconciling import Reconciler
from loadmanager.app.round_log import tell_plan
from loadmanager.app.split_desk import SplitDesk, SplitPolicy
from loadmanager.app.viewing import Viewing
from loadmanager.app.wanted import Wanted, why
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause, Move, Refusal
from loadmanager.core.planner import Planner
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.tally import LoadTally
from loadmanager.ports import Connection, CoordinationError

log = structlog.get_logger()

_PLACEMENT_POLL_S = 5.0
_RETRY_S = 0.2
_NOBODY: Mapping[BundleId, BrokerId] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often the leader samples the averages, and how often it looks for moves."""

    tick_interval_s: float
    round_interval_s: float


class Desk:
    """One term of leadership at work."""

    def __init__(
        self,
        parts: Parts,
        term: Term,
        planner: Planner,
        *,
        rhythm: Rhythm,
        split_policy: SplitPolicy,
        cluster: str,
        rng: np.random.Generator,
    ) -> None:
        self._parts = parts
        self._term = term
        self._planner = planner
        self._rhythm = rhythm
        self._rng = rng
        self._book = OrderBook(parts, term)
        self._inheritance = Inheritance(parts, term)
        self._constraints = Constraints(parts, cluster)
        self._tally = LoadTally(weights=planner.weights)
        self._viewing = Viewing(parts, self._book, self._constraints, self._tally)
        self._splits = SplitDesk(parts, self._book, self._tally, split_policy)
        self._memory = RoundMemory()
        self._wanted = Wanted(parts.metrics)
        self._placing = Changes()
        self._hand_overs = HandOvers(parts, self._book)
        self._reconciler = Reconciler(parts, self._book)
        self._emptying = Emptying(parts, self._book, planner.settings.in_flight_per_broker)
        self.recollection = Recollection(parts.clock, term.epoch)

    def look(self) -> Look:
        """Return what this leader sees and remembers now."""
        return Look(
            epoch=self._term.epoch,
            view=self._viewing.view(),
            averages=self._tally.averages(),
            memory=self._memory,
            unowned=(*self._wanted, *self._orphans()),
        )

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            Deposed: somebody else leads (in an exception group).
            CoordinationError: the orders of the former leader cannot be read.
        """
        self._constraints.open()
        try:
            await self._constraints.read()
            await self._book.open()
            await self._inherit()
            self._viewing.take_reports()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tick(), name="ticks")
                tasks.create_task(self._place(), name="placements")
                tasks.create_task(self._rounds(), name="rounds")
        finally:
            self._constraints.close()
            self._wanted.end(self._term.epoch)

    async def _inherit(self) -> None:
        standby = await self._inheritance.take()
        if standby is not None:
            self._memory = standby.memory
            self._tally.seed(standby.averages)

    async def assign(self, bundle: BundleId) -> BrokerId:
        """Decide who is to own ``bundle``; a bundle under way keeps its plan.

        Raises:
            Unavailable: no broker can take it, or the order could not be written.
            NotLeader: the term ended meanwhile.
        """
        holding = self._parts.picture.live_owner(bundle)
        if holding is not None:
            return holding.broker
        planned = self.planned(bundle)
        if planned is not None:
            return planned
        answer, new = self._wanted.ask(bundle)
        if new:
            self._placing.tell()
        return await asyncio.shield(answer)

    def planned(self, bundle: BundleId) -> BrokerId | None:
        """Return the registered broker that is to own ``bundle``."""
        planned = self._book.assigned.get(bundle)
        return planned if planned in self._parts.picture.brokers else None

    async def order_unload(
        self, leaving: Mapping[BundleId, BrokerId], destination: BrokerId | None
    ) -> Mapping[BundleId, str]:
        """Order bundles away from the brokers that own them; return why the others stay.

        They go to ``destination``, or to the best place but the one they leave. What
        was moved rests, as it does after a round. Raises as `OrderBook.assign`.
        """
        leaving = await self._still_whole(leaving)
        refusals: Mapping[BundleId, tuple[Refusal, ...]] = {}
        if destination is None:
            placed, refusals = self._choose(leaving, leaving, Cause.REQUESTED)
        else:
            placed = dict.fromkeys(leaving, destination)
            self.recollection.placed(
                Move(bundle, source, destination, Cause.REQUESTED)
                for bundle, source in leaving.items()
            )
        if placed:
            await self.order(placed)
            rest = dict.fromkeys(placed, self._parts.clock.monotonic_s())
            moved_at_s = {**self._memory.moved_at_s, **rest}
            self._memory = replace(self._memory, moved_at_s=moved_at_s)
            sources = {leaving[bundle] for bundle in placed}
            self._parts.metrics.bundles_unloaded(len(placed), len(sources))
        for bundle, target in placed.items():
            log.info("bundle.unload.ordered", bundle=bundle, source=leaving[bundle], target=target)
        return {bundle: why(reasons) for bundle, reasons in refusals.items()}

    async def _still_whole(
        self, bundles: Mapping[BundleId, BrokerId]
    ) -> Mapping[BundleId, BrokerId]:
        """Return those that were not cut meanwhile: an order would bring the whole back."""
        booked = bundles.keys() & self._book.assigned.keys()
        await self._adopt_parts()
        cut = booked - self._book.assigned.keys()
        return {bundle: broker for bundle, broker in bundles.items() if bundle not in cut}

    async def order_split(self, bundle: BundleId, order: SplitOrder) -> None:
        """Order a bundle to be cut; raises as `OrderBook.change`."""
        await self._adopt_parts()
        await self._splits.order(bundle, order)

    # --- load ----------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await self._parts.clock.sleep(self._rhythm.tick_interval_s)
            self._viewing.take_reports()
            self._tally.sample()
            self._hand_overs.observe()
            try:
                await self._adopt_parts()
            except CoordinationError as error:
                log.warning("bundle.split.unread", error=str(error))

    async def _adopt_parts(self) -> None:
        """Take up the parts of what was cut, and give all but the first a new place.

        The whole was too much for its bundle, if not for its broker; the first part
        stays, so that at least its clients need not move.
        """
        cut = await self._splits.adopt()
        others = [part for parts in cut for part in parts[1:]]
        if others:
            placed, _ = self._choose(others)
            moved = {b: to for b, to in placed.items() if to != self._book.assigned.get(b)}
            if moved:
                await self.order(moved)

    # --- unowned bundles -----------------------------------------------------------

    async def _place(self) -> None:
        """Place what lookups ask for, and what the brokers that left have left behind."""
        self._parts.picture.changes.subscribe(self._placing.tell)
        try:
            await self._place_for_ever()
        finally:
            self._parts.picture.changes.unsubscribe(self._placing.tell)

    async def _place_for_ever(self) -> None:
        while True:
            self._wanted.answer_planned(self.planned)
            bundles = list(dict.fromkeys([*self._wanted, *self._orphans()]))
            try:
                emptied = await self._empty_draining()
                if not bundles:
                    if not emptied:
                        await self._placing.wait(_PLACEMENT_POLL_S)
                    continue
                placed, refusals = self._choose(bundles)
                await self.order(placed)
            except CoordinationError as error:
                self._wanted.refuse_all(f"the order could not be written: {error}")
                await self._parts.clock.sleep(_RETRY_S)
                continue
            self._wanted.answer(placed, refusals)
            if len(placed) < len(bundles):
                await self._placing.wait(_RETRY_S)

    async def _empty_draining(self) -> bool:
        """Move some of what is on draining brokers; return whether there was anything to try."""
        leaving = self._emptying.due()
        if not leaving:
            return False
        placed, refusals = self._choose(leaving, leaving, Cause.DRAINING)
        self._emptying.refused(refusals)
        if placed:
            await self.order(placed)
            self._emptying.ordered({bundle: leaving[bundle] for bundle in placed})
            self._parts.metrics.bundles_unloaded(
                len(placed), len({leaving[bundle] for bundle in placed})
            )
        return True

    def _orphans(self) -> Iterable[BundleId]:
        """Return the bundles whose planned owner is not registered any more."""
        brokers = self._parts.picture.brokers
        if not brokers or not self._parts.picture.current:
            return ()
        return [b for b, planned in self._book.assigned.items() if planned not in brokers]

    def _choose(
        self,
        bundles: Collection[BundleId],
        leaving: Mapping[BundleId, BrokerId] = _NOBODY,
        cause: Cause = Cause.UNOWNED,
    ) -> tuple[dict[BundleId, BrokerId], dict[BundleId, tuple[Refusal, ...]]]:
        """Return a next owner for each bundle, or why there is none.

        None goes to the broker that it is ``leaving`` for ``cause``.
        """
        view = self._viewing.view(afresh=bundles)
        placed: dict[BundleId, BrokerId] = {}
        refusals: dict[BundleId, tuple[Refusal, ...]] = {}
        for bundle in bundles:
            answer = self._planner.place(
                view,
                bundle,
                self._memory,
                self._rng,
                leaving=leaving.get(bundle),
                cause=cause,
            )
            view, self._memory = answer.view, answer.memory
            if answer.move is None:
                refusals[bundle] = answer.refusals
                self.recollection.unplaced(answer.refusals)
            else:
                self.recollection.placed([answer.move])
                placed[bundle] = answer.move.target
        return placed, refusals

    # --- rounds --------------------------------------------------------------------

    async def _rounds(self) -> None:
        while True:
            await self._parts.clock.sleep(self._rhythm.round_interval_s)
            started_s = self._parts.clock.monotonic_s()
            try:
                outcome = await self._round()
                await self._inheritance.leave(self._memory, self._tally.averages())
            except CoordinationError as error:
                outcome = "failed"
                log.warning("round.orders.failed", error=str(error))
            self._parts.metrics.rounds.labels(outcome).inc()
            took_s = self._parts.clock.monotonic_s() - started_s
            self._parts.metrics.round_duration_seconds.observe(took_s)

    async def _round(self) -> str:
        view = self._viewing.view()
        doubtful = self._parts.coordination.session.connection is not Connection.CONNECTED
        plan = self._planner.round(
            view, self._memory, self._rng, session_doubtful=doubtful, draining=False
        )
        self._memory = plan.memory
        self.recollection.round_done(plan, view.brokers.names)
        tell_plan(self._parts.metrics, type(self._planner.shedder).__name__, plan, self._term.epoch)
        if not doubtful:
            await self._splits.look()
            lost = self._hand_overs.lost()
            if lost:
                await self._book.assign(lost)
            await self._reconciler.look()
        if not plan.moves:
            return "observed" if plan.observed else "quiet"
        await self.order({move.bundle: move.target for move in plan.moves})
        sources = {move.source for move in plan.moves}
        self._parts.metrics.bundles_unloaded(len(plan.moves), len(sources))
        return "moved"

    # --- orders --------------------------------------------------------------------

    async def order(self, changes: Mapping[BundleId, BrokerId]) -> None:
        """Order bundles to brokers, as decided; raises as `OrderBook.assign`."""
        await self._book.assign(changes)
        self._hand_overs.ordered(changes)

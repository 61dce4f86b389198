import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Never, Protocol

import numpy as np
import structlog

from loadmanager.common.cluster_state import OwnerView
from loadmanager.common.constraints import Constraints
from loadmanager.common.context import Context
from loadmanager.common.documents import BalancingModeWatch
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.balancing import BalancingMode
from loadmanager.core.bundle_task import AskedBy
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.orders import OrderChanges
from loadmanager.core.plan import Cause, Move
from loadmanager.leader.decisions import Choices, Decider, Observation
from loadmanager.leader.election import Deposed, Term
from loadmanager.leader.leader_state import LeaderState, WarmStart
from loadmanager.leader.order_book import OrderBook
from loadmanager.leader.placement import PlacementWorker, why
from loadmanager.leader.reconciliation import Reconciler, UnclaimedOrders
from loadmanager.leader.records import DecisionLog, HistoryRecorder, TaskGains, TaskReports
from loadmanager.leader.rounds import OptimalityWatch, Rounds
from loadmanager.leader.splits import Splits
from loadmanager.leader.task_controller import TaskController
from loadmanager.ports.coordination import CoordinationError
from loadmanager.ports.lookup import LeaderElsewhere, NotLeader, Unavailable
from loadmanager.ports.orders import StandingOrders

log = structlog.get_logger()


class ForeignTerm(Protocol):
    @property
    def orders(self) -> StandingOrders: ...

    @property
    def owners(self) -> OwnerView: ...

    @property
    def unsplittable(self) -> Collection[BundleId]:
        """The bundles whose ordered split failed, and which are not to be split."""

    def held(self) -> str: ...

    async def run(self, wanted: Callable[[], bool]) -> None:
        """Run the work besides the rounds; ``wanted`` returns whether balancing may move now."""

    def close(self) -> None: ...


class LeaderTerm:
    """A running term; with a ``foreign`` one brokers place and repair bundles by themselves."""

    def __init__(
        self,
        context: Context,
        term: Term,
        settings: RuntimeSettings,
        *,
        cluster: str,
        rng: np.random.Generator,
        foreign: ForeignTerm | None = None,
        base_every_rounds: int = 15,
        seed_max_age_days: float = 7.0,
    ) -> None:
        self._context = context
        self._term = term
        self._settings = settings
        self._foreign = foreign
        owners: OwnerView = context.cluster_state if foreign is None else foreign.owners
        self._constraints = Constraints(context, cluster)
        self.tracker = LoadTracker(weights=settings.now.planner.weights)
        self._recorder = HistoryRecorder(
            context.history,
            context.clock,
            term.epoch,
            self.tracker,
            base_every_rounds=base_every_rounds,
        )
        self._seeding = WarmStart(
            context=context, tracker=self.tracker, cluster=cluster, max_age_days=seed_max_age_days
        )
        self.began_at_ms = context.clock.wall_ms()
        self.is_open = False
        """Whether the input of decisions has been read; requests are refused until then."""
        self.gains = TaskGains(self.tracker)
        reports = TaskReports(context.metrics, self._recorder, self.gains, context.clock)
        self.tasks = TaskController(
            term.epoch,
            OrderBook(context, term) if foreign is None else foreign.orders,
            owners,
            context.clock,
            bounds=lambda: settings.now.task_bounds,
            listener=reports.task_changed,
            caught=context.unexpected.caught,
        )
        self.decision_log = DecisionLog(
            context.clock, term.epoch, task_of=self.tasks.tasks.number_of
        )
        unclaimed = UnclaimedOrders(context, self.tasks)
        self.steering = BalancingModeWatch(context, foreign.held if foreign else str)
        self._decider = Decider(
            context,
            settings,
            self.tasks,
            self._constraints,
            self.tracker,
            self._recorder,
            unclaimed,
            self.decision_log,
            self.steering,
            rng,
        )
        self.optimality_watch = OptimalityWatch(context, self._decider, self._recorder)
        self.splits = Splits(
            context,
            self.tasks,
            self.tracker,
            settings,
            self._decider,
            unsplittable=() if foreign is None else foreign.unsplittable,
        )
        self._leader_state = LeaderState(
            context, term, self.tracker, self.splits, self.optimality_watch.course
        )
        self.placement_worker = PlacementWorker(
            context,
            owners,
            self.tasks,
            settings,
            self._decider,
            unclaimed,
            brokers_own=foreign is not None,
        )
        self._rounds = Rounds(
            context=context,
            term=term,
            settings=settings,
            tracker=self.tracker,
            decider=self._decider,
            tasks=self.tasks,
            splits=self.splits,
            placement_worker=self.placement_worker,
            reconciler=Reconciler(
                context, self.tasks, self.splits.is_foreign, unclaimed, self.decision_log
            ),
            leader_state=self._leader_state,
            recorder=self._recorder,
            optimality_watch=self.optimality_watch,
            brokers_own=foreign is not None,
        )

    @property
    def quarantined(self) -> Mapping[BrokerId, str]:
        return self._decider.quarantined

    def look(self) -> Observation:
        return Observation(
            epoch=self._term.epoch,
            view=self._decider.view(),
            averages=self.tracker.averages(),
            memory=self._decider.memory,
            planner=self._decider.planner,
            balancing=self.steering.balancing,
            unowned=self.placement_worker.unowned,
            quarantined=self.quarantined,
        )

    async def run(self) -> None:
        """Raises `Deposed`, `TermGivenUp` or `CoordinationError`, in an exception group."""
        documents = (self._constraints, self.steering)
        for one in documents:
            one.open()
        try:
            self._recorder.began()
            # At once, not one after another: no bundle is placed before the last reply.
            async with asyncio.TaskGroup() as reads:
                for one in documents:
                    reads.create_task(one.read())
                memory = reads.create_task(self._leader_state.take())
                reads.create_task(self.tasks.open())
            self._decider.memory = memory.result()
            await self._seeding.seed()
            await self._decider.take_reports_in_turns()
            self.is_open = True
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._rounds.tick(), name="ticks")
                tasks.create_task(self.placement_worker.run(), name="placements")
                tasks.create_task(self._rounds.run(), name="rounds")
                if self._foreign is None:
                    tasks.create_task(self._rounds.find_stray_locks(), name="stray locks")
                else:
                    tasks.create_task(self._foreign.run(self._wants_moves), name="foreign brokers")
        finally:
            for one in documents:
                one.close()
            self.placement_worker.wanted.end(self._term.epoch)
            self.tasks.close()
            self._context.liveness.over("round")
            if self._foreign is not None:
                self._foreign.close()
            self._recorder.ended()
            self._decider.end()
            self.optimality_watch.end()

    def _wants_moves(self) -> bool:
        active = self.steering.wanted.mode is BalancingMode.ACTIVE
        return active and not self._decider.planner.settings.observe

    async def assign(self, bundle: BundleId) -> BrokerId:
        """Raises `Unavailable`: no broker can take it, or no order be written; `NotLeader`."""
        holding = self._context.cluster_state.live_owner(bundle)
        if holding is not None:
            return holding.broker
        return self.placement_worker.planned(bundle) or await self.placement_worker.assign(bundle)

    async def order_unload(
        self, leaving: Mapping[BundleId, BrokerId], destination: BrokerId | None
    ) -> Mapping[BundleId, str]:
        """Order moves to ``destination``, or the best broker; return why other bundles stay."""
        leaving = await self._still_whole(leaving)
        if destination is None:
            choices = self._decider.choose(leaving, leaving, Cause.REQUESTED)
        else:
            moves = [Move(b, source, destination, Cause.REQUESTED) for b, source in leaving.items()]
            assigned = self.tasks.assigned
            choices = Choices(tuple(moves), {}, self._decider.view(), assigned)
        # The cool-downs are written with the orders, so that they apply under any leader.
        rested = self._decider.rested([move.bundle for move in choices.moves], choices.view.now_s)
        state = await self._leader_state.write(rested)
        found = await self._decider.order(choices, AskedBy.PEOPLE, state)
        if found.ordered and not found.piggybacked:
            try:
                await self._leader_state.leave(self._decider.memory)
            except CoordinationError as error:  # The next round stores it.
                log.warning("leadership.state.write_failed", error=str(error))
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

        def gone() -> OrderChanges:
            assigned = self.tasks.assigned
            return OrderChanges(gone=[one for one in assigned if namespace_of(one) == namespace])

        await self.tasks.change(gone)

    async def _still_whole(
        self, bundles: Mapping[BundleId, BrokerId]
    ) -> Mapping[BundleId, BrokerId]:
        if self._foreign is not None:
            return bundles
        booked = bundles.keys() & self.tasks.assigned.keys()
        await self.splits.adopt_parts()
        cut = booked - self.tasks.assigned.keys()
        return {bundle: broker for bundle, broker in bundles.items() if bundle not in cut}


_LOADS_WAIT_S = 10.0
_LOOK_S = 0.2


class Leadership:
    def __init__(self, open_term: Callable[[Term], LeaderTerm], context: Context) -> None:
        self._context = context
        self._open_term = open_term
        self._leader_term: LeaderTerm | None = None
        self.elected = False
        """Whether a term is under way, whether or not it is ready."""

    @property
    def leader_term(self) -> LeaderTerm | None:
        """The current term, None if this agent does not lead or the term is still being opened."""
        term = self._leader_term
        return term if term is not None and term.is_open else None

    def require_term(self) -> LeaderTerm:
        """Raises `LeaderElsewhere`, or `Unavailable`: no leader is at work."""
        leader_term = self.leader_term
        if leader_term is not None:
            return leader_term
        leader = self._context.cluster_state.leader
        if leader is None or leader.instance == self._context.identity.instance:
            raise Unavailable("no leader is at work")
        if not leader.sidecar_url:
            raise Unavailable(f"the leader {leader.broker} has no sidecar to ask")
        raise LeaderElsewhere(leader.sidecar_url)

    async def lead(self, term: Term) -> None:
        """Lead until cancelled at the term's end; raises as `LeaderTerm.run`."""
        self.elected = True
        self._context.metrics.leader.set(1)
        self._context.metrics.leader_changes.labels("gained").inc()
        try:
            with self._context.cluster_state.lists.followed():
                await self._read_cluster()
                self._leader_term = self._open_term(term)
                await self._leader_term.run()
        finally:
            self._leader_term, self.elected = None, False
            self._context.metrics.leader.set(0)
            self._context.metrics.leader_changes.labels("lost").inc()

    async def _read_cluster(self) -> None:
        """Wait for loads and owned lists, for a while: with some a leader can already place."""
        loads, lists = self._context.cluster_state.loads, self._context.cluster_state.lists
        loads.open()
        give_up_s = self._context.clock.monotonic_s() + _LOADS_WAIT_S
        while not (loads.complete and lists.all_read):
            if self._context.clock.monotonic_s() >= give_up_s:
                log.warning("leadership.loads.incomplete", brokers=len(loads.reports))
                return
            await self._context.cluster_state.changes.wait(_LOOK_S)

    async def assign(self, bundle: BundleId) -> BrokerId:
        """Raises `NotLeader`, or `Unavailable`: no broker can take the bundle."""
        leader_term = self.leader_term
        if leader_term is None:
            raise NotLeader("this sidecar does not lead now")
        return await leader_term.assign(bundle)


@contextmanager
def unavailable(what: str) -> Iterator[None]:
    """Raise `Unavailable` with ``what`` if orders can be neither read nor written now."""
    try:
        yield
    except (CoordinationError, Deposed) as error:
        raise Unavailable(f"{what}: {error}") from error


_SUCCESSOR_LOOK_S: Final = 1.0


async def read_ahead(context: Context, leading: Leadership) -> Never:
    """Watch loads, and read changed lists, while this sidecar leads or may soon."""
    cluster_state, me = context.cluster_state, context.identity.broker
    while True:
        if leading.elected or me in cluster_state.successors:
            cluster_state.loads.open()
        else:
            cluster_state.loads.close()
        cluster_state.lists.read_next()
        await context.clock.sleep(_SUCCESSOR_LOOK_S)

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
from loadmanager.common.runtime_settings import RuntimeSettings, sleep_interruptibly
from loadmanager.core.balancing import BalancingMode
from loadmanager.core.bundle_task import AskedBy, BundleTask, Dispatched
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.orders import OrderChanges
from loadmanager.core.plan import Cause, Move
from loadmanager.core.planner import EARLY_ROUND_S
from loadmanager.leader.decisions import Choices, Decider, Observation, OptimalityWatch, report_plan
from loadmanager.leader.election import Deposed, Term, TermGivenUp
from loadmanager.leader.leader_state import LeaderState
from loadmanager.leader.placement import PlacementWorker, why
from loadmanager.leader.reconciliation import Reconciler
from loadmanager.leader.records import (
    DecisionLog,
    HistoryRecorder,
    TaskGains,
    count_task,
    show_live_tasks,
)
from loadmanager.leader.splits import Splits
from loadmanager.leader.task_controller import OrderBook, StandingOrders, TaskController
from loadmanager.ports.coordination import Connection, CoordinationError
from loadmanager.ports.lookup import LeaderElsewhere, NotLeader, Unavailable

log = structlog.get_logger()

MOST_FAILED_ROUNDS: Final = 3


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
            context.clock.wall_ms,
            context.clock.monotonic_s,
            term.epoch,
            self.tracker,
            base_every_rounds=base_every_rounds,
        )
        self.began_at_ms = context.clock.wall_ms()
        self.is_open = False
        """Whether the input of decisions has been read; requests are refused until then."""
        self.gains = TaskGains(self.tracker)
        self.tasks = TaskController(
            term.epoch,
            OrderBook(context, term) if foreign is None else foreign.orders,
            owners,
            context.clock,
            bounds=lambda: settings.now.task_bounds,
            listener=self._task_changed,
            caught=context.unexpected.caught,
        )
        show_live_tasks(context.metrics, self.tasks.tasks, context.clock)
        self.decision_log = DecisionLog(
            context.clock, term.epoch, task_of=self.tasks.tasks.number_of
        )
        self._reconciler = Reconciler(context, self.tasks, self.decision_log)
        self.steering = BalancingModeWatch(context, foreign.held if foreign else str)
        self._decider = Decider(
            context,
            settings,
            self.tasks,
            self._constraints,
            self.tracker,
            self._recorder,
            self._reconciler,
            self.decision_log,
            self.steering,
            rng,
        )
        self.optimality_watch = OptimalityWatch(self._decider)
        self.splits = Splits(
            context,
            self.tasks,
            self.tracker,
            settings,
            self._decider,
            unsplittable=() if foreign is None else foreign.unsplittable,
        )
        self._leader_state = LeaderState(
            context=context,
            term=term,
            tracker=self.tracker,
            splits=self.splits,
            course=self.optimality_watch.course,
            cluster=cluster,
            seed_max_age_days=seed_max_age_days,
        )
        self.placement_worker = PlacementWorker(
            context,
            owners,
            self.tasks,
            settings,
            self._decider,
            brokers_own=foreign is not None,
        )

    def _task_changed(self, task: BundleTask) -> None:
        self._recorder.task_changed(task)
        self.gains.task_changed(task)
        count_task(self._context.metrics, task)

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
            await self._leader_state.seed()
            await self._decider.take_reports_in_turns()
            self.is_open = True
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tick(), name="ticks")
                tasks.create_task(self.placement_worker.run(), name="placements")
                tasks.create_task(self._run_rounds(), name="rounds")
                if self._foreign is None:
                    tasks.create_task(self._find_stray_locks(), name="stray locks")
                else:
                    tasks.create_task(self._foreign.run(self._wants_moves), name="foreign brokers")
        finally:
            for one in documents:
                one.close()
            over = f"epoch {self._term.epoch} is over"
            self.placement_worker.refuse_all(over, NotLeader)
            self.tasks.close()
            self._context.liveness.over("round")
            if self._foreign is not None:
                self._foreign.close()
            self._recorder.ended()
            self._decider.end()
            self.optimality_watch.end()

    async def _tick(self) -> None:
        while True:
            await self._pause(lambda: self._settings.now.config.leader.tick_interval_s)
            try:
                self.tracker.weigh(self._settings.now.planner.weights)
                await self._decider.take_reports_in_turns()
                self.tracker.sample()
                self._recorder.ticked()
                self.tasks.observe()
                if self._foreign is None:
                    await self.splits.adopt_parts()
            except CoordinationError as error:
                log.warning("leadership.tick.failed", error=str(error))
            except Deposed:
                raise
            except Exception as error:  # noqa: BLE001 - no error of one tick ends the sidecar
                self._context.unexpected.caught("tick", error)

    async def _find_stray_locks(self) -> None:
        while True:
            await self._pause(self._round_interval_s)
            try:
                await self._reconciler.find_strays()
            except CoordinationError as error:
                log.debug("leadership.locks.unread", error=str(error))
            except Exception as error:  # noqa: BLE001 - no error of one look ends the sidecar
                self._context.unexpected.caught("stray locks", error)

    async def _run_rounds(self) -> None:
        """Raises `Deposed`, or `TermGivenUp`: rounds fail for an unknown reason."""
        failed_in_a_row = 0
        while True:
            self._context.liveness.begun("round", self._round_interval_s)
            await self._until_due()
            started_s = self._context.clock.monotonic_s()
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
                self._context.unexpected.caught("round", error)
            failed_in_a_row = failed_in_a_row + 1 if unexpected else 0
            if failed_in_a_row == MOST_FAILED_ROUNDS:
                raise TermGivenUp(f"{failed_in_a_row} rounds in a row failed unexpectedly")
            self._context.metrics.rounds.labels(outcome).inc()
            took_s = self._context.clock.monotonic_s() - started_s
            self._context.metrics.round_duration_seconds.observe(took_s)
            self._recorder.round_over(
                outcome,
                took_s=took_s,
                tick_interval_s=self._settings.now.config.leader.tick_interval_s,
                unowned=lambda: self.placement_worker.unowned,
            )
            await self.optimality_watch.round_over()

    def _round_interval_s(self) -> float:
        return self._settings.now.config.leader.round_interval_s

    async def _pause(self, interval_s: Callable[[], float]) -> None:
        await sleep_interruptibly(self._context.clock, interval_s, self._context.clock.sleep)

    async def _until_due(self) -> None:
        looked_s = self._context.clock.monotonic_s()

        async def early(nap_s: float) -> bool:
            nonlocal looked_s
            await self._context.clock.sleep(nap_s)
            if self._context.clock.monotonic_s() < looked_s + EARLY_ROUND_S:
                return False
            looked_s = self._context.clock.monotonic_s()
            try:
                return await self._decider.due_early()
            except Exception as error:  # noqa: BLE001 - the round at the interval's end says more
                self._context.unexpected.caught("round", error)
                return False

        await sleep_interruptibly(self._context.clock, self._round_interval_s, early)

    async def _round_or_repeated(self) -> str:
        try:
            return await self._round()
        except (CoordinationError, Deposed):
            raise
        except Exception as error:
            if not self._decider.quarantine_new(error):
                raise
            self._context.unexpected.caught("round", error)
        return await self._round()

    async def _round(self) -> str:
        doubtful = self._context.coordination.session.connection is not Connection.CONNECTED
        if not doubtful:
            await self.tasks.confirm()
        decided, assigned = await self._decider.round(session_doubtful=doubtful)
        plan = decided.plan
        self.optimality_watch.decided(decided.view, plan)
        strategy = type(self._decider.planner.shedder).__name__
        report_plan(self._context.metrics, strategy, plan, self._term.epoch)
        cuts = self._decider.steering.balancing.mode is BalancingMode.ACTIVE
        if cuts and not doubtful:
            await self.splits.order_oversized()
        found: Dispatched | None = None
        if plan.moves:
            state = await self._leader_state.write(plan.memory)
            found = await self._decider.order_round(decided, assigned, state)
        if found is None or not found.piggybacked:
            await self._leader_state.leave(self._decider.memory)
        if not doubtful and self._foreign is None:
            await self._reconciler.reconcile(self.splits.is_foreign)
        self._decider.round_succeeded()
        if found is None:
            return "observed" if plan.observed else "quiet"
        if found.too_large is not None:
            return "failed"
        return "moved" if found.ordered else "refused"

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

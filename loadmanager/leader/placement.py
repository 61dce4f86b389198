import asyncio
from dataclasses import dataclass, field
from typing import Final

import structlog

from loadmanager.common.context import Context
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core.bundle_task import AskedBy
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Cause
from loadmanager.leader.absent_brokers import AbsentBrokers
from loadmanager.leader.decisions import Decider
from loadmanager.leader.drain import Drain
from loadmanager.leader.election import Deposed
from loadmanager.leader.placement_queue import PlacementQueue
from loadmanager.leader.task_controller import TaskController
from loadmanager.leader.untaken_orders import UntakenOrders
from loadmanager.ports.coordination import CoordinationError

log = structlog.get_logger()

_POLL_S = 5.0
_UNTAKEN_POLL_S = 1.0
_RETRY_S = 0.2
_AFTER_ERROR_S = 1.0
_QUICK_S: Final = 0.005
_REST_OF_TURN: Final = 2.0
_LONGEST_REST_S: Final = 0.5


@dataclass(slots=True, eq=False)
class PlacementWorker:
    """Places bundles as soon as they need an owner, during one term.

    If ``brokers_own`` is set, brokers acquire bundles themselves, and only draining brokers are
    emptied.
    """

    context: Context
    tasks: TaskController
    absences: AbsentBrokers
    decider: Decider
    wanted: PlacementQueue
    drain: Drain
    untaken: UntakenOrders
    brokers_own: bool = False
    _work: Subscriptions = field(default_factory=Subscriptions, init=False)
    _unplaced: frozenset[BundleId] = field(default=frozenset(), init=False)
    _retry_s: float = field(default=_RETRY_S, init=False)

    @property
    def unowned(self) -> tuple[BundleId, ...]:
        return tuple(dict.fromkeys([*self.wanted, *self.absences.orphans()]))

    def planned(self, bundle: BundleId) -> BrokerId | None:
        planned = self.tasks.assigned.get(bundle)
        passed_over = planned in self.untaken.passed_over
        return (
            planned if planned in self.context.cluster_state.brokers and not passed_over else None
        )

    async def assign(self, bundle: BundleId) -> BrokerId:
        answer, new = self.wanted.ask(bundle)
        if new:
            self._work.notify()
        return await asyncio.shield(answer)

    async def run(self) -> None:
        """Place bundles requested by lookups, or of departed brokers. Raises `Deposed`."""
        self.context.cluster_state.changes.subscribe(self._work.notify)
        try:
            while True:
                try:
                    await self._turn()
                except Deposed:
                    raise
                except Exception as error:  # noqa: BLE001 - waiting lookups get it, and it continues
                    self.context.unexpected.caught("placing", error)
                    self.wanted.refuse_all("the leader failed unexpectedly; see its log")
                    await self.context.clock.sleep(_AFTER_ERROR_S)
        finally:
            self.context.cluster_state.changes.unsubscribe(self._work.notify)

    async def _turn(self) -> None:
        """Place pending bundles, rest, and wait for more unless some arrived meanwhile.

        A turn iterates over all bundles, however few it places, and waits for its write. So with
        many brokers the rest after a turn is proportional to its duration: most of the event
        loop remains for leases and lookups, and when writes are slow, turns are fewer and
        larger.
        """
        clock, came = self.context.clock, self._work.version
        began_s = clock.monotonic_s()
        wait_s = await (self._empty() if self.brokers_own else self._place())
        took_s = clock.monotonic_s() - began_s
        if took_s > _QUICK_S and not self.context.cluster_state.lists.few:
            await clock.sleep(min(_REST_OF_TURN * took_s, _LONGEST_REST_S))
        if wait_s and self._work.version == came:
            await self._work.wait(wait_s)

    async def _empty(self) -> float:
        """Empty draining brokers; return how long to wait for a change, 0 for no wait."""
        try:
            return 0.0 if await self._empty_draining() else _POLL_S
        except CoordinationError as error:
            log.warning("broker.drain.failed", error=str(error))
            await self.context.clock.sleep(_RETRY_S)
            return 0.0

    async def _place(self) -> float:
        """Place all bundles that can be placed; return as `_empty`."""
        self.wanted.answer_planned(self.planned)
        orphans = self.absences.orphans()
        awaited = self.absences.awaited(orphans)
        # A bundle with a planned owner is placed elsewhere only if that broker has certainly
        # left, which is unknown while the cluster state is incomplete.
        planless = [bundle for bundle in self.wanted if bundle not in self.tasks.assigned]
        try:
            await self.untaken.check()
            everything = dict.fromkeys([*planless, *orphans, *self.untaken.bundles()])
            bundles = [bundle for bundle in everything if bundle not in awaited]
            emptied = await self._empty_draining()
            if not bundles:
                poll_s = _UNTAKEN_POLL_S if self.untaken.waiting else _POLL_S
                return 0.0 if emptied else min([poll_s, *awaited.values()])
            choices = self.decider.choose(bundles)
            found = await self.decider.order(choices, AskedBy.UNOWNED)
        except CoordinationError as error:
            self.wanted.refuse_all(f"the order could not be written: {error}")
            await self.context.clock.sleep(_RETRY_S)
            return 0.0
        self.wanted.answer(found.ordered, choices.refusals, found.refused)
        return self._until_retry(frozenset(bundles) - found.ordered.keys())

    def _until_retry(self, unplaced: frozenset[BundleId]) -> float:
        """Return the wait before bundles that could not be placed are tried again, 0 for none.

        It doubles as long as no others are left: each try iterates over all bundles, and a change
        of the cluster ends the wait.
        """
        again = unplaced <= self._unplaced
        self._retry_s = min(2 * self._retry_s, _POLL_S) if again else _RETRY_S
        self._unplaced = unplaced
        return self._retry_s if unplaced else 0.0

    async def _empty_draining(self) -> bool:
        leaving = self.drain.due()
        if not leaving:
            return False
        choices = self.decider.choose(leaving, leaving, Cause.DRAINING)
        found = await self.decider.order(choices, AskedBy.DRAIN)
        self.drain.refused([*choices.refusals, *found.refused])
        if found.ordered:
            sources = {leaving[bundle] for bundle in found.ordered}
            self.context.metrics.bundles_unloaded(len(found.ordered), len(sources))
        return True

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from loadmanager.common.cluster_state import OwnerView
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.common.watching import Subscriptions
from loadmanager.core.absences import AbsenceRules, Absences, Drains
from loadmanager.core.bundle_task import AskedBy
from loadmanager.core.ids import BrokerId, BundleId, belongs_to_a_broker
from loadmanager.core.plan import Cause, Refusal
from loadmanager.leader.decisions import Decider
from loadmanager.leader.election import Deposed
from loadmanager.leader.task_controller import TaskController
from loadmanager.ports.coordination import CoordinationError
from loadmanager.ports.lookup import LookupRefused, Unavailable

log = structlog.get_logger()

_POLL_S = 5.0
_UNCLAIMED_POLL_S = 1.0
_RETRY_S = 0.2
_AFTER_ERROR_S = 1.0
_QUICK_S: Final = 0.005
_REST_OF_TURN: Final = 2.0
_LONGEST_REST_S: Final = 0.5


def why(reasons: Iterable[Refusal]) -> str:
    return ", ".join(reason.detail or reason.reason.value for reason in reasons)


@dataclass(slots=True, eq=False)
class PlacementWorker:
    """Places bundles as soon as they need an owner; if ``brokers_own``, only empties brokers."""

    context: Context
    owners: OwnerView
    tasks: TaskController
    settings: RuntimeSettings
    decider: Decider
    brokers_own: bool
    _wanted: dict[BundleId, asyncio.Future[BrokerId]] = field(default_factory=dict, init=False)
    _absences: Absences = field(default_factory=Absences, init=False)
    _drains: Drains = field(default_factory=Drains, init=False)
    _work: Subscriptions = field(default_factory=Subscriptions, init=False)
    _unplaced: frozenset[BundleId] = field(default=frozenset(), init=False)
    _retry_s: float = field(default=_RETRY_S, init=False)

    @property
    def unowned(self) -> tuple[BundleId, ...]:
        return tuple(dict.fromkeys([*self._wanted, *self._orphans()]))

    def planned(self, bundle: BundleId) -> BrokerId | None:
        planned = self.tasks.assigned.get(bundle)
        excluded = planned in self.decider.reconciler.excluded
        return planned if planned in self.context.cluster_state.brokers and not excluded else None

    async def assign(self, bundle: BundleId) -> BrokerId:
        if bundle not in self._wanted:
            self._wanted[bundle] = asyncio.get_running_loop().create_future()
            self._work.notify()
        return await asyncio.shield(self._wanted[bundle])

    def _answer(self, bundle: BundleId, answer: BrokerId | LookupRefused) -> None:
        future = self._wanted.pop(bundle, None)
        if future is None or future.done():
            return
        if isinstance(answer, LookupRefused):
            future.set_exception(answer)
            future.exception()  # The requester may be gone; the error is then no fault.
        else:
            future.set_result(answer)

    def refuse_all(self, reason: str, kind: type[LookupRefused] = Unavailable) -> None:
        for bundle in list(self._wanted):
            self._answer(bundle, kind(reason))

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
                    self.refuse_all("the leader failed unexpectedly; see its log")
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
        try:
            if self.brokers_own:
                wait_s = 0.0 if await self._empty_draining() else _POLL_S
            else:
                wait_s = await self._place()
        except CoordinationError as error:
            if self.brokers_own:
                log.warning("broker.drain.failed", error=str(error))
            self.refuse_all(f"the order could not be written: {error}")
            await clock.sleep(_RETRY_S)
            wait_s = 0.0
        took_s = clock.monotonic_s() - began_s
        if took_s > _QUICK_S and not self.context.cluster_state.lists.is_small:
            await clock.sleep(min(_REST_OF_TURN * took_s, _LONGEST_REST_S))
        if wait_s and self._work.version == came:
            await self._work.wait(wait_s)

    async def _place(self) -> float:
        """Place what can be placed; return how long to wait for a change, 0 for no wait."""
        for bundle in list(self._wanted):
            if (planned := self.planned(bundle)) is not None:
                self._answer(bundle, planned)
        orphans = self._orphans()
        awaited = self._awaited(orphans)
        # A bundle with a planned owner is placed elsewhere only if that broker has certainly
        # left, which is unknown while the cluster state is incomplete.
        planless = [bundle for bundle in self._wanted if bundle not in self.tasks.assigned]
        await self.decider.reconciler.check()
        everything = dict.fromkeys([*planless, *orphans, *self.decider.reconciler.bundles()])
        bundles = [bundle for bundle in everything if bundle not in awaited]
        emptied = await self._empty_draining()
        if not bundles:
            poll_s = _UNCLAIMED_POLL_S if self.decider.reconciler.waiting else _POLL_S
            return 0.0 if emptied else min([poll_s, *awaited.values()])
        choices = self.decider.choose(bundles)
        found = await self.decider.order(choices, AskedBy.UNOWNED)
        for bundle, broker in found.ordered.items():
            self.context.metrics.assignments.labels("placed").inc()
            log.info("bundle.assignment.decided", bundle=bundle, target=broker)
            self._answer(bundle, broker)
        for bundle, reasons in choices.refusals.items():
            self.context.metrics.assignments.labels("refused").inc()
            self._answer(bundle, Unavailable(f"no broker can take {bundle} ({why(reasons)})"))
        for bundle, reason in found.refused.items():
            self._answer(bundle, Unavailable(f"{bundle} could not be ordered: {reason}"))
        unplaced = frozenset(bundles) - found.ordered.keys()
        # The wait doubles as long as no others are left: each try iterates over all bundles, and
        # a change of the cluster ends the wait.
        again = unplaced <= self._unplaced
        self._retry_s = min(2 * self._retry_s, _POLL_S) if again else _RETRY_S
        self._unplaced = unplaced
        return self._retry_s if unplaced else 0.0

    def _orphans(self) -> Mapping[BundleId, BrokerId]:
        brokers = self.context.cluster_state.brokers
        if not brokers or not self.context.cluster_state.current:
            return {}
        return {b: planned for b, planned in self.tasks.assigned.items() if planned not in brokers}

    def _awaited(self, orphans: Mapping[BundleId, BrokerId]) -> Mapping[BundleId, float]:
        """Return how much longer orphans wait for brokers that vanished together to return."""
        now_s, state, settings = (
            self.context.clock.monotonic_s(),
            self.context.cluster_state,
            self.settings.now,
        )
        if not state.current:
            return {}  # Neither departures nor returns can be observed.
        session_s = self.context.coordination.session.timeout_s
        rules = AbsenceRules(
            return_wait_s=settings.config.leader.return_wait_s,
            max_lost_fraction=settings.planner.settings.max_lost_fraction,
            session_s=session_s,
            # A crashed broker is missed one session timeout later: a leader connected for that
            # long has watched it.
            connected_s=state.connected_at_s + session_s,
        )
        new = self._absences.observe(now_s, set(orphans.values()), state.brokers, rules)
        if new:
            wait_s = round(max(new.values()), 3)
            log.warning("broker.return.awaited", brokers=sorted(new), wait_s=wait_s)
        until_s = self._absences.awaited_until_s
        waiting = {
            bundle: until_s[broker] - now_s
            for bundle, broker in orphans.items()
            if until_s.get(broker, now_s) > now_s
        }
        self.context.metrics.bundles_awaiting_return.set(len(waiting))
        return waiting

    async def _empty_draining(self) -> bool:
        state, most = self.context.cluster_state, self.settings.now.task_bounds.most_per_broker
        now_s = self.context.clock.monotonic_s()
        left = {
            broker: most - self.tasks.tasks.under_way(broker)
            for broker, known in state.brokers.items()
            if known.registration.draining and state.current
        }
        leaving = self._drains.due(self._staying(left), left, now_s)
        if not leaving:
            return False
        choices = self.decider.choose(leaving, leaving, Cause.DRAINING)
        found = await self.decider.order(choices, AskedBy.DRAIN)
        refused = [*choices.refusals, *found.refused]
        self._drains.refused(refused, self.context.clock.monotonic_s())
        return True

    def _staying(self, draining: Collection[BrokerId]) -> Iterator[tuple[BundleId, BrokerId]]:
        if not draining:
            return
        assigned = self.tasks.assigned
        for bundle, planned in assigned.items():
            if planned in draining and not belongs_to_a_broker(bundle):
                yield bundle, planned
        for bundle, holding in self.owners.owners.items():
            ordered = bundle in assigned or belongs_to_a_broker(bundle)
            if holding.broker in draining and not ordered:
                yield bundle, holding.broker

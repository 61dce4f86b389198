import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator

import structlog

from loadmanager.agent.former_locks import FormerLocks
from loadmanager.agent.lease import LeaseBackoff, LeaseKeeper
from loadmanager.agent.load_reports import HealthWatch, Publisher
from loadmanager.agent.locks import LockWorker
from loadmanager.agent.ownership import AcceptedOrders, OwnershipWorker
from loadmanager.agent.registration import (
    BrokerLost,
    Displaced,
    LeaseLapsed,
    LeaseTerms,
    Membership,
    MembershipEnded,
    OnStandby,
    Registrar,
    Takeover,
    deregister,
    register,
)
from loadmanager.agent.splits import Splitter
from loadmanager.common.context import Context, first_leaf, leaves, raise_if_cancelled
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core import znodes
from loadmanager.core.ids import belongs_to_a_broker
from loadmanager.core.lease import Heartbeats
from loadmanager.core.load import LoadReport
from loadmanager.ports.broker import BrokerError, NotTheContract, StaleAgent
from loadmanager.ports.coordination import CoordinationError

log = structlog.get_logger()

_POLL_S = 0.02


class Shutdown:
    def __init__(
        self, context: Context, ownerships: OwnershipWorker, settings: RuntimeSettings
    ) -> None:
        self._context = context
        self._ownerships = ownerships
        self._settings = settings
        self.begun = False

    async def drain(self) -> None:
        """Wait while the leader hands over all bundles, and another broker could take them."""
        if not self.has_other_brokers():
            return
        bundles, begun_s = self._ownerships.records.count, self._context.clock.monotonic_s()
        # A broker's own bundles never move, so it does not wait for them.
        await self.await_release(
            begun_s + self._settings.now.config.ownership.drain_deadline_s,
            while_true=lambda: (
                self.has_other_brokers()
                and not all(map(belongs_to_a_broker, self._ownerships.phases))
            ),
        )
        log.info(
            "broker.drain.ended",
            bundles=bundles,
            left=self._ownerships.records.count,
            took_s=round(self._context.clock.monotonic_s() - begun_s, 3),
        )

    async def leave(self, membership: Membership, within_s: float) -> None:
        """Release everything in order, so that no client waits for the session to expire.

        The registration goes first: the leader then plans new owners while this broker
        still serves, and recalls each bundle when it has. What is not recalled after
        half of ``within_s``, or has no broker to go to, is given back all the same.
        """
        try:
            await deregister(self._context.coordination, membership)
        except CoordinationError as error:
            log.warning("broker.deregistration.failed", why=str(error))
        begun_s = self._context.clock.monotonic_s()
        await self.await_release(begun_s + within_s / 2, while_true=self.has_other_brokers)
        self._ownerships.recall_all()
        await self.await_release(begun_s + within_s)

    async def serving_ended(self, leased_until_s: float) -> None:
        """Wait until the broker serves nothing under this session's locks, before it closes."""
        records = self._ownerships.records
        if records.may_be_served:
            log.warning("broker.lease.awaited", bundles=records.count)
            await self.await_release(leased_until_s, while_true=lambda: records.may_be_served)

    async def await_release(
        self, deadline_s: float, *, while_true: Callable[[], bool] = lambda: True
    ) -> None:
        """Return when nothing is left, at the deadline, or when the condition ends."""
        clock = self._context.clock
        while self._ownerships.records.count and while_true() and clock.monotonic_s() < deadline_s:
            await clock.sleep(_POLL_S)

    def has_other_brokers(self) -> bool:
        me, cluster_state = self._context.identity.broker, self._context.cluster_state
        return cluster_state.current and any(
            broker != me and known.registration.takes
            for broker, known in cluster_state.brokers.items()
        )


_LEAST_PAUSE_S = 0.5
_COMPARE_S = 0.5
_DROP_POLL_S = 0.02


class OwningAgent:
    def __init__(
        self,
        context: Context,
        ownerships: OwnershipWorker,
        *,
        publisher: Publisher,
        splitter: Splitter,
        lease_terms: LeaseTerms,
        health: HealthWatch,
        leaving: Shutdown,
    ) -> None:
        self._context = context
        self._ownerships = ownerships
        self._publisher = publisher
        self._splitter = splitter
        self._lease_terms = lease_terms
        self._intention = publisher.sampler.intention
        self._health = health
        self._leaving = leaving
        self._succession = Takeover(context.identity, context.coordination, context.clock)
        self._registrar = Registrar(context)
        self._backoff = LeaseBackoff(context, self._succession)
        self._membership: Membership | None = None
        self._lapsed: Membership | None = None
        self._lease: LeaseKeeper | None = None
        self._obedience = AcceptedOrders(context, ownerships.obey, ownerships.doubt)
        # Before the first session, which begins when this runs.
        self._heartbeats = Heartbeats(context.clock.monotonic_s())
        self._former_locks = FormerLocks(context, ownerships)
        context.cluster_state.owner_changes.subscribe(ownerships.retry_refused)

    @property
    def registered(self) -> bool:
        return self._membership is not None

    def unready(self) -> Iterator[str]:
        if self._membership is None or self._lease is None:
            yield f"the broker holds no lease: {self._backoff.why}"
        elif self._lease.leased_until_s <= self._context.clock.monotonic_s():
            yield "the broker holds no lease: it could not be renewed in time"
        if self._obedience.refused:
            yield f"the orders are not obeyed: {self._obedience.refused}"

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self._health.run(), name="health")
            await self._live()
            asking.cancel()

    async def _live(self) -> None:
        while not self._leaving.begun:
            try:
                await self._one_membership()
            except* Displaced as displaced:
                self._ownerships.displaced()
                self._log_end("broker.membership.displaced", displaced)
                self._backoff.refusal()
                with contextlib.suppress(CoordinationError):  # The next registration finds out.
                    await self._succession.check_command()
            except* OnStandby as waiting:
                self._backoff.standing_by(str(first_leaf(waiting)))
            except* (CoordinationError, BrokerError, MembershipEnded) as ended:
                self._log_end("broker.membership.ended", ended)
            except* Exception as unexpected:  # noqa: BLE001 - no error ends the sidecar
                # Its work may be half done: everything restarts from the state of
                # ZooKeeper and the broker.
                for error in leaves(unexpected):
                    self._context.unexpected.caught("membership", error)
                self._log_end("broker.membership.ended", unexpected)
            finally:
                self._membership = None
                self._former_locks.add(self._ownerships.records.tokens)
                self._ownerships.session_lost()
            raise_if_cancelled()
            await self._context.clock.sleep(self._pause_s())

    def _pause_s(self) -> float:
        pause_s = self._backoff.pause_s
        if not self._former_locks or self._lease is None:
            return pause_s
        left_s = self._lease.leased_until_s - self._context.clock.monotonic_s()
        return min(pause_s, max(left_s, _LEAST_PAUSE_S))

    def _log_end(self, event: str, ended: BaseExceptionGroup[Exception]) -> None:
        log_asked = log.debug if self._backoff.refused else log.warning
        for error in leaves(ended):
            why = str(error) or type(error).__name__
            unasked = self._membership is None and isinstance(error, BrokerError)
            (log.debug if unasked else log_asked)(event, why=why)
            self._backoff.ended(why, no_contract=isinstance(error, NotTheContract))

    async def drain(self) -> None:
        self._intention.stop()
        if self._membership is not None:
            await self._leaving.drain()

    async def leave(self, within_s: float) -> None:
        self._leaving.begun = True
        if self._membership is not None:
            await self._leaving.leave(self._membership, within_s)

    async def serving_ended(self) -> None:
        if self._lease:
            await self._leaving.serving_ended(self._lease.leased_until_s)

    async def _one_membership(self) -> None:
        context, registrar = self._context, self._registrar
        await registrar.ready()
        if self._lease:
            await self._former_locks.release(self._lease.leased_until_s)
            if self._lapsed is not None:  # It registers again once a lease could be held.
                await self._registrar.give_up(self._lapsed)
                await self._lease.provable()
                self._lapsed = None
        mark = znodes.draining(context.identity.broker)
        drained, _ = await asyncio.gather(context.coordination.get(mark), self._obedience.learn())
        self._intention.mark_read(drained)
        report = self._publisher.fitting(await self._first_report())
        membership, former = await register(
            context.coordination, context.identity, report, self._succession
        )
        # Not before: they may change while it waits for its turn, and by former ones it would
        # stop bundles that it is to continue to serve.
        await self._obedience.read()
        self._backoff.registered()
        earlier_end_s = self._lease.leased_until_s if self._lease else context.clock.monotonic_s()
        lease = LeaseKeeper(
            context,
            self._ownerships,
            self._lease_terms,
            membership,
            earlier_end_s=earlier_end_s,
            heartbeats=self._heartbeats,
            has_other_brokers=self._leaving.has_other_brokers,
        )
        self._lease = lease
        self._ownerships.registered(membership)
        self._former_locks.add(former)
        try:
            serving = await lease.begin()
            self._backoff.leased()
            await self._former_locks.clear(membership, serving)
            self._membership = membership
            context.cluster_state.changes.notify()  # This sidecar may be eligible to lead now.
            await self._run_membership(membership, report, lease)
        except* StaleAgent as stale:
            raise Displaced(f"the broker obeys a newer agent: {first_leaf(stale)}") from stale
        except* Displaced:
            if self._membership is None:
                await registrar.give_up(membership)
            raise
        except* (BrokerError, BrokerLost):
            self._backoff.refusal()
            await registrar.give_up(membership)
            raise
        except* LeaseLapsed:
            self._lapsed = membership
            raise
        except* (CoordinationError, MembershipEnded):
            raise
        except* Exception:
            await registrar.give_up(membership)
            raise

    async def _first_report(self) -> LoadReport:
        try:
            report = await self._publisher.sampler.sample()
            if self._backoff.refused:
                await self._backoff.ask()
        except BrokerError as error:
            if isinstance(error, NotTheContract):
                self._backoff.refusal()
            await self._registrar.take_back()
            raise
        return report

    async def _run_membership(
        self, membership: Membership, report: LoadReport, lease: LeaseKeeper
    ) -> None:
        """Own, publish, split and renew. Raises, in a group, what ends the membership."""
        watch, broker = self._context.coordination.watch, membership.broker
        watches = (
            watch(znodes.orders(broker), self._obedience.seen),
            watch(znodes.draining(broker), self._intention.mark_read),
        )
        locks = LockWorker(self._context, self._ownerships, membership)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._ownerships.joined(membership)
                tasks.create_task(locks.run(), name="locks")
                tasks.create_task(self._former_locks.run(membership), name="former locks")
                tasks.create_task(self._publisher.run(membership, report), name="reports")
                tasks.create_task(self._compare_now_and_then(), name="comparison")
                tasks.create_task(self._splitter.run(), name="splits")
                tasks.create_task(self._watch_registration(membership), name="registration")
                tasks.create_task(self._watch_rejections(), name="disobedience")
                tasks.create_task(self._obedience.run(), name="obedience")
                try:
                    await lease.run()
                except BrokerLost:
                    while self._ownerships.records.count:
                        # Again each time: a lock whose taking was under way is taken only now, and
                        # no renewal follows any more that would have a failed unload repeated.
                        self._ownerships.broker_lost()
                        await self._context.clock.sleep(_DROP_POLL_S)
                    raise
        finally:
            for one in watches:
                one.close()

    async def _compare_now_and_then(self) -> None:
        while True:
            await self._context.clock.sleep(_COMPARE_S)
            self._ownerships.retry_refused()

    async def _watch_registration(self, membership: Membership) -> None:
        """Raises `MembershipEnded`: the registration was deleted; `Displaced`: it is another's."""
        await self._registrar.until_deleted(membership, lambda: self._leaving.begun)
        # The leader assigns our bundles to other brokers, so we release them.
        self._ownerships.recall_all()
        await self._leaving.await_release(math.inf)
        raise MembershipEnded("the registration was deleted")

    async def _watch_rejections(self) -> None:
        await self._ownerships.order_rejected.wait()
        raise Displaced("the broker obeys a newer agent, and refused a command of this one")

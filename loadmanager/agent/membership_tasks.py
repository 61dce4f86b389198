"""The tasks of an agent while its broker is registered and leased."""

import asyncio
import math

from loadmanager.agent.accepted_orders import AcceptedOrders
from loadmanager.agent.former_locks import FormerLocks
from loadmanager.agent.lease import LeaseKeeper
from loadmanager.agent.lease_terms import BrokerLost, Displaced, MembershipEnded
from loadmanager.agent.load_reports import Publisher
from loadmanager.agent.lock_worker import LockWorker
from loadmanager.agent.ownership_worker import OwnershipWorker
from loadmanager.agent.registration import Membership, Registrar
from loadmanager.agent.shutdown import Shutdown
from loadmanager.agent.splits import Splitter
from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.load import LoadReport

_COMPARE_S = 0.5
_DROP_POLL_S = 0.02


class MembershipTasks:
    """Runs the concurrent tasks of one membership after another."""

    def __init__(
        self,
        context: Context,
        ownerships: OwnershipWorker,
        *,
        registrar: Registrar,
        publisher: Publisher,
        splitter: Splitter,
        obedience: AcceptedOrders,
        leaving: Shutdown,
        former_locks: FormerLocks,
    ) -> None:
        self._context = context
        self._coordination = context.coordination
        self._clock = context.clock
        self._ownerships = ownerships
        self._registrar = registrar
        self._publisher = publisher
        self._splitter = splitter
        self._obedience = obedience
        self._leaving = leaving
        self._former_locks = former_locks

    async def run(self, membership: Membership, report: LoadReport, lease: LeaseKeeper) -> None:
        """Own, publish, split and renew; ``report`` is the report of the registration.

        Raises, in a group:
            MembershipEnded: the registration, the lease or the session is gone.
            Displaced: another sidecar took over this broker.
            CoordinationError: after this reply of ZooKeeper the agent must restart.
        """
        watch, broker = self._coordination.watch, membership.broker
        watches = (
            watch(znodes.orders(broker), self._obedience.seen),
            watch(znodes.draining(broker), self._publisher.sampler.intention.mark_read),
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
                tasks.create_task(self._watch_disobedience(), name="disobedience")
                tasks.create_task(self._obedience.run(), name="obedience")
                try:
                    await lease.run()
                except BrokerLost:
                    await self._drop_everything()
                    raise
        finally:
            for one in watches:
                one.close()

    async def _drop_everything(self) -> None:
        """Let the lock worker drop all locks of a broker that can no longer serve."""
        while self._ownerships.records.count:
            # Again each time: a lock whose taking was under way is taken only now, and no
            # renewal follows any more that would have a failed unload repeated.
            self._ownerships.broker_lost()
            await self._clock.sleep(_DROP_POLL_S)

    async def _compare_now_and_then(self) -> None:
        while True:
            await self._clock.sleep(_COMPARE_S)
            self._ownerships.retry_refused()

    async def _watch_registration(self, membership: Membership) -> None:
        """Detect that the registration was deleted or taken over.

        Raises:
            MembershipEnded: the registration was deleted while the session lives.
            Displaced: another session registered the same broker after us.
        """
        await self._registrar.until_deleted(membership, lambda: self._leaving.begun)
        # The leader assigns our bundles to other brokers, so we release them.
        self._ownerships.recall_all()
        await self._leaving.let_go(math.inf)
        raise MembershipEnded("the registration was deleted")

    async def _watch_disobedience(self) -> None:
        """Detect that the broker refuses a command because it obeys a newer agent.

        Raises:
            Displaced: the broker obeys a newer agent.
        """
        await self._ownerships.disobeyed.wait()
        raise Displaced("the broker obeys a newer agent, and refused a command of this one")

"""The agent's life: register, lease, own, publish; and again after every lost session."""

import asyncio
from collections.abc import Mapping

import structlog

from loadmanager.app.leasing import (
    BrokerLost,
    Displaced,
    LeaseKeeper,
    LeaseTerms,
    MembershipEnded,
)
from loadmanager.app.locking import LockKeeper
from loadmanager.app.owning import Membership, Ownerships
from loadmanager.app.parts import Parts
from loadmanager.app.publishing import Publisher, Sampler
from loadmanager.app.registration import clear_former_locks, deregister, register
from loadmanager.app.splitting import Splitter
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.orders import decode_orders
from loadmanager.ports import BrokerError, Connection, CoordinationError, Node

log = structlog.get_logger()

_RETRY_S = 0.5
_COMPARE_S = 0.5
_CONNECT_POLL_S = 0.1
_LEAVE_POLL_S = 0.02


class Member:
    """Keeps this broker in the cluster as well as the broker and the session allow."""

    def __init__(
        self,
        parts: Parts,
        ownerships: Ownerships,
        *,
        sampler: Sampler,
        publisher: Publisher,
        splitter: Splitter,
        lease_terms: LeaseTerms,
    ) -> None:
        self._parts = parts
        self._ownerships = ownerships
        self._sampler = sampler
        self._publisher = publisher
        self._splitter = splitter
        self._lease_terms = lease_terms
        self._membership: Membership | None = None
        self._stopping = False
        parts.picture.owner_changes.subscribe(ownerships.retry_refused)

    @property
    def registered(self) -> bool:
        """Whether the broker is registered and leased in the present session."""
        return self._membership is not None

    async def run(self) -> None:
        """Live until cancelled.

        Raises:
            ExceptionGroup: with `Displaced`: another sidecar took over this broker.
        """
        while True:
            try:
                await self._one_membership()
            except* (CoordinationError, BrokerError, MembershipEnded) as ended:
                for error in _leaves(ended):
                    why = str(error) or type(error).__name__
                    log.warning("broker.membership.ended", why=why)
            finally:
                self._membership = None
                self._ownerships.session_lost()
            await self._parts.clock.sleep(_RETRY_S)

    async def leave(self, within_s: float) -> None:
        """Give everything back in order, so that nobody waits for the session to expire.

        The registration goes first: the leader then plans new owners while this broker
        still serves, and they take each lock as soon as it is dropped.
        """
        self._stopping = True
        if self._membership is None:
            return
        deadline_s = self._parts.clock.monotonic_s() + within_s
        try:
            await deregister(self._parts.coordination, self._membership)
        except CoordinationError as error:
            log.warning("broker.registration.kept", why=str(error))
        self._ownerships.recall_all()
        while self._ownerships.phases and self._parts.clock.monotonic_s() < deadline_s:
            await self._parts.clock.sleep(_LEAVE_POLL_S)

    async def _one_membership(self) -> None:
        parts = self._parts
        while parts.coordination.session.connection is not Connection.CONNECTED:
            await parts.clock.sleep(_CONNECT_POLL_S)
        self._orders_changed(await parts.coordination.get(znodes.orders(parts.identity.broker)))
        report = await self._sampler.sample()
        membership, former = await register(parts.coordination, parts.identity, report)
        lease = LeaseKeeper(parts, self._ownerships, self._lease_terms, membership)
        try:
            await lease.begin()
            await clear_former_locks(parts, membership, self._unwanted(former))
            self._membership = membership
            await self._work(membership, report, lease)
        except* (BrokerError, BrokerLost):
            await deregister(parts.coordination, membership)
            raise

    def _unwanted(self, former: Mapping[BundleId, int]) -> dict[BundleId, int]:
        """Return what an earlier session owned and nobody wants here any more, with tokens.

        The wanted ones are left to the lock keeper, which replaces their locks in one
        commit: nobody can come between, and the broker serves them all the time.
        """
        orders = self._ownerships.orders
        wanted = orders.bundles if orders else frozenset()
        return {bundle: token for bundle, token in former.items() if bundle not in wanted}

    async def _work(self, membership: Membership, report: LoadReport, lease: LeaseKeeper) -> None:
        parts = self._parts
        keeper = LockKeeper(parts, self._ownerships, membership)
        orders_path = znodes.orders(membership.broker)
        watch = parts.coordination.watch(orders_path, self._orders_changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._ownerships.joined(membership)
                tasks.create_task(keeper.run(), name="locks")
                tasks.create_task(self._publisher.run(membership, report), name="reports")
                tasks.create_task(self._compare_now_and_then(), name="comparison")
                tasks.create_task(self._splitter.run(), name="splits")
                tasks.create_task(self._guard_registration(membership), name="registration")
                try:
                    await lease.run()
                except BrokerLost:
                    await self._drop_everything()
                    raise
        finally:
            watch.close()

    async def _drop_everything(self) -> None:
        """Drop all locks of a broker that cannot serve any more, while the keeper runs."""
        ownerships = self._ownerships
        ownerships.broker_lost()
        while ownerships.tokens:
            await self._parts.clock.sleep(_LEAVE_POLL_S)

    async def _compare_now_and_then(self) -> None:
        while True:
            await self._parts.clock.sleep(_COMPARE_S)
            self._ownerships.retry_refused()

    async def _guard_registration(self, membership: Membership) -> None:
        """Notice that the registration was deleted or taken over.

        Raises:
            MembershipEnded: it is gone while the session lives.
            Displaced: another session registered the same broker after us.
        """
        seen: asyncio.Queue[Node | None] = asyncio.Queue()
        watch = self._parts.coordination.watch(znodes.report(membership.broker), seen.put_nowait)
        try:
            while True:
                node = await seen.get()
                if self._parts.coordination.session.session_id != membership.session_id:
                    raise MembershipEnded("the session was replaced")
                if self._stopping:
                    continue
                if node is None:
                    raise MembershipEnded("the registration was deleted")
                if node.stat.ephemeral_owner != membership.session_id:
                    raise Displaced(
                        f"session {node.stat.ephemeral_owner:#x} registered {membership.broker} too"
                    )
        finally:
            watch.close()

    def _orders_changed(self, node: Node | None) -> None:
        if node is None or self._stopping:
            return
        path = znodes.orders(self._parts.identity.broker)
        try:
            self._ownerships.obey(decode_orders(path, node.data))
        except MalformedContent as error:
            # The former orders stand: to own nothing would be the worst reading of garbage.
            log.warning("znode.content.refused", path=path, error=str(error))
            self._parts.metrics.malformed("orders")


def _leaves(group: BaseExceptionGroup[Exception]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves

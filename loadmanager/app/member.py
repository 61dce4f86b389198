"""The agent's life: register, lease, own, publish; and again after every lost session."""

import asyncio
import contextlib
import math
from collections.abc import Collection, Iterator, Mapping

import structlog

from loadmanager.app.endings import first_leaf, heed_cancellation, leaves
from loadmanager.app.health import HealthWatch
from loadmanager.app.leasing import (
    BrokerLost,
    Displaced,
    LeaseKeeper,
    LeaseTerms,
    MembershipEnded,
)
from loadmanager.app.leaving import Leaving
from loadmanager.app.lock_worker import LockWorker
from loadmanager.app.membership import Membership
from loadmanager.app.obedience import Obedience
from loadmanager.app.owning import Ownerships
from loadmanager.app.parts import Parts
from loadmanager.app.publishing import Publisher, Sampler
from loadmanager.app.registration import (
    clear_former_locks,
    deregister,
    listed_here,
    register,
    release_locks,
)
from loadmanager.app.splitting import Splitter
from loadmanager.app.succession import StandingBy, Succession
from loadmanager.app.unleased import Unleased
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.lease import Heartbeats
from loadmanager.core.load import LoadReport
from loadmanager.ports import (
    BrokerError,
    Connection,
    CoordinationError,
    Node,
    NotTheContract,
    StaleAgent,
)

log = structlog.get_logger()

_LEAST_PAUSE_S = 0.5
_COMPARE_S = 0.5
_DROP_POLL_S = 0.02
_CONNECT_POLL_S = 0.1
_TELL_EVERY_S = 30.0


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
        health: HealthWatch,
        leaving: Leaving,
    ) -> None:
        self._parts = parts
        self._ownerships = ownerships
        self._sampler = sampler
        self._publisher = publisher
        self._splitter = splitter
        self._lease_terms = lease_terms
        self._intention = sampler.intention
        self._health = health
        self._leaving = leaving
        self._succession = Succession(parts.identity, parts.coordination, parts.clock)
        self._unleased = Unleased(parts, self._succession)
        self._membership: Membership | None = None
        self._given_up: Membership | None = None
        self._lease: LeaseKeeper | None = None
        self._stopping = False
        self._tell_again_s = -math.inf
        self._obedience = Obedience(parts, ownerships.obey, ownerships.doubt)
        self._last_agent_epoch = 0
        # Before the first session, which begins when this runs.
        self._heartbeats = Heartbeats(parts.clock.monotonic_s())
        self._left_behind: dict[BundleId, int] = {}
        parts.picture.owner_changes.subscribe(ownerships.retry_refused)

    @property
    def registered(self) -> bool:
        """Whether the broker is registered and leased in the present session."""
        return self._membership is not None

    def unready(self) -> Iterator[str]:
        """Yield why the broker cannot serve what it is ordered to."""
        if self._membership is None or self._lease is None:
            yield f"the broker holds no lease: {self._unleased.why}"
        elif self._lease.leased_until_s <= self._parts.clock.monotonic_s():
            yield "the broker holds no lease: it could not be renewed in time"
        if self._obedience.refused:
            yield f"the orders are not obeyed: {self._obedience.refused}"

    async def run(self) -> None:
        """Live until cancelled, or until a membership ends after `leave`.

        Raises:
            ExceptionGroup: with `Displaced`: another sidecar took over this broker.
        """
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self._health.run(), name="health")
            await self._live()
            asking.cancel()

    async def _live(self) -> None:
        while not self._stopping:
            try:
                await self._one_membership()
            except* Displaced as displaced:
                self._ownerships.displaced()
                await self._give_way(displaced)
            except* StandingBy as waiting:
                self._stands_by(waiting)
            except* (CoordinationError, BrokerError, MembershipEnded) as ended:
                self._tell_end("broker.membership.ended", ended)
            except* Exception as unexpected:  # noqa: BLE001 - no error ends the sidecar
                # Whatever it works on may be half done: all of it begins anew from what
                # ZooKeeper and the broker say.
                for error in leaves(unexpected):
                    self._parts.unexpected.caught("membership", error)
                self._tell_end("broker.membership.ended", unexpected)
            finally:
                self._membership = None
                self._left_behind.update(self._ownerships.records.tokens)
                self._ownerships.session_lost()
            heed_cancellation()
            await self._parts.clock.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """Return how long to wait, not much beyond the moment when locks can be released."""
        pause_s = self._unleased.pause_s
        if not self._left_behind or self._lease is None:
            return pause_s
        left_s = self._lease.leased_until_s - self._parts.clock.monotonic_s()
        return min(pause_s, max(left_s, _LEAST_PAUSE_S))

    def _tell_end(self, event: str, ended: BaseExceptionGroup[Exception]) -> None:
        tell = log.debug if self._unleased.refused else log.warning
        for error in leaves(ended):
            why = str(error) or type(error).__name__
            unasked = self._membership is None and isinstance(error, BrokerError)
            (log.debug if unasked else tell)(event, why=why)
            self._unleased.ended(why, no_contract=isinstance(error, NotTheContract))

    async def drain(self) -> None:
        """Tell the leader that this broker stops, and wait while it hands everything over."""
        self._intention.stop()
        if self._membership is not None:
            await self._leaving.drain()

    async def leave(self, within_s: float) -> None:
        """Give everything back in order, so that nobody waits for the session to expire."""
        self._stopping = True
        if self._membership is not None:
            await self._leaving.leave(self._membership, within_s)

    async def serving_ended(self) -> None:
        """Return when the broker surely serves nothing that this session's locks protect."""
        if self._lease:
            await self._leaving.serving_ended(self._lease.leased_until_s)

    def _stands_by(self, waiting: BaseExceptionGroup[StandingBy]) -> None:
        now_s = self._parts.clock.monotonic_s()
        self._parts.metrics.standing_by.set(1)
        self._unleased.why = str(first_leaf(waiting))
        if now_s >= self._tell_again_s:
            self._tell_again_s = now_s + _TELL_EVERY_S
            for error in leaves(waiting):
                log.error("broker.registration.awaited", why=str(error))

    async def _give_way(self, displaced: BaseExceptionGroup[Displaced]) -> None:
        """End, unless who took over is gone by now: then this agent registers again.

        Raises:
            Displaced: another sidecar has this broker; the message says which.
        """
        self._tell_end("broker.membership.displaced", displaced)
        self._unleased.refusal()
        with contextlib.suppress(CoordinationError):  # The next registration tells.
            await self._succession.insist()

    async def _one_membership(self) -> None:
        parts = self._parts
        while parts.coordination.session.connection is not Connection.CONNECTED:
            await parts.clock.sleep(_CONNECT_POLL_S)
        await self._deregister_given_up()
        await self._release_left_behind()
        mark = znodes.draining(parts.identity.broker)
        drained, _ = await asyncio.gather(parts.coordination.get(mark), self._obedience.learn())
        self._intention.mark_read(drained)
        report = self._publisher.fitting(await self._first_report())
        membership, former = await register(
            parts.coordination, parts.identity, report, self._succession
        )
        self._tell_if_replaced(membership)
        # Not before: they may change while it waits for its turn, and by former ones it would
        # stop what it serves and is to go on serving.
        await self._obedience.read()
        parts.metrics.standing_by.set(0)
        self._tell_again_s = -math.inf
        earlier_end_s = self._lease.leased_until_s if self._lease else parts.clock.monotonic_s()
        lease = LeaseKeeper(
            parts,
            self._ownerships,
            self._lease_terms,
            membership,
            earlier_end_s=earlier_end_s,
            heartbeats=self._heartbeats,
        )
        self._lease = lease
        self._ownerships.registered(membership)
        locked = self._left_behind = {**former, **self._left_behind}
        try:
            serving = await lease.begin()
            self._unleased.leased()
            await self._stop_what_has_no_lock(membership, serving, locked)
            await clear_former_locks(parts, membership, self._unwanted(locked))
            self._left_behind = {}
            self._membership = membership
            parts.picture.changes.tell()  # Who was not eligible to lead may be so now.
            await self._work(membership, report, lease)
        except* StaleAgent as stale:
            raise Displaced(f"the broker obeys a newer agent: {first_leaf(stale)}") from stale
        except* Displaced:
            if self._membership is None:
                await self._give_up(membership)
            raise
        except* (BrokerError, BrokerLost):
            self._unleased.refusal()
            await self._give_up(membership)
            raise
        except* (CoordinationError, MembershipEnded):
            raise
        except* Exception:
            await self._give_up(membership)
            raise

    async def _first_report(self) -> LoadReport:
        """Return the report to register with, once the broker may be expected to take a lease."""
        try:
            report = await self._sampler.sample()
            if self._unleased.refused:
                await self._unleased.ask()
        except BrokerError as error:
            await self._take_back(error)
            raise
        return report

    def _tell_if_replaced(self, membership: Membership) -> None:
        if membership.agent_epoch < self._last_agent_epoch:
            log.error(
                "zookeeper.data.replaced",
                why="its transaction ids went back",
                agent_epoch=membership.agent_epoch,
                former=self._last_agent_epoch,
            )
        self._last_agent_epoch = membership.agent_epoch

    async def _give_up(self, membership: Membership) -> None:
        self._given_up = membership
        await self._deregister_given_up()

    async def _deregister_given_up(self) -> None:
        """Take a broker out that cannot serve; again later, where the write was lost.

        The session lives on, and with it a registration that nobody else may delete.
        """
        if self._given_up is not None:
            await deregister(self._parts.coordination, self._given_up)
            self._given_up = None

    async def _take_back(self, unasked: BrokerError) -> None:
        """Take out a broker that cannot be asked, if it is registered by this session.

        So it is where the reply to a registration was lost: nobody else may delete that.
        """
        if isinstance(unasked, NotTheContract):
            self._unleased.refusal()
        coordination, broker = self._parts.coordination, self._parts.identity.broker
        session_id = coordination.session.session_id
        node = await coordination.get(znodes.registration(broker))
        if node is not None and node.stat.ephemeral_owner == session_id:
            await self._give_up(Membership(broker, session_id, node.stat.czxid))

    async def _release_left_behind(self) -> None:
        """Delete the locks of the membership before, once nothing is served under them.

        A broker that takes no command of this agent does not say so: the end of its lease does.
        """
        lease = self._lease
        if lease is None:
            return
        coordination, broker = self._parts.coordination, self._parts.identity.broker
        # Also what a commit took that was under way when that membership ended.
        listed = await listed_here(coordination, broker)
        self._left_behind = {**listed, **self._left_behind}
        now_s = self._parts.clock.monotonic_s()
        if not self._left_behind or now_s <= lease.leased_until_s:
            return
        await release_locks(coordination, broker, self._left_behind)
        self._left_behind = {}
        self._ownerships.broker_lost()

    async def _stop_what_has_no_lock(
        self, membership: Membership, serving: Mapping[BundleId, int], locked: Collection[BundleId]
    ) -> None:
        """Unload what an earlier agent loaded and had no lock of its own on any more.

        Such is a bundle that was cut: the locks of its parts protect it, so it has to
        stop before one of them is given away.
        """
        epoch = membership.agent_epoch
        for bundle, token in serving.items():
            if bundle not in locked:
                await self._parts.broker.unload(bundle, agent_epoch=epoch, fencing_token=token)

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
        locks = LockWorker(parts, self._ownerships, membership)
        orders_path = znodes.orders(membership.broker)
        watches = (
            parts.coordination.watch(orders_path, self._obedience.seen),
            parts.coordination.watch(znodes.draining(membership.broker), self._intention.mark_read),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                self._ownerships.joined(membership)
                tasks.create_task(locks.run(), name="locks")
                tasks.create_task(self._publisher.run(membership, report), name="reports")
                tasks.create_task(self._compare_now_and_then(), name="comparison")
                tasks.create_task(self._splitter.run(), name="splits")
                tasks.create_task(self._guard_registration(membership), name="registration")
                tasks.create_task(self._heed_disobedience(), name="disobedience")
                tasks.create_task(self._obedience.run(), name="obedience")
                try:
                    await lease.run()
                except BrokerLost:
                    await self._drop_everything()
                    raise
        finally:
            for watch in watches:
                watch.close()

    async def _drop_everything(self) -> None:
        """Drop all locks of a broker that cannot serve any more, while the keeper runs."""
        while self._ownerships.records.count:
            # Again each time: a lock whose taking was under way is taken only now, and no
            # renewal follows any more that would have a failed unload repeated.
            self._ownerships.broker_lost()
            await self._parts.clock.sleep(_DROP_POLL_S)

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
        watch = self._parts.coordination.watch(
            znodes.registration(membership.broker), seen.put_nowait
        )
        try:
            while True:
                node = await seen.get()
                if self._parts.coordination.session.session_id != membership.session_id:
                    raise MembershipEnded("the session was replaced")
                if self._stopping:
                    continue
                if node is None:
                    # The leader gives our bundles to others, so we give them back.
                    self._ownerships.recall_all()
                    await self._leaving.let_go(math.inf)
                    raise MembershipEnded("the registration was deleted")
                if node.stat.ephemeral_owner != membership.session_id:
                    raise Displaced(
                        f"session {node.stat.ephemeral_owner:#x} registered {membership.broker} too"
                    )
        finally:
            watch.close()

    async def _heed_disobedience(self) -> None:
        """End when the broker refuses a command of this agent because it obeys a newer one.

        Raises:
            Displaced: it does.
        """
        await self._ownerships.disobeyed.wait()
        raise Displaced("the broker obeys a newer agent, and refused a command of this one")

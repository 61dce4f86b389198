"""An agent's bundles: what it knows of each, and how orders, locks and the broker change that.

A record is created when the orders or the broker name a bundle, and removed when neither does
and no operation is under way. Each change of a record updates the derived sets, so the cost of
finding work depends on what has changed, not on what is owned. Orders, results of the lock
worker, the broker's replies and the end of a session or lease become events of the affected
bundles (`loadmanager.core.ownership`).

A split is made in one commit. The two bundles of a merge are first recalled as any other bundle.
Once the broker serves neither, their locks are dropped in the commit that creates the merged
bundle; if that fails, they are dropped as usual, and taken again because the orders still name
them. So both bundles are served again after any failure.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from loadmanager.agent.registration import Membership
from loadmanager.common.context import Context
from loadmanager.common.watching import Subscriptions
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import Orders, decode_orders
from loadmanager.core.ownership import Effect, Event, Phase, holds_lock, may_serve, step
from loadmanager.core.splitting.merging import Merge
from loadmanager.ports.broker import BrokerControl, BrokerError, StaleAgent
from loadmanager.ports.coordination import CoordinationError, Node, SetData
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()

PARALLEL: Final = 32
_TAKING: Final = frozenset({Phase.ACQUIRING, Phase.ABANDONING})
_UNLIKE_ORDERED: Final = frozenset({Phase.FREE, Phase.ABANDONING})
_UNLIKE_UNORDERED: Final = frozenset({Phase.ACQUIRING, Phase.OWNED})


@dataclass(slots=True, eq=False)
class Ownership:
    """One bundle on one agent.

    ``token`` is the fencing token of the lock that this session holds or that the last one
    held, and ``broker_token`` that under which the broker last reported serving the
    bundle; 0 for none. ``command`` is the last command to the broker that has not ended.
    ``command_ended`` counts the commands of all bundles up to the last that ended of this one.
    """

    bundle: BundleId
    phase: Phase = Phase.FREE
    ordered: bool = False
    refused: bool = False
    """The lock was refused, and is not tried again before something changes."""
    loading: bool = False
    """The lock is held, and the broker does not serve the bundle yet."""
    token: int = 0
    broker_token: int = 0
    command: asyncio.Task[None] | None = None
    command_ended: int = 0
    made_of: tuple[BundleId, ...] = ()
    """The bundles that a split or merge on this broker replaced by this one (and others)."""
    made_into: tuple[BundleId, ...] = ()
    """The bundles by which a split on this broker replaced this one."""
    replaced: bool = False
    """Other bundles cover its range after a split or merge that the orders do not show yet."""


class OwnershipRecords:
    """The records of one agent by bundle.

    ``takes`` and ``drops`` are those whose locks are to be taken and dropped, in the order
    in which they became so. ``unsettled`` are those that a comparison with the orders may
    change: all others are as ordered, or have something to finish first.
    """

    def __init__(self) -> None:
        self._records: dict[BundleId, Ownership] = {}
        self._counts: Counter[Phase] = Counter()
        self.takes: dict[BundleId, Ownership] = {}
        self.drops: dict[BundleId, Ownership] = {}
        self.unsettled: dict[BundleId, Ownership] = {}
        self.loading: dict[BundleId, Ownership] = {}

    def __iter__(self) -> Iterator[Ownership]:
        """Iterate over a snapshot, so that records may change meanwhile."""
        return iter(tuple(self._records.values()))

    def get(self, bundle: BundleId) -> Ownership | None:
        return self._records.get(bundle)

    def of(self, bundle: BundleId) -> Ownership:
        record = self._records.get(bundle)
        if record is None:
            record = self._records[bundle] = Ownership(bundle)
        return record

    def phase(self, bundle: BundleId) -> Phase:
        record = self._records.get(bundle)
        return Phase.FREE if record is None else record.phase

    @property
    def phases(self) -> Mapping[BundleId, Phase]:
        return {one.bundle: one.phase for one in self if one.phase is not Phase.FREE}

    @property
    def tokens(self) -> dict[BundleId, int]:
        return {one.bundle: one.token for one in self if holds_lock(one.phase)}

    @property
    def count(self) -> int:
        return sum(self._counts[phase] for phase in Phase if phase is not Phase.FREE)

    @property
    def may_be_served(self) -> bool:
        return any(may_serve(phase) and self._counts[phase] for phase in Phase)

    def enter(self, record: Ownership, phase: Phase) -> None:
        self._counts[record.phase] -= 1
        self._counts[phase] += 1
        record.phase = phase
        record.loading &= phase is Phase.OWNED
        if phase is Phase.FREE:
            record.token = 0
            record.made_of = record.made_into = ()
            if record.command is None:
                record.command_ended = 0
        self.file(record)

    def file(self, record: Ownership) -> None:
        """Update the derived sets after a change of a record; remove it if no longer needed."""
        phase = record.phase
        unlike = _UNLIKE_ORDERED if record.ordered else _UNLIKE_UNORDERED
        _put(self.takes, record, phase in _TAKING)
        _put(self.drops, record, phase is Phase.DROPPING)
        _put(self.loading, record, record.loading)
        _put(self.unsettled, record, record.refused or phase in unlike)
        idle = record.command is None and not record.command_ended
        if phase is Phase.FREE and idle and not record.ordered and not record.refused:
            self._records.pop(record.bundle, None)


def _put(records: dict[BundleId, Ownership], record: Ownership, belongs: bool) -> None:
    if belongs:
        records.setdefault(record.bundle, record)
    else:
        records.pop(record.bundle, None)


@dataclass(frozen=True, slots=True)
class RangeChange:
    """A bundle to be replaced by its parts, or two by one that wait for each other's stop."""

    gone: tuple[BundleId, ...]
    made: tuple[BundleId, ...]
    boundaries: SetData
    until_s: float = math.inf

    @property
    def is_merge(self) -> bool:
        return len(self.gone) > 1

    @property
    def whole(self) -> BundleId:
        return self.made[0] if self.is_merge else self.gone[0]


class RangeChanges:
    def __init__(self) -> None:
        self.splits: dict[BundleId, RangeChange] = {}
        self.merges: dict[BundleId, RangeChange] = {}

    def begin(self, change: RangeChange) -> None:
        (self.merges if change.is_merge else self.splits)[change.whole] = change

    def end(self, change: RangeChange) -> None:
        (self.merges if change.is_merge else self.splits).pop(change.whole, None)

    def clear(self) -> None:
        self.splits.clear()
        self.merges.clear()

    def ready_merge(
        self, phase: Callable[[BundleId], Phase], ordered: Collection[Merge], now_s: float
    ) -> RangeChange | None:
        """Return a merge whose bundles are both unloaded; remove those that will never be made."""
        wanted = {merge.halves for merge in ordered}
        for change in tuple(self.merges.values()):
            phases = [phase(half) for half in change.gone]
            stopped = phases.count(Phase.DROPPING)
            stopping = phases.count(Phase.RELEASING)
            late = now_s > change.until_s and stopping > 0
            free = phase(change.whole) is Phase.FREE
            if change.gone not in wanted or stopped + stopping < len(phases) or late or not free:
                self.end(change)
                log.warning("bundle.merge.given_up", bundle=change.whole, phases=phases)
            elif not stopping:
                return change
        return None

    def stopping(self) -> set[BundleId]:
        """Return the bundles of merges, whose locks are not to be dropped by themselves."""
        return {half for change in self.merges.values() for half in change.gone}


class OwnershipWorker:
    """The bundles of one agent, each in its phase.

    ``lock_work`` signals that a lock is to be taken or dropped or the owned list to be written,
    and ``changes`` that the broker serves another set of bundles. ``commands_done`` counts the
    commands that ended: a point in time for `broker_serves`. ``order_rejected`` is set when the
    broker refuses one because it obeys a newer agent.

    Locks are left to the lock worker, which finds the locks to take and drop in the records.
    Commands to the broker are sent here: one at a time per bundle, and a bounded number in total.
    """

    def __init__(
        self,
        broker_control: BrokerControl,
        metrics: Metrics,
        *,
        claimed_elsewhere: Callable[[BundleId], bool],
        tasks: asyncio.TaskGroup,
        next_owner_url: Callable[[BundleId], str] = lambda _bundle: "",
    ) -> None:
        self._broker = broker_control
        self._metrics = metrics
        self._claimed_elsewhere = claimed_elsewhere
        self._tasks = tasks
        self._next_owner_url = next_owner_url
        self._parallel = asyncio.Semaphore(PARALLEL)
        self._agent_epoch = 0
        self._leaving_alone = False
        self._joined = False
        self.records = OwnershipRecords()
        self.takes, self.drops = self.records.takes, self.records.drops
        self.lock_work = Subscriptions()
        self.changes = Subscriptions()
        self.range_changes = RangeChanges()
        self.order_rejected = asyncio.Event()
        self.commands_done = 0
        self.orders: Orders | None = None
        self.doubting = False

    @property
    def phases(self) -> Mapping[BundleId, Phase]:
        return self.records.phases

    @property
    def handovers(self) -> Mapping[BundleId, BrokerId]:
        return self.orders.handovers if self.orders else {}

    def serves(self, bundle: BundleId) -> bool:
        """Return whether the broker serves ``bundle`` and will continue: lookups may name it."""
        record = self.records.get(bundle)
        return record is not None and record.phase is Phase.OWNED and not record.loading

    # --- orders ----------------------------------------------------------------------

    def registered(self, membership: Membership) -> None:
        self._agent_epoch = membership.agent_epoch
        self._leaving_alone = False
        self.order_rejected.clear()

    def joined(self, membership: Membership) -> None:
        """Resume work under a new registration; the former session's locks are gone."""
        self.registered(membership)
        self._joined = True
        self.compare()

    def obey(self, orders: Orders) -> None:
        former = self.orders.bundles if self.orders else frozenset()
        self.orders, self.doubting = orders, False
        self.lock_work.notify()
        # Sorted, so that a run from a seed repeats in every process.
        for bundle in sorted(former ^ orders.bundles):
            record = self.records.of(bundle)
            record.ordered = bundle in orders.bundles
            record.replaced = False
            self.records.file(record)
        self.compare()

    def doubt(self) -> None:
        """Take no lock until `obey`: the standing orders differ from the obeyed ones."""
        self.doubting = True

    def recall_all(self) -> None:
        self._joined = False
        self.range_changes.merges.clear()
        self._fire_all(Event.RECALLED)

    def compare(self) -> None:
        self._compare_some(tuple(self.records.unsettled.values()))

    def _compare_some(self, records: Iterable[Ownership]) -> None:
        if not self._joined or self.orders is None:
            return
        for record in records:
            if record.ordered:
                possible = not record.refused and not self._claimed_elsewhere(record.bundle)
                free = record.phase is Phase.FREE and possible
                if not record.replaced and (free or record.phase is Phase.ABANDONING):
                    self._fire(record, Event.ASSIGNED)
            elif record.phase is not Phase.FREE and not self._is_kept(record):
                self._fire(record, Event.RECALLED)

    def _is_kept(self, record: Ownership) -> bool:
        """Return whether a bundle stays without an order: it is merged or was made of others."""
        former = map(self.records.get, record.made_of)
        return record.bundle in self.range_changes.merges or any(
            one is not None and one.replaced for one in former
        )

    def retry_refused(self) -> None:
        for record in tuple(self.records.unsettled.values()):
            if record.refused:
                record.refused = False
                self.records.file(record)
        self.compare()

    # --- the session, the lease and the broker ---------------------------------------

    def session_lost(self) -> None:
        """The session is gone, and others may take its locks from now on."""
        self._joined = False
        self.range_changes.clear()
        for record in self.records:
            record.replaced, record.made_of, record.made_into = False, (), ()
        self._fire_all(Event.SESSION_LOST)

    def displaced(self) -> None:
        self._leaving_alone = True

    def broker_lost(self) -> None:
        """The lease expired without renewal: the broker serves nothing and cannot be commanded."""
        self._joined = False
        self.range_changes.merges.clear()
        self._fire_all(Event.BROKER_LOST)

    def broker_serves(self, serving: Mapping[BundleId, int], asked_at: int) -> None:
        """Compare with the bundles that the broker reported as served.

        ``asked_at`` is `commands_done` when it was asked. A bundle with a command under
        way, or answered since, is left to the next comparison: the broker's answer may
        be older than the command, and to take it for the outcome could drop a lock
        whose bundle is being served.
        """
        for bundle in serving:
            self.records.of(bundle)
        for record in self.records:
            record.broker_token = serving.get(record.bundle, 0)
            if record.command is None and record.command_ended <= asked_at:
                self._compare_with_broker(record)

    def _compare_with_broker(self, record: Ownership) -> None:
        takeable = record.phase in {Phase.FREE, Phase.ACQUIRING} and not record.refused
        wanted = record.ordered and takeable
        if record.phase is Phase.OWNED and record.broker_token == record.token:
            self._serving_begun(record)
        elif record.phase is Phase.OWNED:
            # Not served, or under an earlier lock: that load did not come through.
            record.loading = True
            self._fire(record, Event.BROKER_FORGOT)
            self.changes.notify()
        elif may_serve(record.phase) or (record.broker_token and not wanted):
            # That it is not served now is not proof enough: a load of it may still be on its
            # way to the broker, and only an unload that was confirmed keeps it from being
            # obeyed. What an earlier agent loaded runs on under that agent's lease, which
            # is no longer extended: if it is ordered here, its lock is taken over and service
            # never stops.
            self._order_unload(record)
        elif record.phase is Phase.FREE:
            record.command_ended = 0
            self.records.file(record)

    # --- what the lock worker did ----------------------------------------------------

    def locks_taken(self, tokens: Mapping[BundleId, int]) -> None:
        for bundle, token in tokens.items():
            record = self.records.of(bundle)
            record.token, record.loading = token, True
            self._metrics.ownership_changed("acquired")
            log.info("bundle.lock.acquired", bundle=bundle, fencing_token=token)
            self._fire(record, Event.LOCK_TAKEN)

    def lock_refused(self, bundle: BundleId) -> None:
        """The lock cannot be taken now; it is tried again when something changes."""
        record = self.records.of(bundle)
        record.refused = True
        self._fire(record, Event.LOCK_REFUSED)

    def locks_dropped(self, bundles: Collection[BundleId]) -> None:
        records = [self.records.of(bundle) for bundle in bundles]
        for record in records:
            self._metrics.ownership_changed("released")
            log.info("bundle.lock.released", bundle=record.bundle)
            self._fire(record, Event.LOCK_DROPPED)
        self._compare_some(records)

    # --- splits and merges -----------------------------------------------------------

    def begin_split(self, change: RangeChange) -> None:
        self.range_changes.begin(change)
        self.lock_work.notify()

    def was_split(self, change: RangeChange, fencing_token: int) -> None:
        """A commit replaced the lock and the range of a bundle by those of its parts.

        The parts are loaded before the whole is unloaded: the newer token gets the topics.
        """
        whole = self.records.of(change.whole)
        parts = [self.records.of(part) for part in change.made]
        whole.replaced, whole.made_into = whole.ordered, change.made
        for part in parts:
            part.token, part.made_of = fencing_token, change.gone
            self._fire(part, Event.SPLIT_OFF)
        self._metrics.ownership_changed("acquired", len(parts))
        self._metrics.ownership_changed("released")
        log.info("bundle.range.split", bundle=change.whole, parts=change.made)
        self._fire(whole, Event.SPLIT_AWAY)
        self.compare()
        if not self._joined:
            # Everything was recalled meanwhile, or the broker lost: no order keeps these.
            for part in parts:
                self._fire(part, Event.RECALLED)

    def begin_merge(self, change: RangeChange) -> None:
        self.range_changes.begin(change)
        for half in change.gone:
            self._fire(self.records.of(half), Event.RECALLED)

    def merging(self, change: RangeChange) -> None:
        self._fire(self.records.of(change.whole), Event.ASSIGNED)

    def not_merged(self, change: RangeChange) -> None:
        """The commit was refused: the halves are dropped and taken again separately."""
        self.range_changes.end(change)
        self.lock_refused(change.whole)

    def was_merged(self, change: RangeChange, fencing_token: int) -> None:
        """A commit replaced two bundles by the whole, which stays until the orders name neither."""
        self.range_changes.end(change)
        for half in map(self.records.of, change.gone):
            half.replaced = half.ordered
        log.info("bundle.range.merged", bundle=change.whole, halves=change.gone)
        self.locks_dropped(change.gone)
        self.records.of(change.whole).made_of = change.gone
        self.locks_taken({change.whole: fencing_token})

    # --- the phases of bundles, and commands to the broker ---------------------------

    def _fire_all(self, event: Event) -> None:
        for record in self.records:
            if record.phase is not Phase.FREE:
                self._fire(record, event)
        self.lock_work.notify()

    def _fire(self, record: Ownership, event: Event) -> None:
        """Feed an event of one bundle, and carry out its effects. Raises `IllegalTransition`."""
        before = record.phase
        after, effects = step(record.bundle, before, event)
        self.records.enter(record, after)
        if after is not before:
            log.debug("bundle.phase.changed", bundle=record.bundle, was=before, now=after, by=event)
            self._metrics.phase_changed(before, after)
            self.changes.notify()
        for effect in effects:
            if effect is Effect.LOAD_ON_BROKER:
                self._command(record, effect, self._load)
            elif effect is Effect.UNLOAD_FROM_BROKER:
                self._order_unload(record)
            else:
                self.lock_work.notify()

    def _order_unload(self, record: Ownership) -> None:
        parts = filter(None, map(self.records.get, record.made_into))
        self._command(record, Effect.UNLOAD_FROM_BROKER, self._unload, after=parts)

    def _serving_begun(self, record: Ownership) -> None:
        if record.loading:
            record.loading = False
            self.records.file(record)
            self.changes.notify()
            self.lock_work.notify()

    def _command(
        self,
        record: Ownership,
        effect: Effect,
        run: Callable[[Ownership], Awaitable[None]],
        after: Iterable[Ownership] = (),
    ) -> None:
        if self._leaving_alone:
            return
        earlier = [one.command for one in (record, *after) if one.command]

        async def carry_out() -> None:
            if earlier:
                await asyncio.wait(earlier)
            async with self._parallel:
                try:
                    await run(record)
                except BrokerError as error:
                    # The next lease renewal shows what the broker serves, and the comparison
                    # with it repeats the command.
                    why, bundle = str(error), record.bundle
                    log.warning("broker.command.failed", command=effect, bundle=bundle, error=why)

        def ended(task: asyncio.Task[None]) -> None:
            self.commands_done += 1
            record.command_ended = self.commands_done
            if record.command is task:
                record.command = None

        record.command = self._tasks.create_task(carry_out(), name=f"{effect} {record.bundle}")
        record.command.add_done_callback(ended)

    @contextmanager
    def _as_newest_agent(self) -> Iterator[int]:
        """Record a refusal of the current epoch; refusals of earlier epochs are ignored."""
        epoch = self._agent_epoch
        try:
            yield epoch
        except StaleAgent:
            if epoch == self._agent_epoch:
                self.order_rejected.set()
            raise

    async def _load(self, record: Ownership) -> None:
        bundle, token = record.bundle, record.token
        if record.phase is Phase.OWNED:
            with self._as_newest_agent() as epoch:
                await self._broker.load(bundle, agent_epoch=epoch, fencing_token=token)
            log.info("bundle.serving.begun", bundle=bundle, fencing_token=token)
            if record.token == token:
                self._serving_begun(record)

    async def _unload(self, record: Ownership) -> None:
        if record.phase is Phase.OWNED:
            return
        for former in filter(None, map(self.records.get, record.made_of)):
            # It was split into this one, and would take the topics back as soon as this
            # one stopped; so it stops first.
            if record.bundle in former.made_into:
                await self._unload(former)
        bundle, token = record.bundle, max(record.token, record.broker_token)
        url = self._next_owner_url(bundle)
        with self._as_newest_agent() as epoch:
            await self._broker.unload(
                bundle, agent_epoch=epoch, fencing_token=token, next_owner_url=url
            )
        log.info("bundle.serving.ended", bundle=bundle, fencing_token=token)
        if may_serve(record.phase):
            self._fire(record, Event.BROKER_UNLOADED)
            self._compare_some([record])


LOG_INTERVAL_S: Final = 60.0
_RETRY_S = 0.5


class AcceptedOrders:
    """The orders that this agent obeys: those of an elected leader.

    The version of ``/loadbalance/epoch`` is the epoch of the last elected leader. A leader writes
    under a check of it, so no valid order has a higher epoch. An agent that reads an order with an
    epoch above the known one reads that version, after a ``sync``, and obeys no order above it.
    Orders below the latest obeyed epoch are from a former leader and are not obeyed either, unless
    ZooKeeper's epochs themselves went back: then its data were replaced, and its current epoch
    applies. While orders are in doubt or refused, this broker keeps its bundles and takes no lock.
    Whatever the orders, locks prevent a second broker from serving.
    """

    def __init__(
        self, context: Context, obey: Callable[[Orders], None], doubt: Callable[[], None]
    ) -> None:
        self._context = context
        self._obey = obey
        self._doubt = doubt
        self._path = znodes.orders(context.identity.broker)
        self._obeyed = Orders(0)
        self._elected_epoch = 0
        self._unverified: Orders | None = None
        self._work = asyncio.Event()
        self._log_again_s = -math.inf
        self.refused = ""
        """Why the standing orders are not obeyed, "" if they are."""

    async def learn(self) -> None:
        """Raises `CoordinationError`: the epoch cannot be read now."""
        node = await self._context.coordination.get(znodes.EPOCH)
        if node is not None:
            self._elected_epoch = max(self._elected_epoch, node.stat.version)

    async def read(self) -> None:
        """Read and obey the standing orders; without any, those of a former session are void."""
        node = await self._context.coordination.get(self._path)
        if node is None:
            self._take(Orders(0))
        self.seen(node)
        await self._settle()

    def seen(self, node: Node | None) -> None:
        self._unverified = None
        if node is None:
            return
        try:
            orders = decode_orders(self._path, node.data)
        except MalformedContent as error:
            # The former orders stay in force: to release everything would be the worst
            # interpretation of unreadable orders.
            log.warning("znode.content.refused", path=self._path, error=str(error))
            self._context.metrics.malformed("orders")
            self._refuse(str(error))
            return
        if self._obeyed.epoch <= orders.epoch <= self._elected_epoch:
            self._take(orders)
        else:
            self._unverified = orders
            self._doubt()
            self._work.set()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                await self._settle()
            except CoordinationError as error:
                log.debug("orders.epoch.read_failed", error=str(error))
                await self._context.clock.sleep(_RETRY_S)
                self._work.set()

    async def _settle(self) -> None:
        orders = self._unverified
        if orders is None:
            return
        coordination = self._context.coordination
        await coordination.sync(znodes.EPOCH)
        node = await coordination.get(znodes.EPOCH)
        epoch = 0 if node is None else node.stat.version
        self._elected_epoch = epoch
        if epoch < self._obeyed.epoch:
            log.error(
                "zookeeper.data.replaced",
                why="its epochs went back",
                epoch=epoch,
                former=self._obeyed.epoch,
            )
            self._obeyed = Orders(0)
        if orders is not self._unverified:
            return  # Newer orders were read meanwhile, and are processed next.
        self._unverified = None
        if self._obeyed.epoch <= orders.epoch <= self._elected_epoch:
            self._take(orders)
        else:
            self._refuse_epoch(orders)

    def _take(self, orders: Orders) -> None:
        self._obeyed = orders
        self.refused, self._log_again_s = "", -math.inf
        self._context.metrics.orders_refused.set(0)
        self._obey(orders)

    def _refuse_epoch(self, orders: Orders) -> None:
        # ZooKeeper's check prevents leaders from writing such orders, so another client wrote them.
        epoch, newest = orders.epoch, self._obeyed.epoch
        if epoch < newest:
            self._context.metrics.stale_orders.inc()
            if (orders.bundles, orders.splits) == (self._obeyed.bundles, self._obeyed.splits):
                self._obey(self._obeyed)
                return
        now_s = self._context.clock.monotonic_s()
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + LOG_INTERVAL_S
            log.error(
                "orders.epoch.refused", epoch=epoch, newest=newest, elected=self._elected_epoch
            )
        self._refuse(
            f"{self._path}: epoch = {epoch}; expected {newest} to {self._elected_epoch}, "
            "that of the leader elected last"
        )

    def _refuse(self, why: str) -> None:
        self.refused = why
        self._doubt()
        self._context.metrics.orders_refused.set(1)

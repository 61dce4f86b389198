"""The task controller of one term: all orders are written here, and followed to their ends.

Deciders only propose. Proposals that arrive during a write wait and are written together in the
next one, in the order of precedence (`AskedBy`). They are checked against the orders at that
time, not at the time of the decision. A lost reply leaves tasks unconfirmed, and the standing
orders are read again before anything else is written.

A bundle whose standing order is not carried out always has a task: `observe` opens tasks that no
decider of this term proposed (for orders of former leaders, or after a lost lock).
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Protocol

import structlog

from loadmanager.common.cluster_state import READ_AHEAD, OwnerView
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import TaskBounds
from loadmanager.common.watching import readable
from loadmanager.core import znodes
from loadmanager.core.bundle_task import (
    CUT_WITHIN_S,
    Arbitration,
    BundleTask,
    Dispatched,
    LiveTasks,
    Pause,
    TaskEvent,
    TaskState,
    ended_by,
    overdue,
    seen,
    stands,
    unfollowed,
)
from loadmanager.core.errors import InvalidName, LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, parse_broker
from loadmanager.core.orders import (
    OrderChanges,
    Orders,
    SplitOrder,
    decode_orders,
    encode_orders,
    expected_requests,
    largest_orders_bytes,
    next_chunk,
)
from loadmanager.leader.election import Deposed, Term
from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    CoordinationError,
    Create,
    Disconnected,
    Node,
    NodeExists,
    NodeMissing,
    Operation,
    SetData,
    TooLarge,
)
from loadmanager.ports.host import Clock

log = structlog.get_logger()

Reported = Callable[[BundleId, TaskEvent, str, Pause | None], None]
"""What happened to the order of a bundle, why, and how long its clients waited, if known."""


class StandingOrders(Protocol):
    """The standing orders. Only the task controller uses them, one call at a time."""

    @property
    def assigned(self) -> Mapping[BundleId, BrokerId]: ...

    @property
    def splits(self) -> Mapping[BundleId, SplitOrder]:
        """The bundles that are to be split or merged, and how."""

    @property
    def known(self) -> bool:
        """Whether the standing orders are known; False initially and after a lost reply."""

    def follow(self, reported: Reported) -> None:
        """Call ``reported`` with outcomes of orders that owners do not show."""

    async def read(self) -> None: ...

    async def write(self, changes: OrderChanges, extra_write: SetData | None = None, /) -> bool:
        """Write several changes of orders; the standing orders must be `known`.

        Returns whether the ``extra_write`` was written with them. It saves a request where orders
        are nodes and it fits; else it is False, and the caller has to write it.

        Raises:
            Deposed: another sidecar leads; nothing was changed.
            CoordinationError: not all of it is ordered. What is, stands if that is `known`;
                if the reply was lost, nothing is known until `read`.
        """

    async def rewrite_changed(self) -> tuple[BrokerId, ...]:
        """Restore orders that others changed, and return their brokers; raises as `write`."""

    def close(self) -> None:
        """Write no more orders: the term is over."""


_ENDED_KEPT: Final = 200
_INTERRUPTED: Final = "the write was interrupted before its reply"


@dataclass(slots=True, eq=False)
class _Request:
    proposals: Sequence[BundleTask]
    extra_write: SetData | None
    known: Callable[[Dispatched], None] | None
    answer: asyncio.Future[Dispatched]
    found: Dispatched = field(default_factory=Dispatched)


@dataclass(eq=False)
class TaskController:
    """Arbitrates proposals, writes orders, and follows tasks, for one term.

    ``listener`` is called with each task in its new state; ``caught`` with a fault and its place.
    """

    epoch: int
    orders: StandingOrders
    owners: OwnerView
    clock: Clock
    bounds: Callable[[], TaskBounds]
    listener: Callable[[BundleTask], None]
    caught: Callable[[str, BaseException], None]

    def __post_init__(self) -> None:
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        self._waiting: list[_Request] = []
        self._unconfirmed: list[_Request] = []
        self._closed = False
        self._ended: deque[BundleTask] = deque(maxlen=_ENDED_KEPT)
        self.tasks = LiveTasks(self.epoch)
        # Owners, and the outcomes of orders that owners do not show.
        self.owners.owner_changes.subscribe(self._follow)
        self.orders.follow(self._reported)

    @property
    def assigned(self) -> Mapping[BundleId, BrokerId]:
        return self.orders.assigned

    @property
    def splits(self) -> Mapping[BundleId, SplitOrder]:
        return self.orders.splits

    @property
    def ended(self) -> Sequence[BundleTask]:
        return tuple(self._ended)

    @property
    def _now_s(self) -> float:
        return self.clock.monotonic_s()

    async def open(self) -> None:
        """Read the orders of former leaders. Raises `Deposed`, or `Disconnected`: not read now."""
        await self.change(OrderChanges)

    def close(self) -> None:
        """End all tasks with the term; their orders stand, for the next leader to follow."""
        self._closed = True
        self.orders.close()
        self._unconfirmed.clear()
        self.owners.owner_changes.unsubscribe(self._follow)
        for task in self.tasks:
            self._advance(task, TaskEvent.TERM_ENDED, "the term ended")

    async def dispatch(
        self,
        proposals: Sequence[BundleTask],
        *,
        extra_write: SetData | None = None,
        known: Callable[[Dispatched], None] | None = None,
    ) -> Dispatched:
        """Order the proposals, at most one per bundle, except where precedence prevents it.

        ``extra_write`` is written in the same commit, if there is room; ``known`` is called once
        when it is known what was ordered, perhaps after this. Raises `Deposed`: no change;
        `Disconnected`: the reply was lost, and the tasks are unconfirmed.
        """
        request = _Request(
            proposals, extra_write, known, asyncio.get_running_loop().create_future()
        )
        at_once = not (self._writes or self._writing.locked())
        if not at_once:
            self._waiting.append(request)
        # In a task of its own: a proposer that is cancelled interrupts no write of others.
        write = asyncio.create_task(self._write_next([request] if at_once else []), name="orders")
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        return await request.answer

    async def change(
        self, compute: Callable[[], OrderChanges], then: Callable[[], None] | None = None
    ) -> None:
        """Write changes without tasks, computed when nothing else is written; ``then`` they stand.

        Raises as `dispatch`, and `TooLarge` if not all changes fit.
        """
        async with self._writing:
            await self._confirm()
            changes = compute()
            await self.orders.write(changes)
            self._check_open()
            if then is not None:
                then()
            self.observe()

    def withdraw(self, proposal: BundleTask, why: str) -> None:
        task = self.tasks.admit(proposal, self._now_s)
        self._advance(task, TaskEvent.WITHDRAWN, why)

    async def confirm(self) -> None:
        """Wait until the standing orders are known; raises `Disconnected`."""
        async with self._writing:
            await self._confirm()

    def observe(self) -> None:
        """Compare tasks with owners and orders, and open missing ones, over all bundles."""
        self._follow()
        if not self.orders.known:
            return  # A write is under way.
        for task in self.tasks:
            ended = ended_by(task, self.assigned, self.splits)
            if ended is not None:
                there = task.bundle in self.assigned
                why = "its order was withdrawn" if there else "the bundle no longer exists"
                self._advance(task, ended, "" if ended is TaskEvent.DONE else why)
        for proposal in unfollowed(
            self.tasks, self.owners.listed_owner, self.assigned, self.splits
        ):
            self._advance(self.tasks.admit(proposal, self._now_s), TaskEvent.ORDER_WRITTEN)

    def _follow(self) -> None:
        for task in self.tasks:
            holding = self.owners.owners.get(task.bundle)
            owner, serving = (holding.broker, holding.serving) if holding else (None, False)
            now = task
            for event in seen(task, owner, serving=serving):
                now = self._advance(now, event)

    def _reported(
        self, bundle: BundleId, event: TaskEvent, why: str, pause: Pause | None = None
    ) -> None:
        task = self.tasks.of(bundle)
        if task is not None and task.state is not TaskState.UNCONFIRMED:
            self._advance(task, event, why, pause)

    def _advance(
        self, task: BundleTask, event: TaskEvent, note: str = "", pause: Pause | None = None
    ) -> BundleTask:
        try:
            changed = self.tasks.advance(task, event, self._now_s, note, pause)
        except LoadManagerError as error:
            # A fault of this program. `observe` opens the task again if its order stands.
            self.caught("tasks", error)
            self.tasks.drop(task)
            return task
        for one in changed:
            if one.state.ended:
                self._ended.append(one)
            try:
                self.listener(one)
            except Exception as error:  # noqa: BLE001 - the other tasks are followed, too
                self.caught("tasks", error)
        return changed[-1]

    async def tend(self, event: TaskEvent) -> Sequence[BundleTask]:
        """Repeat or withdraw what is due by ``event``; return its tasks. Raises as `change`."""
        due: list[BundleTask] = []

        def compute() -> OrderChanges:
            due[:] = self._due(event)
            if event is TaskEvent.REPEATED:
                return OrderChanges(
                    {bundle: task.target for task in due for bundle in task.bundles}
                )
            return OrderChanges(splits=dict.fromkeys(b for task in due for b in task.splits))

        def written() -> None:
            numbers = {task.number for task in due}
            for task in [task for task in self.tasks if task.number in numbers]:
                repeated = event is TaskEvent.REPEATED
                name = "bundle.order.repeated" if repeated else f"bundle.{task.kind}.abandoned"
                log.warning(name, bundles=task.bundles, target=task.target)
                self._advance(
                    task, event, "" if repeated else f"not done within {CUT_WITHIN_S:g} s"
                )

        if self._due(event):
            await self.change(compute, written)
        return due

    def _due(self, event: TaskEvent) -> list[BundleTask]:
        now_s, owners, lost_after_s = self._now_s, self.owners, self.bounds().lost_after_s
        return [
            task
            for task in self.tasks
            if event is overdue(task, owners.listed_owner, owners.brokers, now_s, lost_after_s)
        ]

    async def rewrite_changed(self) -> tuple[BrokerId, ...]:
        """Rewrite orders that others changed; return their brokers. Raises as `change`."""
        async with self._writing:
            await self._confirm()
            return await self.orders.rewrite_changed()

    async def _write_next(self, batch: list[_Request]) -> None:
        async with self._writing:
            if not batch:
                batch, self._waiting = self._waiting, []
            if batch:
                with suppress(Exception):  # Each proposer has it as its answer.
                    await self._write_batch(batch)

    async def _write_batch(self, batch: list[_Request]) -> None:
        batch.sort(key=lambda one: min((p.asked_by for p in one.proposals), default=0))
        try:
            await self._confirm()
            refusal = await self._write(batch)
            self._check_open()
            too_large = refusal is None or isinstance(refusal, TooLarge)
            why = "the orders of its broker do not fit into a node" if too_large else str(refusal)
            for request in batch:
                self._resolve(request, why, refusal)
            self.observe()
        except BaseException as error:
            # Each proposer continues, whatever the result of one write.
            answer = error if isinstance(error, Exception) else Disconnected(_INTERRUPTED)
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(answer)
                    request.answer.exception()  # The proposer may be gone.
            raise

    async def _write(self, batch: Sequence[_Request]) -> CoordinationError | None:
        """Write the admitted proposals; return why not all of them stand, if already known."""
        arbitration = Arbitration(
            tasks=self.tasks,
            assigned=self.orders.assigned,
            owner=self.owners.listed_owner,
            most_per_broker=self.bounds().most_per_broker,
            now_s=self._now_s,
        )
        for request in batch:
            request.found = arbitration.admit(request.proposals)
        if not arbitration.changes:
            return None
        admitted = [request for request in batch if request.found.tasks]
        piggybacking = [request for request in admitted if request.extra_write][-1:]
        extra_write = piggybacking[0].extra_write if piggybacking else None
        try:
            piggybacked = await self.orders.write(arbitration.changes, extra_write)
        except BaseException as error:
            if isinstance(error, CoordinationError) and self.orders.known:
                return error
            self._check_open()
            self._unconfirmed = admitted
            for found in (request.found for request in admitted):
                lost = TaskEvent.REPLY_LOST, "the reply was lost"
                found.tasks = [self._advance(task, *lost) for task in found.tasks]
            raise
        for request in piggybacking:
            request.found.piggybacked = piggybacked
        return None

    def _resolve(
        self, request: _Request, why: str, refusal: CoordinationError | None = None
    ) -> None:
        """Answer the decider by the standing orders; ``why`` is for those that do not stand."""
        found = request.found
        for task in found.tasks:
            if stands(task, self.assigned, self.splits):
                self._advance(task, TaskEvent.ORDER_WRITTEN)
                found.ordered |= dict.fromkeys(task.bundles, task.target)
            else:
                self._advance(task, TaskEvent.ORDER_REFUSED, why)
                found.refused |= dict.fromkeys(task.bundles, why)
                found.too_large = refusal if isinstance(refusal, TooLarge) else None
        try:
            if request.known is not None:
                request.known(found)
        except Exception as error:  # noqa: BLE001 - the other deciders are to be answered, too
            self.caught("tasks", error)
        if not request.answer.done():
            request.answer.set_result(found)

    def _check_open(self) -> None:
        if self._closed:
            raise Deposed(f"the term of epoch {self.tasks.epoch} ended")

    async def _confirm(self) -> None:
        self._check_open()
        if not self.orders.known:
            await self.orders.read()
            self._check_open()
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for request in unconfirmed:
            self._resolve(request, "the reply was lost, and the order does not stand")


log = structlog.get_logger()

_NOTHING: Mapping[BundleId, BrokerId] = MappingProxyType({})
_READ_TOGETHER = 64

MANY_BUNDLES = 64
"""Orders of so many bundles at once are logged with the requests that they will cause."""


class OrderBook:
    """The `StandingOrders` in ZooKeeper: which broker is to own which bundle.

    It keeps the contents of ``/loadbalance/orders/*`` in memory. Orders are written in full per
    broker and always under a check of the epoch, so that a replaced leader changes nothing.
    Additions are written before removals: if a write is interrupted between commits, a bundle is
    briefly in the orders of two brokers, and the broker that holds the lock keeps it; it is never
    in none.
    """

    def __init__(self, context: Context, term: Term) -> None:
        self._coordination = context.coordination
        self._cluster_state = context.cluster_state
        self._metrics = context.metrics
        self._oversized = context.oversized
        self._term = term
        self.assigned: dict[BundleId, BrokerId] = {}
        self.splits: dict[BundleId, SplitOrder] = {}
        self._nodes: set[BrokerId] = set()
        self._dirty: set[BrokerId] = set()
        self.known = False

    def follow(self, reported: Reported) -> None:
        """Do nothing: the owned lists show the outcome of these orders."""

    def close(self) -> None:
        """Do nothing: each commit checks the epoch."""

    async def write(self, changes: OrderChanges, extra_write: SetData | None = None) -> bool:
        """Write changes of `known` orders; return whether ``extra_write`` had room in a commit.

        Raises `Deposed`: nothing was changed; `Disconnected`: the orders are unknown until `read`;
        `TooLarge`: the orders of a broker do not fit into its node; those that fit are written.
        """
        if not changes and not self._dirty:
            return False
        error: TooLarge | None = None
        most_bytes = largest_orders_bytes(self._coordination.max_request_bytes)
        while True:
            assigned, splits = changes.apply(self.assigned, self.splits)
            contents = self._contents(assigned, splits, self._touched(changes))
            full = {b: len(c) for b, c in contents.items() if len(c) > most_bytes}
            if not full:
                break
            error = error or self._too_large(full, most_bytes)
            changes, former = changes.less(full, self.assigned), changes
            if changes == former:
                raise error
        self._log_many(changes, contents)
        self.known = False
        piggybacked = await self._write(contents, extra_write)
        self._dirty.clear()
        self.assigned, self.splits, self.known = assigned, splits, True
        if error is not None:
            raise error
        return piggybacked

    def _log_many(self, changes: OrderChanges, contents: Mapping[BrokerId, bytes]) -> None:
        if len(changes.assigned) >= MANY_BUNDLES:
            brokers = len(self._cluster_state.brokers)
            log.info(
                "orders.batch.begun",
                bundles=len(changes.assigned),
                brokers=len(contents),
                size_bytes=sum(map(len, contents.values())),
                requests_expected=expected_requests(len(contents), brokers, READ_AHEAD),
            )

    def _touched(self, changes: OrderChanges) -> list[BrokerId]:
        additions = set(changes.assigned.values())
        touched = {*changes.assigned, *changes.splits, *changes.gone}
        others = {self.assigned[bundle] for bundle in touched if bundle in self.assigned}
        # The orders of the broker that still holds a lock name the next owner.
        holders = {self._cluster_state.listed_owner(bundle) for bundle in changes.assigned}
        others |= {broker for broker in holders if broker and broker in self._cluster_state.brokers}
        others |= self._dirty
        return [*sorted(additions), *sorted(others - additions)]

    def _too_large(self, sizes_bytes: Mapping[BrokerId, int], most_bytes: int) -> TooLarge:
        errors = {b: TooLarge(znodes.orders(b), n, most_bytes) for b, n in sizes_bytes.items()}
        for broker, error in sorted(errors.items()):
            self._oversized.refused("orders", broker, error)
        return errors[max(errors)]

    async def rewrite_changed(self) -> tuple[BrokerId, ...]:
        """Rewrite orders that others changed; return their brokers. Raises as `write`."""
        bundles: dict[BrokerId, set[BundleId]] = defaultdict(set)
        for bundle, planned in self.assigned.items():
            bundles[planned].add(bundle)
        stored = await self._stored(self._nodes | bundles.keys())
        changed = tuple(
            broker
            for broker, orders in stored.items()
            if orders is None
            or orders.bundles != bundles[broker]
            or orders.splits != {b: self.splits[b] for b in self.splits.keys() & bundles[broker]}
            or orders.epoch > self._term.epoch  # No agent obeys an order of a future epoch.
        )
        self._dirty.update(changed)
        await self.write(OrderChanges())
        return changed

    async def _stored(self, brokers: Collection[BrokerId]) -> dict[BrokerId, Orders | None]:
        """Read the orders of brokers: empty ones if there is no node, None if not readable."""
        found: dict[BrokerId, Orders | None] = {}
        every = sorted(brokers)
        for first in range(0, len(every), _READ_TOGETHER):
            some = every[first : first + _READ_TOGETHER]
            nodes = await asyncio.gather(*(self._coordination.get(znodes.orders(b)) for b in some))
            for broker, node in zip(some, nodes, strict=True):
                self._nodes.discard(broker)
                if node is not None:
                    self._nodes.add(broker)
                found[broker] = Orders(0) if node is None else self._decoded(broker, node)
        return found

    async def _write(self, contents: dict[BrokerId, bytes], extra_write: SetData | None) -> bool:
        most_bytes = self._coordination.max_request_bytes // 2
        piggybacked = False
        while contents:
            chunk = next_chunk(contents, most_bytes)
            operations: list[Operation] = [Check(znodes.EPOCH, self._term.epoch)]
            for broker in chunk:
                make = SetData if broker in self._nodes else Create
                operations.append(make(znodes.orders(broker), contents[broker]))
            left = most_bytes - sum(len(contents[broker]) for broker in chunk)
            if extra_write is not None and chunk == [*contents] and len(extra_write.data) <= left:
                operations.append(extra_write)
                piggybacked = True
            try:
                await self._coordination.commit(operations)
            except CommitRejected as rejected:
                if rejected.index > len(chunk):
                    extra_write, piggybacked = None, False  # Its node was deleted manually.
                else:
                    await self._resolve_rejection(rejected, chunk)
                continue
            self._nodes.update(chunk)
            contents = {b: content for b, content in contents.items() if b not in chunk}
        return piggybacked

    async def _resolve_rejection(self, rejected: CommitRejected, chunk: list[BrokerId]) -> None:
        if rejected.index == 0:
            raise Deposed(f"epoch {self._term.epoch} is over: {rejected.cause}") from rejected
        broker = chunk[rejected.index - 1]
        if isinstance(rejected.cause, NodeExists):
            self._nodes.add(broker)
        elif isinstance(rejected.cause, NodeMissing):
            self._nodes.discard(broker)
            await self._coordination.ensure(znodes.ORDERS)
        else:
            raise rejected.cause

    def _contents(
        self,
        assigned: Mapping[BundleId, BrokerId],
        splits: Mapping[BundleId, SplitOrder],
        brokers: Sequence[BrokerId],
    ) -> dict[BrokerId, bytes]:
        bundles: dict[BrokerId, set[BundleId]] = {broker: set() for broker in brokers}
        handovers: dict[BrokerId, dict[BundleId, BrokerId]] = defaultdict(dict)
        owners = self._cluster_state.owners
        for bundle, broker in assigned.items():
            if broker in bundles:
                bundles[broker].add(bundle)
            holding = owners.get(bundle)
            if holding is not None and holding.broker != broker:
                handovers[holding.broker][bundle] = broker
        return {
            broker: self._encoded(
                Orders(
                    self._term.epoch,
                    frozenset(bundles[broker]),
                    handovers[broker],
                    {bundle: splits[bundle] for bundle in splits.keys() & bundles[broker]},
                )
            )
            for broker in brokers
        }

    def _encoded(self, orders: Orders) -> bytes:
        content = encode_orders(orders)
        if len(content) > largest_orders_bytes(self._coordination.max_request_bytes):
            # Clients can manage without redirects to next owners.
            content = encode_orders(replace(orders, handovers=_NOTHING))
        return content

    async def read(self) -> None:
        """Read the orders of this leader and of former leaders; raises `Disconnected`."""
        # Earlier writes of any sidecar through any server must be visible.
        await asyncio.gather(
            self._coordination.ensure(znodes.ORDERS), self._coordination.heartbeat()
        )
        names = await self._coordination.children(znodes.ORDERS)
        claims: dict[BundleId, set[BrokerId]] = defaultdict(set)
        splits: dict[BundleId, SplitOrder] = {}
        self._nodes.clear()
        self._dirty.clear()
        brokers: list[BrokerId] = []
        for name in names:
            try:
                brokers.append(parse_broker(name))
            except InvalidName as error:
                log.warning("znode.name.refused", path=f"{znodes.ORDERS}/{name}", error=str(error))
        for broker, stored in (await self._stored(brokers)).items():
            orders = stored or self._kept(broker)
            splits |= orders.splits
            if not orders.splits.keys() <= orders.bundles:
                self._dirty.add(broker)
            for bundle in sorted(orders.bundles):
                claims[bundle].add(broker)
        self.assigned = {bundle: self._preferred(bundle, claims[bundle]) for bundle in claims}
        # An interrupted write left a bundle in the orders of two brokers.
        for bundle, claiming in claims.items():
            self._dirty |= claiming - {self.assigned[bundle]}
        self.splits = {bundle: one for bundle, one in splits.items() if bundle in claims}
        self.known = True

    def _decoded(self, broker: BrokerId, node: Node) -> Orders | None:
        path = znodes.orders(broker)
        with readable(path, self._metrics, "orders"):
            return decode_orders(path, node.data)
        return None

    def _kept(self, broker: BrokerId) -> Orders:
        """Return a broker's owned bundles in place of orders that are not readable.

        Its agent keeps following those it read before; empty ones would recall everything.
        """
        self._dirty.add(broker)
        owned = (b for b, at in self._cluster_state.owners.items() if at.broker == broker)
        return Orders(self._term.epoch, frozenset(owned))

    def _preferred(self, bundle: BundleId, claims: set[BrokerId]) -> BrokerId:
        owner = self._cluster_state.listed_owner(bundle)
        return owner if owner in claims else min(claims)

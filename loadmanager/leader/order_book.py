"""The standing orders of one term in ZooKeeper: which broker is to own which bundle.

The order book keeps the contents of ``/loadbalance/orders/*`` in memory. Only the task
controller reads and writes it, one call at a time. Orders are written in full per broker and
always under a check of the epoch, so that a replaced leader changes nothing. Additions are
written before removals: if a write is interrupted between commits, a bundle is briefly in the
orders of two brokers, and the broker that holds the lock keeps it; it is never in none.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import structlog

from loadmanager.common.cluster_state import READ_AHEAD
from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.errors import InvalidName, MalformedContent
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
from loadmanager.leader.task_controller import Reported
from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    Create,
    Node,
    NodeExists,
    NodeMissing,
    Operation,
    SetData,
    TooLarge,
)

log = structlog.get_logger()

_NOTHING: Mapping[BundleId, BrokerId] = MappingProxyType({})
_READ_TOGETHER = 64

MANY_BUNDLES = 64
"""Orders of so many bundles at once are logged with the requests that they will cause."""


class OrderBook:
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
        try:
            return decode_orders(path, node.data)
        except MalformedContent as error:
            log.warning("znode.content.refused", path=path, error=str(error))
            self._metrics.malformed("orders")
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

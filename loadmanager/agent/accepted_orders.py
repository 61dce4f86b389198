"""Decides which orders this agent obeys: those of an elected leader.

The version of ``/loadbalance/epoch`` is the epoch of the last elected leader. A leader writes
under a check of it, so no valid order has a higher epoch. An agent that reads an order with an
epoch above the known one reads that version, after a ``sync``, and obeys no order above it.
Orders below the latest obeyed epoch are from a former leader and are not obeyed either, unless
ZooKeeper's epochs themselves went back: then its data were replaced, and its current epoch
applies. While orders are in doubt or refused, this broker keeps its bundles and takes no lock.
Whatever the orders, locks prevent a second broker from serving.
"""

import asyncio
import math
from collections.abc import Callable

import structlog

from loadmanager.agent.lease import LOG_INTERVAL_S
from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.orders import Orders, decode_orders
from loadmanager.ports.coordination import CoordinationError, Node

log = structlog.get_logger()

_RETRY_S = 0.5


class AcceptedOrders:
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

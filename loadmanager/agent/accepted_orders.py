"""Which orders this agent obeys: those of a leader that the service has elected.

The version of ``/loadbalance/epoch`` is the epoch of the last leader that was elected. A
leader writes under a check of it, so no order is ahead of it. An agent that sees one above
what it knows reads that version, after a ``sync``, and obeys nothing above it. Orders
below the newest that it has obeyed are of a former leader and not obeyed either, unless
the service's epochs themselves went back: then its data were replaced, and it is the
newest epoch there is that counts. While orders are in doubt or refused, this broker keeps
what it owns and takes no lock. Whatever is ordered, locks keep a second broker from serving.
"""

import asyncio
import math
from collections.abc import Callable

import structlog

from loadmanager.agent.unleased import TELL_EVERY_S
from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.orders import Orders, decode_orders
from loadmanager.ports import CoordinationError, Node

log = structlog.get_logger()

_RETRY_S = 0.5


class AcceptedOrders:
    """Reads the orders of this broker, and hands on those that are to be obeyed."""

    def __init__(
        self, context: Context, obey: Callable[[Orders], None], doubt: Callable[[], None]
    ) -> None:
        self._context = context
        self._obey = obey
        self._doubt = doubt
        self._path = znodes.orders(context.identity.broker)
        self._obeyed = Orders(0)
        self._elected_epoch = 0
        self._doubtful: Orders | None = None
        self._work = asyncio.Event()
        self._tell_again_s = -math.inf
        self.refused = ""
        """Why the orders that stand are not obeyed, "" if they are."""

    async def learn(self) -> None:
        """Read which epoch there is, perhaps of a while ago, so that no order has to wait for it.

        Raises:
            CoordinationError: it cannot be read now.
        """
        node = await self._context.coordination.get(znodes.EPOCH)
        if node is not None:
            self._elected_epoch = max(self._elected_epoch, node.stat.version)

    async def read(self) -> None:
        """Read the orders that stand, and obey them if they are to be obeyed.

        If none stand, those of a former session are void: the leader deleted them, or
        the service's data were replaced.

        Raises:
            CoordinationError: they cannot be read now.
        """
        node = await self._context.coordination.get(self._path)
        if node is None:
            self._take(Orders(0))
        self.seen(node)
        await self._settle()

    def seen(self, node: Node | None) -> None:
        """Take up the orders as just read."""
        self._doubtful = None
        if node is None:
            return
        try:
            orders = decode_orders(self._path, node.data)
        except MalformedContent as error:
            # The former orders stand: to own nothing would be the worst reading of garbage.
            log.warning("znode.content.refused", path=self._path, error=str(error))
            self._context.metrics.malformed("orders")
            self._refuse(str(error))
            return
        if self._obeyed.epoch <= orders.epoch <= self._elected_epoch:
            self._take(orders)
        else:
            self._doubtful = orders
            self._doubt()
            self._work.set()

    async def run(self) -> None:
        """Find out about the epochs of doubtful orders, until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                await self._settle()
            except CoordinationError as error:
                log.debug("orders.epoch.unread", error=str(error))
                await self._context.clock.sleep(_RETRY_S)
                self._work.set()

    async def _settle(self) -> None:
        orders = self._doubtful
        if orders is None:
            return
        coordination = self._context.coordination
        await coordination.sync(znodes.EPOCH)
        node = await coordination.get(znodes.EPOCH)
        self._elected(0 if node is None else node.stat.version)
        if orders is not self._doubtful:
            return  # Others were read meanwhile, and are looked at next.
        self._doubtful = None
        if self._obeyed.epoch <= orders.epoch <= self._elected_epoch:
            self._take(orders)
        else:
            self._refuse_epoch(orders)

    def _elected(self, epoch: int) -> None:
        self._elected_epoch = epoch
        if epoch < self._obeyed.epoch:
            log.error(
                "zookeeper.data.replaced",
                why="its epochs went back",
                epoch=epoch,
                former=self._obeyed.epoch,
            )
            self._obeyed = Orders(0)

    def _take(self, orders: Orders) -> None:
        self._obeyed = orders
        self.refused, self._tell_again_s = "", -math.inf
        self._context.metrics.orders_refused.set(0)
        self._obey(orders)

    def _refuse_epoch(self, orders: Orders) -> None:
        # ZooKeeper's check keeps leaders from writing such; what wrote it is no leader.
        epoch, newest = orders.epoch, self._obeyed.epoch
        if epoch < newest:
            self._context.metrics.stale_orders.inc()
            if (orders.bundles, orders.splits) == (self._obeyed.bundles, self._obeyed.splits):
                self._obey(self._obeyed)
                return
        now_s = self._context.clock.monotonic_s()
        if now_s >= self._tell_again_s:
            self._tell_again_s = now_s + TELL_EVERY_S
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

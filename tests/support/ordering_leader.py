"""A leader that only orders what it is told to, elected in a real cluster beside real sidecars."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cluster_processes import SharingCluster
from prometheus_client import CollectorRegistry
from waiting import eventually

from loadmanager.adapters.broker.http_control import HttpBrokerControl
from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Context
from loadmanager.common.identity import Identity
from loadmanager.core.ids import BrokerId
from loadmanager.core.load import BrokerUrls
from loadmanager.demo.cluster import READY_BOUND_S
from loadmanager.leader.election import Election, Term
from loadmanager.leader.order_book import OrderBook
from loadmanager.ports.broker import BrokerControl
from loadmanager.telemetry.metrics import Metrics

NOBODY = "127.0.0.1:1"
"""Its broker: the leader serves nothing, is not registered, and is never asked anything."""


class OrderingLeader:
    """Stands for election until closed; ``book`` writes orders once it was elected."""

    def __init__(self, context: Context) -> None:
        self.cluster_state = context.cluster_state
        self._context = context
        self._elected: asyncio.Future[Term] = asyncio.get_running_loop().create_future()

    @classmethod
    @asynccontextmanager
    async def campaigning(cls, cluster: SharingCluster) -> "AsyncIterator[OrderingLeader]":
        """Yield a leader that is elected as soon as ZooKeeper answers and nobody leads."""
        broker = HttpBrokerControl(f"http://{NOBODY}", 1.0)
        context = _context(cluster.zookeeper, cluster.chroot, broker)
        leader = cls(context)
        await context.coordination.start()
        context.cluster_state.open()
        running = asyncio.create_task(leader._campaign())
        try:
            yield leader
        finally:
            running.cancel()
            await asyncio.wait({running})
            context.cluster_state.close()
            await context.coordination.close()
            await broker.close()

    async def book(self, within_s: float) -> OrderBook:
        """Return the order book of its term.

        Raises:
            TimeoutError: it was not elected, so a sidecar was.
        """
        async with asyncio.timeout(within_s):
            term = await asyncio.shield(self._elected)
        book = OrderBook(self._context, term)
        await book.read()
        return book

    async def _campaign(self) -> None:
        # An election waits for changes, and in an empty cluster the first one would be a
        # sidecar's registration: that sidecar would be as quick as we.
        await eventually(lambda: self.cluster_state.complete, within_s=READY_BOUND_S)
        await Election(self._context, eligible=lambda: True, lead=self._lead).run()

    async def _lead(self, term: Term) -> None:
        with self.cluster_state.lists.followed():
            self._elected.set_result(term)
            await asyncio.Event().wait()


def _context(zookeeper: str, chroot: str, broker: BrokerControl) -> Context:
    clock, metrics = SystemClock(), Metrics(CollectorRegistry())
    coordination = ZooKeeperCoordination(
        ZooKeeperOptions(
            hosts=zookeeper,
            chroot=chroot,
            session_timeout_s=10.0,
            reconnect_delay_max_s=0.1,
        )
    )
    return Context(
        identity=Identity(
            broker=BrokerId(NOBODY),
            urls=BrokerUrls(http_url=f"http://{NOBODY}"),
            sidecar_url=f"http://{NOBODY}",
            instance="ordering-leader",
            started_at_ms=0,
            version="",
        ),
        coordination=coordination,
        cluster_state=ClusterState(coordination, clock, metrics),
        broker=broker,
        clock=clock,
        metrics=metrics,
    )

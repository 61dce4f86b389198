"""A task controller on the in-process service, in virtual time; brokers own what they are told."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from prometheus_client import CollectorRegistry
from waiting import eventually

from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Context
from loadmanager.common.identity import Identity
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.common.settings_watch import tuned_by
from loadmanager.config import Config
from loadmanager.core import znodes
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskKind
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.load import BrokerUrls, LoadReport
from loadmanager.core.orders import Orders, decode_orders, encode_orders, encode_owned
from loadmanager.core.plan import Cause
from loadmanager.core.wire.registrations import encode_registration
from loadmanager.leader.election import Term
from loadmanager.leader.order_book import OrderBook
from loadmanager.leader.task_controller import TaskController
from loadmanager.ports.coordination import Disconnected, Operation, TooLarge
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.faults.virtual_time import VirtualClock, run
from tests.testbed.in_process import InProcessBroker
from tests.testbed.memory import MemoryCoordination, MemoryService

BUNDLES = Boundaries.even(Namespace("t/n"), 1024).bundles
BROKERS = tuple(BrokerId(f"b{number}:8080") for number in (1, 2, 3))


class Loss(StrEnum):
    REQUEST = "request"
    REPLY = "reply"
    TOO_LARGE = "too_large"
    """Nothing is lost: the service refuses it."""


class Line(MemoryCoordination):
    """A connection whose commits to orders can be held back, or lost."""

    def __init__(self, service: MemoryService) -> None:
        super().__init__(service)
        self.commits: list[set[str]] = []
        self.losses: list[Loss | None] = []
        """Of the next commits."""
        self.held = asyncio.Event()
        self.held.set()

    async def commit(self, operations: Sequence[Operation]) -> Any:
        self.commits.append({one.path for one in operations} - {znodes.EPOCH})
        await self.held.wait()
        loss = self.losses.pop(0) if self.losses else None
        if loss is Loss.REQUEST:
            raise Disconnected("the request was lost")
        if loss is Loss.TOO_LARGE:
            raise TooLarge("the commit", 2, 1)
        stats = await super().commit(operations)
        if loss is Loss.REPLY:
            raise Disconnected("the reply was lost")
        return stats


@dataclass
class ControllerAtWork:
    """The controller of a term, and what brokers do. ``told`` is each task in each state."""

    line: Line
    hand: MemoryCoordination
    context: Context
    controller: TaskController
    term: Term
    told: list[BundleTask]

    @classmethod
    def of(cls, line: Line, hand: MemoryCoordination, context: Context, epoch: int) -> Self:
        term = Term(epoch, line.session.session_id)
        settings = RuntimeSettings(tuned_by(Config.model_validate({"broker": {"id": BROKERS[0]}})))
        told: list[BundleTask] = []
        controller = TaskController(
            term.epoch,
            OrderBook(context, term),
            context.cluster_state,
            context.clock,
            bounds=lambda: settings.now.task_bounds,
            listener=told.append,
            caught=context.unexpected.caught,
        )
        return cls(line, hand, context, controller, term, told)

    def states(self, bundle: BundleId) -> list[str]:
        return [task.state.value for task in self.told if bundle in task.bundles]

    def last(self, bundle: BundleId) -> BundleTask:
        return next(task for task in reversed(self.told) if bundle in task.bundles)

    async def own(
        self, broker: BrokerId, bundles: Collection[BundleId], loading: Collection[BundleId] = ()
    ) -> None:
        path, listed = znodes.owned(broker), dict.fromkeys(bundles, 1)
        await self.hand.ensure(path)
        await self.hand.set(path, encode_owned(listed, loading))
        await asyncio.sleep(0.1)

    async def order_by_hand(self, orders: Orders, broker: BrokerId) -> None:
        await self.hand.ensure(znodes.orders(broker))
        await self.hand.set(znodes.orders(broker), encode_orders(orders))

    async def orders(self, broker: BrokerId) -> Orders:
        node = await self.hand.get(znodes.orders(broker))
        return decode_orders("here", node.data) if node else Orders(0)

    def moves(
        self, *moves: tuple[BundleId, BrokerId], asked_by: AskedBy = AskedBy.BALANCING, **more: Any
    ) -> list[BundleTask]:
        return [
            BundleTask(
                **{
                    "kind": TaskKind.MOVE,
                    "bundles": (bundle,),
                    "source": None,
                    "target": target,
                    "cause": Cause.IMBALANCE,
                    "asked_by": asked_by,
                    "planned": dict(self.controller.assigned),
                    **more,
                }
            )
            for bundle, target in moves
        ]

    def next_term(self) -> TaskController:
        self.controller.close()
        following = self.of(self.line, self.hand, self.context, self.term.epoch)
        self.controller, self.told = following.controller, following.told
        return self.controller


def at_work(
    tell: Callable[[ControllerAtWork], Awaitable[None]],
) -> Callable[[], None]:
    def test() -> None:
        run(_play(tell))

    test.__name__, test.__doc__ = tell.__name__, tell.__doc__
    return test


async def _registered(hand: MemoryCoordination) -> None:
    for broker in BROKERS:
        report = LoadReport(
            broker=broker,
            urls=BrokerUrls(http_url=f"http://{broker}"),
            sidecar_url="",
            reported_at_ms=0,
            started_at_ms=0,
        )
        await hand.create(znodes.registration(broker), encode_registration(report))


async def _play(tell: Callable[[ControllerAtWork], Awaitable[None]]) -> None:
    service, clock, metrics = MemoryService(), VirtualClock(), Metrics(CollectorRegistry())
    line, hand = Line(service), MemoryCoordination(service)
    context = Context(
        identity=Identity(
            broker=BROKERS[0],
            urls=BrokerUrls(http_url=f"http://{BROKERS[0]}"),
            sidecar_url="http://127.0.0.1:7750",
            instance="me",
            started_at_ms=0,
            version="1.0",
        ),
        coordination=line,
        cluster_state=ClusterState(line, clock, metrics),
        broker=InProcessBroker(clock.monotonic_s),
        clock=clock,
        metrics=metrics,
    )
    await line.start()
    await hand.start()
    await eventually(lambda: line.session.session_id and hand.session.session_id)
    context.cluster_state.open()
    stat = await hand.create(znodes.EPOCH, b"")
    await _registered(hand)
    await eventually(lambda: len(context.cluster_state.brokers) == len(BROKERS))
    try:
        await tell(ControllerAtWork.of(line, hand, context, stat.version))
    finally:
        context.cluster_state.close()
        await line.close()
        await hand.close()

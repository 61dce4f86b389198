import asyncio
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import pytest
from prometheus_client import CollectorRegistry
from stories import Story, told
from waiting import eventually

from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Context, Identity
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.config import Config
from loadmanager.core import orders, znodes
from loadmanager.core.bundle_task import (
    AskedBy,
    BundleTask,
    Dispatched,
    TaskEvent,
    TaskKind,
    TaskState,
)
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.load import BrokerUrls, LoadReport
from loadmanager.core.orders import (
    OrderChanges,
    Orders,
    SplitOrder,
    decode_orders,
    encode_orders,
    encode_owned,
)
from loadmanager.core.plan import Cause
from loadmanager.core.wire.reports import encode_registration
from loadmanager.leader.election import Deposed, Term
from loadmanager.leader.task_controller import OrderBook, TaskController
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
        settings = RuntimeSettings(Config.model_validate({"broker": {"id": BROKERS[0]}}))
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


async def _play(tell: Story) -> None:
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


at_work = told(lambda tell: run(_play(tell)), given=1)


A, B, C = BUNDLES[:3]
B1, B2, B3 = BROKERS
CUT = SplitOrder("range_equally_divide")


async def _placed(cluster: ControllerAtWork, *bundles: Any) -> None:
    await cluster.controller.open()
    placing = cluster.moves(
        *((one, B1) for one in bundles), asked_by=AskedBy.UNOWNED, kind=TaskKind.PLACE
    )
    await cluster.controller.dispatch(placing)
    await cluster.own(B1, bundles)
    cluster.told.clear()
    cluster.line.commits.clear()


@at_work
async def test_a_bundle_is_followed_until_its_target_serves(cluster: ControllerAtWork) -> None:
    await _placed(cluster, A)
    (proposal,) = cluster.moves((A, B2))
    found = await cluster.controller.dispatch([proposal])
    assert (found.ordered, found.refused) == ({A: B2}, {})
    await cluster.own(B1, [])
    await cluster.own(B2, [A], loading=[A])
    assert cluster.controller.tasks.of(A) is cluster.last(A)
    await cluster.own(B2, [A])
    assert cluster.states(A) == ["ordered", "released", "serving"]
    assert cluster.controller.ended[-1] is cluster.last(A)
    done = cluster.last(A)
    assert done.pause_s == pytest.approx(0.2)
    assert (done.source, done.target, done.attempts) == (B1, B2, 1)
    assert cluster.controller.tasks.of(A) is None


@at_work
async def test_waiting_proposals_go_together_by_their_right(cluster: ControllerAtWork) -> None:
    await _placed(cluster, A, B, C)
    cluster.line.held.clear()
    dispatch = cluster.controller.dispatch
    first = asyncio.ensure_future(dispatch(cluster.moves((C, B2))))
    await asyncio.sleep(0.1)
    waiting = [
        asyncio.ensure_future(dispatch(cluster.moves(*moves, asked_by=asked_by)))
        for moves, asked_by in (
            ([(A, B3), (B, B3)], AskedBy.BALANCING),
            ([(B, B2)], AskedBy.DRAIN),
            ([(A, B2)], AskedBy.PEOPLE),
        )
    ]
    await asyncio.sleep(0.1)
    cluster.line.held.set()
    balancing, drain, people = await asyncio.gather(*waiting)
    assert (await first).ordered == {C: B2}
    assert cluster.line.commits == [{znodes.orders(B1), znodes.orders(B2)}] * 2
    assert (people.ordered, drain.ordered, balancing.ordered) == ({A: B2}, {B: B2}, {})
    assert set(balancing.refused) == {A, B}
    assert (await cluster.orders(B2)).bundles == {A, B, C}
    numbers = {task.bundle: task.number for task in cluster.controller.tasks}
    assert numbers[A] < numbers[B]


@at_work
async def test_a_cancelled_proposer_fails_no_other_proposal(cluster: ControllerAtWork) -> None:
    await _placed(cluster, A, B, C)
    cluster.line.held.clear()
    dispatch = cluster.controller.dispatch
    gone = asyncio.ensure_future(dispatch(cluster.moves((C, B2))))
    together = asyncio.ensure_future(dispatch(cluster.moves((B, B2))))
    await asyncio.sleep(0.1)
    later = asyncio.ensure_future(dispatch(cluster.moves((A, B2))))
    gone.cancel()
    await asyncio.sleep(0.1)
    cluster.line.held.set()
    assert [one.ordered for one in await asyncio.gather(together, later)] == [{B: B2}, {A: B2}]
    assert gone.cancelled()
    assert (await cluster.orders(B2)).bundles == {A, B, C}
    assert {task.bundle for task in cluster.controller.tasks} == {A, B, C}


@at_work
async def test_a_failing_listener_keeps_no_task_from_its_end(cluster: ControllerAtWork) -> None:
    await _placed(cluster, A, B)
    failed: list[tuple[str, BaseException]] = []
    cluster.context.unexpected.followers.append(lambda *one: failed.append(one))
    await cluster.controller.dispatch(cluster.moves((A, B2), (B, B2)))
    cluster.controller.listener = _fail
    await cluster.own(B1, [])
    await cluster.own(B2, [A, B])
    assert len(cluster.controller.tasks) == 0
    assert {place for place, _ in failed} == {"tasks"}


def _fail(_: BundleTask) -> None:
    raise ValueError("a defect")


@at_work
async def test_who_proposes_what_stands_hears_so_without_a_write(cluster: ControllerAtWork) -> None:
    await _placed(cluster, A)
    assert (await cluster.controller.dispatch(cluster.moves((A, B1)))).ordered == {A: B1}
    assert cluster.line.commits == []
    await cluster.controller.dispatch(cluster.moves((A, B1), asked_by=AskedBy.PEOPLE))
    assert cluster.line.commits == [{znodes.orders(B1)}]
    assert cluster.told == []


@pytest.mark.parametrize("loss", [Loss.REQUEST, Loss.REPLY])
@at_work
async def test_after_a_lost_reply_orders_are_read(cluster: ControllerAtWork, loss: Loss) -> None:
    await _placed(cluster, A, B)
    found: list[Dispatched] = []
    cluster.line.losses = [loss]
    with pytest.raises(Disconnected):
        await cluster.controller.dispatch(cluster.moves((A, B2)), known=found.append)
    assert cluster.states(A) == ["unconfirmed"]
    assert found == []
    # Whatever brokers do meanwhile, nothing is known of the order.
    await cluster.own(B1, [B])
    cluster.controller.observe()
    assert cluster.states(A) == ["unconfirmed"]
    await cluster.controller.dispatch(cluster.moves((B, B3)))
    stands = loss is Loss.REPLY
    assert [dict(one.ordered) for one in found] == [{A: B2} if stands else {}]
    assert set(found[0].refused) == (set() if stands else {A})
    if stands:
        assert cluster.states(A) == ["unconfirmed", "ordered", "released"]
    else:
        # Its former order stands, which b1 is to carry out again.
        assert cluster.states(A) == ["unconfirmed", "failed", "ordered"]
        assert cluster.last(A).asked_by is AskedBy.RECONCILIATION
    assert (A in (await cluster.orders(B2)).bundles) is stands


@at_work
async def test_what_the_service_refuses_is_confirmed_by_reading(cluster: ControllerAtWork) -> None:
    await _placed(cluster, A, B)
    cluster.line.losses = [None, Loss.TOO_LARGE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "_COMMIT_NODES", 1)
        with pytest.raises(TooLarge):
            await cluster.controller.dispatch(cluster.moves((A, B2), (B, B3)))
    assert [cluster.states(one) for one in (A, B)] == [["unconfirmed"]] * 2
    await cluster.controller.change(OrderChanges)
    # A stood in two brokers' orders by then, and stays with the one that has its lock.
    assert [cluster.states(one) for one in (A, B)] == [["unconfirmed", "failed"]] * 2
    assert (await cluster.orders(B2)).bundles == set()


@at_work
async def test_what_does_not_fit_is_refused_to_who_asked(cluster: ControllerAtWork) -> None:
    await _placed(cluster, A, B)
    dispatch = cluster.controller.dispatch
    await dispatch(cluster.moves(*((one, B3) for one in BUNDLES[2:]), asked_by=AskedBy.UNOWNED))
    full = await cluster.hand.get(znodes.orders(B3))
    assert full is not None
    cluster.line.max_request_bytes = math.ceil(len(full.data) / 0.9)
    cluster.line.held.clear()
    former, small, large = (
        asyncio.ensure_future(dispatch(cluster.moves((one, target), asked_by=AskedBy.PEOPLE)))
        for one, target in ((A, B1), (A, B2), (B, B3))
    )
    await asyncio.sleep(0.1)
    cluster.line.held.set()
    await former
    found = await asyncio.gather(small, large)
    assert [dict(one.ordered) for one in found] == [{A: B2}, {}]
    assert found[0].too_large is None
    assert isinstance(found[1].too_large, TooLarge)
    assert found[1].refused == {B: "the orders of its broker do not fit into a node"}
    assert (cluster.states(A), cluster.states(B)) == (["ordered"], ["failed"])


@at_work
async def test_an_order_that_is_lost_is_written_again(cluster: ControllerAtWork) -> None:
    await _placed(cluster, A)
    await cluster.controller.dispatch(cluster.moves((A, B2)))
    await cluster.order_by_hand(Orders(cluster.term.epoch), B2)
    assert await cluster.controller.tend(TaskEvent.REPEATED) == []
    await asyncio.sleep(16.0)
    assert [task.bundle for task in await cluster.controller.tend(TaskEvent.REPEATED)] == [A]
    assert (await cluster.orders(B2)).bundles == {A}
    assert (cluster.last(A).attempts, cluster.states(A)) == (2, ["ordered", "ordered"])
    assert await cluster.controller.tend(TaskEvent.REPEATED) == []
    await cluster.own(B1, [])
    await asyncio.sleep(16.0)
    await cluster.controller.tend(TaskEvent.REPEATED)
    assert (cluster.last(A).attempts, cluster.last(A).state) == (3, TaskState.RELEASED)
    await cluster.own(B2, [A])
    assert cluster.last(A).state is TaskState.SERVING


@at_work
async def test_the_next_leader_follows_orders_of_the_former(cluster: ControllerAtWork) -> None:
    await _placed(cluster, A, B, C)
    await cluster.controller.dispatch(cluster.moves((A, B2)))
    await cluster.controller.dispatch(
        cluster.moves((B, B1), kind=TaskKind.SPLIT, asked_by=AskedBy.PEOPLE, splits={B: CUT})
    )
    cluster.line.losses = [Loss.REPLY]
    with pytest.raises(Disconnected):
        await cluster.controller.dispatch(cluster.moves((C, B3)))
    former = cluster.controller
    following = cluster.next_term()
    assert len(former.tasks) == 0
    assert {task.state for task in former.ended[-3:]} == {TaskState.SUPERSEDED}
    assert {task.note for task in former.ended[-3:]} == {"the term ended"}
    await following.open()
    assert {(t.kind, t.bundle, t.source, t.target) for t in following.tasks} == {
        (TaskKind.MOVE, A, B1, B2),
        (TaskKind.SPLIT, B, None, B1),
        (TaskKind.MOVE, C, B1, B3),
    }
    assert {t.asked_by for t in following.tasks} == {AskedBy.RECONCILIATION}
    assert {t.cause for t in following.tasks} == {Cause.INHERITED}
    await cluster.own(B1, [B, C])
    await cluster.own(B2, [A])
    assert {t.bundle for t in following.tasks} == {B, C}
    assert len(former.tasks) == 0  # It follows nothing any more.


@at_work
async def test_a_deposed_leader_changes_nothing_and_says_so(cluster: ControllerAtWork) -> None:
    await _placed(cluster, A)
    await cluster.hand.set(znodes.EPOCH, b"")
    with pytest.raises(Deposed):
        await cluster.controller.dispatch(cluster.moves((A, B2)))
    assert (await cluster.orders(B2)).bundles == frozenset()

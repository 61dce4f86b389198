"""The task controller with orders that Pulsar's admin REST carries out."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from fake_pulsar import FakePulsar, answer
from waiting import eventually

from loadmanager.adapters.clock import SystemClock
from loadmanager.common.runtime_settings import TaskBounds
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskEvent, TaskKind
from loadmanager.core.bundle_traffic import BundleTraffic
from loadmanager.core.ids import BrokerId, BundleId, parse_broker, parse_bundle
from loadmanager.core.orders import OrderChanges, SplitOrder
from loadmanager.core.plan import Cause
from loadmanager.core.splitting.merging import MERGE_WITH_NEXT
from loadmanager.leader.election import Deposed
from loadmanager.leader.task_controller import TaskController
from loadmanager.pulsar.client import Access, PulsarAdmin, RightMissing
from loadmanager.pulsar.moves import CUT_AT, BrokerQueries, Outcome
from loadmanager.pulsar.orders import CUT_EVENLY, Mandate, PulsarOrders, SampledOwners
from loadmanager.pulsar.sampling import BrokerSample


@dataclass
class Right(Mandate):
    epoch: int = 7
    why: str = ""
    deposed: bool = False

    def lapsed(self) -> str:
        return self.why

    async def confirm(self) -> str:
        if self.deposed:
            raise Deposed("term 7 is over")
        return self.why

    async def hands_over(self) -> bool:
        return False


@dataclass
class Term:
    """A controller of a term over fake brokers. ``told`` is each task in each state."""

    pulsar: FakePulsar
    right: Right
    owners: SampledOwners
    orders: PulsarOrders
    tasks: TaskController
    told: list[BundleTask]
    errors: list[BaseException]

    @property
    def brokers(self) -> list[BrokerId]:
        return [parse_broker(one.name) for one in self.pulsar.brokers]

    def bundle(self, number: int = 0) -> BundleId:
        return parse_bundle(self.pulsar.brokers[0].owned[number])

    def look(self) -> None:
        topics = list(self.pulsar.brokers[0].topics)
        samples = {
            parse_broker(one.name): BrokerSample(
                window_s=1.0,
                bundles={
                    parse_bundle(name): BundleTraffic(topic=topic)
                    for name, topic in zip(one.owned, topics, strict=False)
                    if name.startswith("bench/")
                },
            )
            for one in self.pulsar.brokers
        }
        self.owners.sampled(self.brokers, samples)

    async def order(
        self, bundle: BundleId, target: BrokerId, asked_by: AskedBy = AskedBy.PEOPLE, **more: Any
    ) -> str:
        assigned = self.orders.assigned
        proposal = BundleTask(
            **{
                "kind": TaskKind.MOVE,
                "bundles": (bundle,),
                "source": None,
                "target": target,
                "cause": Cause.REQUESTED,
                "asked_by": asked_by,
                "planned": {bundle: assigned[bundle]},
                **more,
            }
        )
        return (await self.tasks.dispatch([proposal])).refused.get(bundle, "")

    async def settled(self, bundle: BundleId, target: BrokerId, **more: Any) -> str:
        refused = await self.order(bundle, target, **more)
        await self.orders.settled()
        return refused

    def states(self, bundle: BundleId) -> list[str]:
        return [one.state.value for one in self.told if one.bundle == bundle]

    @property
    def last(self) -> BundleTask:
        return self.told[-1]


@pytest.fixture
async def term(pulsar: FakePulsar) -> AsyncIterator[Term]:
    admin = PulsarAdmin(
        Access(timeout_s=2.0, change_timeout_s=2.0), known={one.name for one in pulsar.brokers}
    )
    owners, right = SampledOwners(), Right()
    told: list[BundleTask] = []
    errors: list[BaseException] = []
    orders = PulsarOrders(
        BrokerQueries(admin, lambda one: f"http://{one}", "research", lambda: owners.brokers),
        claims=True,
        owners=owners,
        topic_of=owners.topic_of,
        mandate=right,
        failed=errors.append,
    )
    tasks = TaskController(
        right.epoch,
        orders,
        owners,
        SystemClock(),
        bounds=lambda: TaskBounds(most_per_broker=2, lost_after_s=15.0),
        listener=told.append,
        caught=lambda _, error: errors.append(error),
    )
    made = Term(pulsar, right, owners, orders, tasks, told, errors)
    made.look()
    await tasks.open()
    yield made
    orders.close()
    await orders.settled()
    tasks.close()
    await admin.close()


async def test_a_bundle_is_to_stay_where_it_is_unless_it_is_moved(term: Term) -> None:
    bundle, (first, second, _) = term.bundle(), term.brokers
    assert dict(term.orders.assigned) == dict.fromkeys(term.owners.owners, first)
    assert len(term.orders.assigned) == len(term.owners.owners)
    assert await term.order(bundle, second) == ""
    assert term.orders.assigned[bundle] == second
    assert len(term.orders.assigned) == len(term.owners.owners)
    await term.orders.settled()
    assert term.states(bundle) == ["ordered", "serving"]
    assert (term.last.epoch, term.last.source, term.last.attempts) == (7, first, 1)
    assert term.last.pause_s is None
    assert term.orders.assigned[bundle] == second == term.owners.listed_owner(bundle)
    term.tasks.observe()
    assert not len(term.tasks.tasks)
    assert term.errors == []
    term.owners.brokers = term.brokers[1:]  # The first one is gone.
    assert dict(term.orders.assigned) == {bundle: second}


async def test_a_bundle_landed_elsewhere_stays_there_and_is_not_ordered_back(term: Term) -> None:
    bundle, (_, second, third) = term.bundle(), term.brokers
    term.pulsar.snatched = [term.pulsar.brokers[2]] * 5
    await term.settled(bundle, second)
    assert term.states(bundle) == ["ordered"] * 3 + ["landed_elsewhere"]
    assert (term.last.attempts, term.last.note) == (3, f"{third} serves it after 3 attempts")
    term.tasks.observe()
    assert not len(term.tasks.tasks)
    assert term.orders.assigned[bundle] == third


async def test_a_bundle_that_nobody_is_seen_to_serve_is_left_to_pulsar(term: Term) -> None:
    bundle = term.bundle()
    term.owners.found({bundle: None})
    await term.tasks.change(lambda: OrderChanges({bundle: term.brokers[1]}))
    await term.orders.settled()
    assert bundle not in term.orders.assigned
    assert term.pulsar.unloads == []


@pytest.mark.parametrize("closed", [True, False])
async def test_a_term_that_ends_orders_no_further_attempt(term: Term, closed: bool) -> None:
    bundle, third = term.bundle(), term.pulsar.brokers[2]
    orders: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        orders.append(request.method)
        term.pulsar.hand_over(bundle, third)
        if closed:
            term.orders.close()
        else:
            term.right.why = "its session with ZooKeeper has ended"
        return web.Response(status=204)

    term.pulsar.brokers[0].instead[f"/admin/v2/namespaces/{bundle}/unload"] = elsewhere
    await term.settled(bundle, term.brokers[1])
    why = "the term ended" if closed else "its session with ZooKeeper has ended"
    assert (term.last.state.value, term.last.note) == ("superseded", why)
    assert len(orders) == 1


async def test_waiting_moves_end_with_the_term(term: Term, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.pulsar.moves.PAUSE_RATIO", 1e6)
    monkeypatch.setattr("loadmanager.pulsar.moves.LONGEST_PAUSE_S", 600.0)
    first, second = term.bundle(0), term.bundle(1)
    await term.order(first, term.brokers[1])
    await term.order(second, term.brokers[1])
    await eventually(lambda: "serving" in term.states(first))
    assert (term.states(second), term.orders.waiting) == (["ordered"], 1)
    term.orders.close()
    await asyncio.wait_for(term.orders.settled(), 10)
    assert term.orders.waiting == 0
    assert (term.last.bundle, term.last.state.value) == (second, "superseded")
    assert term.last.note == "the term ended"
    assert [bundle for bundle, _ in term.pulsar.unloads] == [first]


async def test_an_order_in_the_place_of_another_waits_for_that_ones_look(term: Term) -> None:
    bundle, (_, second, third) = term.bundle(), term.brokers
    path = f"/admin/v2/namespaces/{bundle}/unload"
    under_way, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def slow(request: web.Request) -> web.Response:
        del term.pulsar.brokers[0].instead[path]
        loop.call_soon_threadsafe(under_way.set)
        await asyncio.to_thread(go_on.wait)
        return await answer(term.pulsar, term.pulsar.brokers[0], request)

    term.pulsar.brokers[0].instead[path] = slow
    await term.order(bundle, second)
    await under_way.wait()
    await term.order(bundle, third)
    assert term.orders.assigned[bundle] == third
    go_on.set()
    await term.orders.settled()
    assert term.states(bundle) == ["ordered", "superseded", "ordered", "released", "serving"]
    assert [target for _, target in term.pulsar.unloads] == [second, third]
    assert term.pulsar.brokers[2].owned == [bundle]


@pytest.mark.parametrize("order", [SplitOrder(CUT_EVENLY), SplitOrder(CUT_AT, (0x0ABC0000,))])
async def test_a_split_leaves_its_parts_at_their_broker(term: Term, order: SplitOrder) -> None:
    bundle = next(one for one in term.owners.owners if "/0x00000000_" in one)
    first = term.brokers[0]
    split: dict[str, Any] = {"kind": TaskKind.SPLIT, "splits": {bundle: order}}
    assert await term.order(bundle, first, **split) == ""
    assert dict(term.orders.splits) == {bundle: order}
    await term.orders.settled()
    assert term.states(bundle) == ["ordered", "serving"]
    assert bundle not in term.orders.assigned
    served = {one for one in term.pulsar.brokers[0].owned if one.startswith("bench/")}
    assert dict(term.orders.assigned) == dict.fromkeys(map(parse_bundle, served), first)
    assert len(served) == 9


async def test_an_unfinished_split_is_the_last(term: Term, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: Any) -> Outcome:
        return Outcome(event=TaskEvent.EXPIRED, reason="no parts", attempts=1)

    monkeypatch.setattr("loadmanager.pulsar.orders.split_bundle", lost)
    first, second = term.bundle(0), term.bundle(1)
    for bundle in (first, second):
        split: dict[str, Any] = {"kind": TaskKind.SPLIT, "splits": {bundle: SplitOrder(CUT_EVENLY)}}
        assert await term.order(bundle, term.brokers[0], **split) == ""
    await term.orders.settled()
    assert (term.states(first), term.states(second)) == (
        ["ordered", "timed_out"],
        ["ordered", "superseded"],
    )
    assert term.last.note == "a split before it is not finished"
    assert term.orders.unsplittable == {first}


@pytest.mark.parametrize("algorithm", [MERGE_WITH_NEXT, "topic_count_equally_divide"])
async def test_what_pulsar_is_not_asked_for_fails_with_why(term: Term, algorithm: str) -> None:
    bundle = term.bundle()
    split: dict[str, Any] = {
        "kind": TaskKind.SPLIT,
        "splits": {bundle: SplitOrder(algorithm, (0x10000000,))},
    }
    await term.settled(bundle, term.brokers[0], **split)
    assert term.states(bundle) == ["ordered", "failed"]
    assert algorithm in term.last.note
    assert term.orders.assigned[bundle] == term.brokers[0]


async def test_a_missing_right_fails_the_task_and_is_reported_to_its_owner(term: Term) -> None:
    bundle = term.bundle()
    term.pulsar.brokers[0].refuses(f"/admin/v2/namespaces/{bundle}/unload", 403, "not allowed")
    await term.settled(bundle, term.brokers[1])
    assert term.states(bundle) == ["ordered", "failed"]
    assert "the right to change it" in term.last.note
    assert [type(error) for error in term.errors] == [RightMissing]

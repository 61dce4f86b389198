"""One agent's bundles without ZooKeeper: what it makes of orders, answers and losses."""

import asyncio
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry

from loadmanager.agent.ownership_worker import OwnershipWorker
from loadmanager.agent.registration import Membership
from loadmanager.core.ids import parse_broker, parse_bundle
from loadmanager.core.orders import Orders
from loadmanager.core.ownership import Phase
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.faults.virtual_time import run
from tests.testbed.in_process import Fault, InProcessBroker

A, B = (parse_bundle(f"t/n/0x{n}0000000_0x{n + 1}0000000") for n in (1, 2))
BROKER = parse_broker("broker:8080")


class Bench:
    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        self.broker = InProcessBroker(loop.time)
        self.metrics = CollectorRegistry()
        self.owned = OwnershipWorker(
            self.broker,
            Metrics(self.metrics),
            claimed_elsewhere=lambda bundle: bundle in self.elsewhere,
            tasks=tasks,
        )
        self.elsewhere = {B} - {B}
        self.incarnation = ""

    async def join(self, epoch: int = 1) -> None:
        state = await self.broker.renew_lease(agent_epoch=epoch, until_s=None, incarnation=None)
        self.incarnation = state.incarnation
        await self.broker.renew_lease(agent_epoch=epoch, until_s=1e9, incarnation=state.incarnation)
        self.owned.joined(Membership(BROKER, session_id=epoch, agent_epoch=epoch))

    async def own(self, token: int = 7) -> None:
        self.owned.obey(Orders(1, frozenset({A})))
        self.owned.locks_taken({A: token})
        await asyncio.sleep(0.01)
        assert self.broker.serving == {A: token}


def _with(tell: Callable[[Bench], Awaitable[None]]) -> None:
    async def program() -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            await bench.join()
            await tell(bench)
            bench.broker.heal()

    run(program())


def test_an_answer_from_before_a_command_is_not_taken_for_its_outcome() -> None:
    async def tell(bench: Bench) -> None:
        asked_at = bench.owned.commands_done
        await bench.own()  # After the question, before the answer that knows nothing of it.
        commands = len(bench.broker.commands)
        bench.owned.broker_serves({}, asked_at)
        await asyncio.sleep(0.01)
        assert len(bench.broker.commands) == commands

        bench.owned.broker_serves({}, bench.owned.commands_done)
        await asyncio.sleep(0.01)
        assert bench.broker.commands[commands:] == ["load"]

    _with(tell)


def test_an_answer_during_a_command_is_not_taken_for_its_outcome() -> None:
    async def tell(bench: Bench) -> None:
        await bench.own()
        bench.broker.inject(Fault.HANG, "unload")
        bench.owned.obey(Orders(1))
        await asyncio.sleep(0.01)
        commands = len(bench.broker.commands)
        bench.owned.broker_serves({A: 7}, bench.owned.commands_done)
        bench.owned.broker_serves({}, bench.owned.commands_done)
        await asyncio.sleep(0.01)
        assert bench.owned.phases == {A: Phase.RELEASING}
        assert len(bench.broker.commands) == commands

    _with(tell)


def test_a_bundle_served_under_an_older_lock_is_loaded_under_the_present_one() -> None:
    async def tell(bench: Bench) -> None:
        await bench.own(token=7)
        bench.owned.session_lost()
        await bench.join(epoch=2)
        await asyncio.sleep(0.01)
        assert bench.owned.phases == {A: Phase.ACQUIRING}
        await bench.broker.load(A, agent_epoch=2, fencing_token=8)
        bench.broker.inject(Fault.REFUSED, "load", times=1)
        bench.owned.locks_taken({A: 9})
        await asyncio.sleep(0.01)
        assert bench.broker.serving == {A: 8}
        bench.owned.broker_serves(bench.broker.serving, bench.owned.commands_done)
        await asyncio.sleep(0.01)
        assert bench.broker.serving == {A: 9}

    _with(tell)


def test_a_bundle_that_another_claims_is_not_asked_for_until_it_is_free() -> None:
    async def tell(bench: Bench) -> None:
        bench.elsewhere = {A}
        bench.owned.obey(Orders(1, frozenset({A, B})))
        assert list(bench.owned.takes) == [B]
        bench.elsewhere = set()
        bench.owned.retry_refused()
        assert set(bench.owned.takes) == {A, B}

    _with(tell)


def test_a_refused_lock_is_not_asked_for_again_before_something_changed() -> None:
    async def tell(bench: Bench) -> None:
        bench.owned.obey(Orders(1, frozenset({A})))
        bench.owned.lock_refused(A)
        assert bench.owned.phases == {}
        bench.owned.compare()
        assert bench.owned.takes == {}
        bench.owned.retry_refused()
        assert list(bench.owned.takes) == [A]

    _with(tell)


def test_what_is_recalled_while_its_lock_is_on_the_way_is_given_back() -> None:
    async def tell(bench: Bench) -> None:
        bench.owned.obey(Orders(1, frozenset({A})))
        bench.owned.obey(Orders(1))
        assert bench.owned.phases == {A: Phase.ABANDONING}
        bench.owned.locks_taken({A: 5})
        assert bench.owned.phases == {A: Phase.RELEASING}
        await asyncio.sleep(0.01)
        assert list(bench.owned.drops) == [A]
        bench.owned.locks_dropped([A])
        assert bench.owned.phases == {}
        assert bench.owned.records.tokens == {}
        assert "load" not in bench.broker.commands

    _with(tell)


def test_before_it_joined_an_agent_takes_nothing() -> None:
    async def program() -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            assert bench.owned.handovers == {}
            bench.owned.obey(Orders(1, frozenset({A}), {B: BROKER}))
            assert bench.owned.takes == {}
            assert bench.owned.handovers == {B: BROKER}
            await bench.join()
            assert list(bench.owned.takes) == [A]

    run(program())

"""One agent's bundles: what it makes of orders, answers and losses, and under which tokens."""

import asyncio
import random

import pytest
from prometheus_client import CollectorRegistry
from stories import Story, in_virtual_time, told

from loadmanager.agent.ownership import OwnershipWorker, RangeChange
from loadmanager.agent.registration import Membership
from loadmanager.core.ids import BundleId, Namespace, bundle_id, parse_broker, parse_bundle
from loadmanager.core.orders import Orders
from loadmanager.core.ownership import Phase
from loadmanager.ports.coordination import SetData
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.faults.virtual_time import run
from tests.testbed.in_process import Fault, InProcessBroker

A, B = (parse_bundle(f"t/n/0x{n}0000000_0x{n + 1}0000000") for n in (1, 2))
HALVES = (parse_bundle("t/n/0x10000000_0x18000000"), parse_bundle("t/n/0x18000000_0x20000000"))
BROKER = parse_broker("broker:8080")


class Bench:
    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.broker = InProcessBroker(asyncio.get_running_loop().time)
        self.owned = OwnershipWorker(
            self.broker,
            Metrics(CollectorRegistry()),
            claimed_elsewhere=lambda bundle: bundle in self.elsewhere,
            tasks=tasks,
        )
        self.elsewhere: set[BundleId] = set()

    async def join(self, epoch: int = 1) -> None:
        state = await self.broker.renew_lease(agent_epoch=epoch, until_s=None, incarnation=None)
        await self.broker.renew_lease(agent_epoch=epoch, until_s=1e9, incarnation=state.incarnation)
        self.owned.joined(Membership(BROKER, session_id=epoch, agent_epoch=epoch))

    async def take(self, token: int) -> None:
        self.owned.obey(Orders(1, frozenset({A})))
        self.owned.locks_taken({A: token})
        await asyncio.sleep(0.01)

    async def own(self, token: int = 7) -> None:
        await self.take(token)
        assert self.broker.serving == {A: token}

    async def hear(self) -> None:
        state = await self.broker.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
        self.owned.broker_serves(state.serving, self.owned.commands_done)


async def _tell(story: Story) -> None:
    async with asyncio.TaskGroup() as tasks:
        bench = Bench(tasks)
        await bench.join()
        await story(bench)
        bench.broker.heal()


_at_a_bench = told(lambda story: run(_tell(story)), given=1)


@_at_a_bench
async def test_an_answer_from_before_a_command_is_not_taken_for_its_outcome(bench: Bench) -> None:
    asked_at = bench.owned.commands_done
    await bench.own()  # After the question, before the answer that knows nothing of it.
    commands = len(bench.broker.commands)
    bench.owned.broker_serves({}, asked_at)
    await asyncio.sleep(0.01)
    assert len(bench.broker.commands) == commands

    bench.owned.broker_serves({}, bench.owned.commands_done)
    await asyncio.sleep(0.01)
    assert bench.broker.commands[commands:] == ["load"]


@_at_a_bench
async def test_an_answer_during_a_command_is_not_taken_for_its_outcome(bench: Bench) -> None:
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


@_at_a_bench
async def test_a_bundle_is_loaded_under_the_present_lock(bench: Bench) -> None:
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


@_at_a_bench
async def test_a_bundle_that_another_claims_is_not_asked_for_until_it_is_free(bench: Bench) -> None:
    bench.elsewhere = {A}
    bench.owned.obey(Orders(1, frozenset({A, B})))
    assert list(bench.owned.takes) == [B]
    bench.elsewhere = set()
    bench.owned.retry_refused()
    assert set(bench.owned.takes) == {A, B}


@_at_a_bench
async def test_a_refused_lock_is_not_asked_for_again_before_something_changed(bench: Bench) -> None:
    bench.owned.obey(Orders(1, frozenset({A})))
    bench.owned.lock_refused(A)
    assert bench.owned.phases == {}
    bench.owned.compare()
    assert bench.owned.takes == {}
    bench.owned.retry_refused()
    assert list(bench.owned.takes) == [A]


@_at_a_bench
async def test_what_is_recalled_while_its_lock_is_on_the_way_is_given_back(bench: Bench) -> None:
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


@in_virtual_time
async def test_before_it_joined_an_agent_takes_nothing() -> None:
    async with asyncio.TaskGroup() as tasks:
        bench = Bench(tasks)
        assert bench.owned.handovers == {}
        bench.owned.obey(Orders(1, frozenset({A}), {B: BROKER}))
        assert bench.owned.takes == {}
        assert bench.owned.handovers == {B: BROKER}
        await bench.join()
        assert list(bench.owned.takes) == [A]


BUNDLES = [bundle_id(Namespace("t/n"), 16 * n, 16 * n + 16) for n in range(8)]
LOOKS = 400


def parts_of(number: int) -> RangeChange:
    lower, middle = 16 * number, 16 * number + 8
    parts = (
        bundle_id(Namespace("t/n"), lower, middle),
        bundle_id(Namespace("t/n"), middle, lower + 16),
    )
    return RangeChange((BUNDLES[number],), parts, SetData("/admin/local-policies/t/n", b"", 0))


class RandomAgent(Bench):
    def __init__(self, tasks: asyncio.TaskGroup, seed: int) -> None:
        super().__init__(tasks)
        self.random = random.Random(seed)  # noqa: S311 - to be repeatable
        self.elsewhere = set(BUNDLES[:1])
        self.epoch = self.zxid = 0

    async def begin(self) -> None:
        self.epoch += 1
        await self.join(self.epoch)

    async def act(self) -> None:
        self.zxid += 1
        owned, draw = self.owned, self.random
        some = [bundle for bundle in BUNDLES if draw.random() < 0.5]
        taking = [bundle for bundle in owned.takes if draw.random() < 0.7]
        match draw.randrange(9):
            case 0 | 1:
                owned.obey(Orders(1, frozenset(some)))
            case 2 | 3:
                owned.locks_taken(dict.fromkeys(taking, self.zxid))
            case 4:
                for bundle in taking:
                    owned.lock_refused(bundle)
            case 5:
                owned.locks_dropped([bundle for bundle in owned.drops if draw.random() < 0.7])
            case 6:
                asked_at = owned.commands_done
                owned.broker_serves(dict(self.broker.serving), asked_at)
            case 7:
                self.elsewhere = set(some[:2])
                owned.retry_refused()
            case _:
                await self.act_rarely()
        await asyncio.sleep(draw.choice([0, 0, 0.01]))

    async def act_rarely(self) -> None:
        number = self.random.randrange(len(BUNDLES))
        phases = self.owned.phases
        match self.random.randrange(5):
            case 0 if phases.get(BUNDLES[number]) in {Phase.OWNED, Phase.RELEASING}:
                change = parts_of(number)
                if not phases.keys() & set(change.made):
                    self.owned.was_split(change, self.zxid)
            case 1:
                self.broker.inject(Fault.REFUSED, self.random.choice(["load", "unload"]), times=1)
            case 2:
                self.owned.broker_lost()
                await self.begin()
            case 3:
                self.owned.session_lost()
                await self.begin()
            case _:
                self.owned.retry_refused()


def check(owned: OwnershipWorker) -> None:
    records = owned.records
    everything = {record.bundle: record for record in records}

    def those(*phases: Phase) -> set[str]:
        return {bundle for bundle, record in everything.items() if record.phase in phases}

    assert set(owned.takes) == those(Phase.ACQUIRING, Phase.ABANDONING)
    assert set(owned.drops) == those(Phase.DROPPING)
    assert set(records.tokens) == those(Phase.OWNED, Phase.RELEASING, Phase.DROPPING)
    assert set(records.loading) == {b for b, record in everything.items() if record.loading}
    assert records.count == len(everything) - len(those(Phase.FREE))
    assert records.may_be_served is bool(those(Phase.OWNED, Phase.RELEASING, Phase.HALTING))
    ordered = {bundle for bundle, record in everything.items() if record.ordered}
    assert ordered == (owned.orders.bundles if owned.orders else set())
    before = owned.phases
    owned._compare_some(tuple(records))
    assert owned.phases == before, "a look at all found what a look at the unsettled did not"


@pytest.mark.parametrize("seed", range(12))
@in_virtual_time
async def test_what_is_derived_is_what_a_look_at_all_bundles_gives(seed: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        agent = RandomAgent(tasks, seed)
        await agent.begin()
        for _ in range(LOOKS):
            await agent.act()
            agent.owned.compare()
            check(agent.owned)
        agent.broker.heal()


@in_virtual_time
async def test_at_rest_no_bundle_is_looked_at_and_what_is_gone_leaves_no_record() -> None:
    async with asyncio.TaskGroup() as tasks:
        agent = RandomAgent(tasks, 0)
        await agent.begin()
        agent.elsewhere = set()
        agent.owned.obey(Orders(1, frozenset(BUNDLES)))
        agent.owned.locks_taken(dict.fromkeys(BUNDLES, 7))
        await asyncio.sleep(0.1)
        assert agent.owned.records.unsettled == {}
        agent.owned.obey(Orders(1, frozenset(BUNDLES[:2])))
        await asyncio.sleep(0.1)
        agent.owned.locks_dropped(BUNDLES[2:])
        agent.owned.broker_serves(dict(agent.broker.serving), agent.owned.commands_done)
        assert {record.bundle for record in agent.owned.records} == set(BUNDLES[:2])


@pytest.mark.parametrize("lost", [False, True], ids=["recalled", "session lost"])
@_at_a_bench
async def test_a_load_that_comes_after_the_unload_is_not_obeyed(bench: Bench, lost: bool) -> None:
    bench.broker.inject(Fault.LATE, "load", times=1)
    await bench.take(token=5)
    if lost:
        bench.owned.session_lost()
    else:
        bench.owned.obey(Orders(2))
    await asyncio.sleep(1.0)
    assert A not in bench.owned.phases if lost else A in bench.owned.drops
    bench.broker.heal()
    assert bench.broker.serving == {}


@_at_a_bench
async def test_a_lock_is_kept_until_an_unload_was_confirmed(bench: Bench) -> None:
    bench.broker.inject(Fault.LATE, "load", times=1)
    await bench.take(token=5)
    bench.broker.inject(Fault.UNREACHABLE, "unload", times=1)
    bench.owned.obey(Orders(2))
    await asyncio.sleep(0.01)
    assert bench.broker.commands[-1] == "unload"
    await bench.hear()
    assert not bench.owned.drops, "that it is not served now is no promise"
    await asyncio.sleep(1.0)
    assert A in bench.owned.drops
    assert bench.broker.commands[-3:] == ["unload", "renew_lease", "unload"]
    bench.broker.heal()
    assert bench.broker.serving == {}


@_at_a_bench
async def test_what_a_former_agent_left_is_ended_under_its_token(bench: Bench) -> None:
    await bench.broker.load(A, agent_epoch=1, fencing_token=9)
    bench.owned.obey(Orders(2))
    await bench.hear()
    await asyncio.sleep(1.0)
    assert bench.broker.serving == {}


@_at_a_bench
async def test_a_bundle_that_was_cut_is_over_under_its_token(bench: Bench) -> None:
    bench.broker.inject(Fault.LATE, "load", times=1)
    await bench.take(token=5)
    change = RangeChange((A,), HALVES, SetData("/admin/local-policies/t/n", b"", 0))
    bench.owned.was_split(change, fencing_token=6)
    await asyncio.sleep(1.0)
    assert A not in bench.owned.phases
    bench.broker.heal()
    assert bench.broker.serving == dict.fromkeys(HALVES, 6)
    assert set(bench.owned.phases.values()) == {Phase.OWNED}


@_at_a_bench
async def test_the_whole_of_a_merge_that_is_not_made_is_no_lock_to_take(bench: Bench) -> None:
    bench.owned.obey(Orders(1, frozenset(HALVES)))
    bench.owned.locks_taken(dict.fromkeys(HALVES, 7))
    await asyncio.sleep(0.01)
    merge = RangeChange(HALVES, (A,), SetData("/boundaries", b""))
    bench.owned.begin_merge(merge)
    await asyncio.sleep(0.01)
    bench.owned.merging(merge)
    assert A in bench.owned.takes
    bench.owned.not_merged(merge)
    assert A not in bench.owned.takes
    assert bench.owned.phases == dict.fromkeys(HALVES, Phase.DROPPING)
    bench.owned.locks_dropped(HALVES)
    assert bench.owned.phases == dict.fromkeys(HALVES, Phase.ACQUIRING)
    bench.owned.recall_all()

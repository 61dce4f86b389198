"""The sets derived from the records are those that a look at all records gives."""

import asyncio
import random

import pytest
from prometheus_client import CollectorRegistry

from loadmanager.agent.ownership_worker import OwnershipWorker
from loadmanager.agent.range_changes import RangeChange
from loadmanager.agent.registration import Membership
from loadmanager.core.ids import Namespace, bundle_id, parse_broker
from loadmanager.core.orders import Orders
from loadmanager.core.ownership import Phase
from loadmanager.ports.coordination import SetData
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.faults.virtual_time import run
from tests.testbed.in_process import Fault, InProcessBroker

BUNDLES = [bundle_id(Namespace("t/n"), 16 * n, 16 * n + 16) for n in range(8)]
LOOKS = 400


def parts_of(number: int) -> RangeChange:
    lower, middle = 16 * number, 16 * number + 8
    parts = (
        bundle_id(Namespace("t/n"), lower, middle),
        bundle_id(Namespace("t/n"), middle, lower + 16),
    )
    return RangeChange((BUNDLES[number],), parts, SetData("/admin/local-policies/t/n", b"", 0))


class RandomAgent:
    def __init__(self, tasks: asyncio.TaskGroup, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - to be repeatable
        self.broker = InProcessBroker(asyncio.get_running_loop().time)
        self.elsewhere = set(BUNDLES[:1])
        self.owned = OwnershipWorker(
            self.broker,
            Metrics(CollectorRegistry()),
            claimed_elsewhere=lambda bundle: bundle in self.elsewhere,
            tasks=tasks,
        )
        self.epoch = self.zxid = 0

    async def begin(self) -> None:
        self.epoch += 1
        state = await self.broker.renew_lease(
            agent_epoch=self.epoch, until_s=None, incarnation=None
        )
        await self.broker.renew_lease(
            agent_epoch=self.epoch, until_s=1e9, incarnation=state.incarnation
        )
        self.owned.joined(Membership(parse_broker("b:1"), self.epoch, self.epoch))

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
def test_what_is_derived_is_what_a_look_at_all_bundles_gives(seed: int) -> None:
    async def program() -> None:
        async with asyncio.TaskGroup() as tasks:
            agent = RandomAgent(tasks, seed)
            await agent.begin()
            for _ in range(LOOKS):
                await agent.act()
                agent.owned.compare()
                check(agent.owned)
            agent.broker.heal()

    run(program())


def test_at_rest_no_bundle_is_looked_at_and_what_is_gone_leaves_no_record() -> None:
    async def program() -> None:
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

    run(program())

"""What the agent gives back is over on the broker, whatever commands come late."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from loadmanager.agent.ownership_worker import OwnershipWorker
from loadmanager.agent.range_changes import RangeChange
from loadmanager.agent.registration import Membership
from loadmanager.core.ids import parse_broker, parse_bundle
from loadmanager.core.orders import Orders
from loadmanager.core.ownership import Phase
from loadmanager.ports.coordination import SetData
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.in_process import Fault, InProcessBroker

WHOLE = parse_bundle("t/n/0x00000000_0xffffffff")
HALVES = (parse_bundle("t/n/0x00000000_0x80000000"), parse_bundle("t/n/0x80000000_0xffffffff"))
WANTED, UNWANTED = Orders(1, frozenset({WHOLE})), Orders(2)


@dataclass(slots=True)
class Agent:
    broker: InProcessBroker
    ownerships: OwnershipWorker

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)

    async def own(self, token: int) -> None:
        """Take the lock of WHOLE, and wait for the load to be done, late or failed."""
        done = self.ownerships.commands_done
        self.ownerships.obey(WANTED)
        self.ownerships.locks_taken({WHOLE: token})
        await self.until(lambda: self.ownerships.commands_done > done)

    async def told(self) -> None:
        state = await self.broker.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
        self.ownerships.broker_serves(state.serving, self.ownerships.commands_done)


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    broker = InProcessBroker(lambda: 100.0)
    await broker.renew_lease(agent_epoch=1, until_s=200.0, incarnation=broker.incarnation)
    async with asyncio.TaskGroup() as tasks:
        ownerships = OwnershipWorker(
            broker,
            Metrics(CollectorRegistry()),
            claimed_elsewhere=lambda _bundle: False,
            tasks=tasks,
        )
        ownerships.joined(Membership(parse_broker("broker:8080"), session_id=1, agent_epoch=1))
        yield Agent(broker, ownerships)


async def test_a_load_that_comes_after_the_unload_is_not_obeyed(agent: Agent) -> None:
    agent.broker.inject(Fault.LATE, "load", times=1)
    await agent.own(token=5)
    agent.ownerships.obey(UNWANTED)
    await agent.until(lambda: WHOLE in agent.ownerships.drops)
    agent.broker.heal()
    assert agent.broker.serving == {}


async def test_a_lock_is_kept_until_an_unload_was_confirmed(agent: Agent) -> None:
    agent.broker.inject(Fault.LATE, "load", times=1)
    await agent.own(token=5)
    agent.broker.inject(Fault.UNREACHABLE, "unload", times=1)
    done = agent.ownerships.commands_done
    agent.ownerships.obey(UNWANTED)
    await agent.until(lambda: agent.ownerships.commands_done > done)
    await agent.told()
    assert not agent.ownerships.drops, "that it is not served now is no promise"
    await agent.until(lambda: WHOLE in agent.ownerships.drops)
    assert agent.broker.commands[-3:] == ["unload", "renew_lease", "unload"]
    agent.broker.heal()
    assert agent.broker.serving == {}


async def test_what_a_lost_session_owned_is_over_under_its_token(agent: Agent) -> None:
    agent.broker.inject(Fault.LATE, "load", times=1)
    await agent.own(token=5)
    agent.ownerships.session_lost()
    await agent.until(lambda: WHOLE not in agent.ownerships.phases)
    agent.broker.heal()
    assert agent.broker.serving == {}


async def test_what_a_former_agent_left_is_ended_under_the_token_that_is_told(
    agent: Agent,
) -> None:
    await agent.broker.load(WHOLE, agent_epoch=1, fencing_token=9)
    agent.ownerships.obey(UNWANTED)
    await agent.told()
    await agent.until(lambda: agent.broker.serving == {})


async def test_a_bundle_that_came_back_is_served_under_its_new_token(agent: Agent) -> None:
    await agent.own(token=5)
    agent.ownerships.obey(UNWANTED)
    await agent.until(lambda: WHOLE in agent.ownerships.drops)
    agent.ownerships.locks_dropped([WHOLE])
    await agent.own(token=6)
    await agent.until(lambda: agent.broker.serving == {WHOLE: 6})


async def test_what_a_broker_forgot_is_loaded_again_with_the_token_of_its_lock(
    agent: Agent,
) -> None:
    await agent.own(token=5)
    agent.broker.restart()
    await agent.broker.renew_lease(
        agent_epoch=1, until_s=200.0, incarnation=agent.broker.incarnation
    )
    await agent.told()
    await agent.until(lambda: agent.broker.serving == {WHOLE: 5})


async def test_a_bundle_that_was_cut_is_over_under_its_token(agent: Agent) -> None:
    agent.broker.inject(Fault.LATE, "load", times=1)
    await agent.own(token=5)
    change = RangeChange((WHOLE,), HALVES, SetData("/admin/local-policies/t/n", b"", 0))
    agent.ownerships.was_split(change, fencing_token=6)
    await agent.until(lambda: WHOLE not in agent.ownerships.phases)
    agent.broker.heal()
    assert agent.broker.serving == dict.fromkeys(HALVES, 6)
    assert set(agent.ownerships.phases.values()) == {Phase.OWNED}

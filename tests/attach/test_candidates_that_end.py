"""A candidate that ends looks whether another one goes on."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from coordination_worlds import connected
from prometheus_client import CollectorRegistry

from loadmanager.adapters.clock import SystemClock
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Identity, Liveness, UnexpectedErrors
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId
from loadmanager.core.load import BrokerUrls
from loadmanager.pulsar.controller import Candidate
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.memory import MemoryCoordination, MemoryService

LONGEST_S = 0.6


@dataclass
class World:
    watching: Candidate
    other: MemoryCoordination
    service: MemoryService


def watcher(coordination: MemoryCoordination) -> Candidate:
    clock, metrics = SystemClock(), Metrics(CollectorRegistry(), "research")
    name = BrokerId("attach-a:1")
    return Candidate(
        identity=Identity(
            broker=name,
            urls=BrokerUrls(http_url=""),
            sidecar_url="",
            instance="a",
            started_at_ms=0,
            version="",
            host="",
            process_id=1,
        ),
        coordination=coordination,
        cluster_state=ClusterState(coordination, clock, metrics),
        clock=clock,
        unexpected=UnexpectedErrors(clock, metrics),
        longest_session_s=LONGEST_S,
    )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    service = MemoryService()
    mine, other = MemoryCoordination(service), MemoryCoordination(service)
    for one in (mine, other):
        await connected(one)
    await other.create(f"{znodes.ATTACH_CANDIDATES}/attach-b:1", b"", ephemeral=True)
    yield World(watcher(mine), other, service)
    for one in (mine, other):
        await one.close()


async def leads(session: MemoryCoordination) -> None:
    """Let a session hold the leader's node; what is in it does not matter here."""
    await session.create(znodes.LEADER, b"?", ephemeral=True)


async def test_one_that_is_elected_goes_on(world: World) -> None:
    looking = asyncio.create_task(world.watching.another_leads(None))
    await asyncio.sleep(0.3)
    assert not looking.done()
    await leads(world.other)
    assert await asyncio.wait_for(looking, 30)


async def test_of_one_that_ended_nothing_becomes_overdue(world: World) -> None:
    now_s, stopping = 0.0, asyncio.Event()
    liveness = Liveness(lambda: now_s)

    async def leads_not(*_: object) -> None: ...

    running = asyncio.create_task(world.watching.run(leads_not, stopping, liveness))
    await asyncio.sleep(0.1)
    now_s = 1e6
    assert "turn of the election" in liveness.overdue()
    stopping.set()
    await running
    assert liveness.overdue() == ""


async def test_after_the_session_of_one_that_crashed_nobody_goes_on(world: World) -> None:
    looking = asyncio.create_task(world.watching.another_leads(None))
    await asyncio.sleep(0.3)
    assert not looking.done()
    await world.other.close()
    assert not await asyncio.wait_for(looking, 30)


async def test_a_leader_there_before_has_to_last_for_longer_than_a_session(world: World) -> None:
    await leads(world.other)
    former = await world.watching.incumbent()
    assert former is not None
    began_s = world.watching.clock.monotonic_s()
    assert await asyncio.wait_for(world.watching.another_leads(former), 30)
    assert world.watching.clock.monotonic_s() - began_s >= LONGEST_S
    looking = asyncio.create_task(world.watching.another_leads(former))
    await world.other.close()
    assert not await asyncio.wait_for(looking, 30)


async def test_a_leader_that_follows_another_one_is_alive(world: World) -> None:
    await leads(world.other)
    former = await world.watching.incumbent()
    await world.other.delete(znodes.LEADER)
    successor = MemoryCoordination(world.service)
    await connected(successor)
    await leads(successor)
    # It would have to wait for longer than the test does to trust the one before.
    watching = replace(world.watching, longest_session_s=1e6)
    assert await asyncio.wait_for(watching.another_leads(former), 30)
    await successor.close()

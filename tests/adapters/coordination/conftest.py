"""One world in memory and one with a real server, for the same tests."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from coordination_worlds import MemoryWorld, World, ZooKeeperWorld, connected

from loadmanager.ports.session import Coordination

Connect = Callable[[], Awaitable[Coordination]]


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    made: World = MemoryWorld()
    if request.param == "zookeeper":
        made = real = ZooKeeperWorld(request.getfixturevalue("zookeeper_address"))
        await real.prepare()
    yield made
    await made.close()


@pytest.fixture
async def session(world: World) -> Coordination:
    return await connected(world.make())


@pytest.fixture
async def other(world: World) -> Coordination:
    return await connected(world.make())

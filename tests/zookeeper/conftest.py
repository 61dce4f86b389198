from collections.abc import AsyncIterator

import pytest
from coordination_worlds import ZooKeeperWorld, connected

from loadmanager.adapters.zookeeper import ZooKeeperCoordination
from loadmanager.adapters.zookeeper.session import KazooSession


@pytest.fixture
async def world(zookeeper_address: str) -> AsyncIterator[ZooKeeperWorld]:
    """Return the shared server with sessions of 3 s: some tests wait for parts of it."""
    made = ZooKeeperWorld(zookeeper_address, timeout_s=3.0)
    await made.prepare()
    yield made
    await made.close()


@pytest.fixture
async def session(world: ZooKeeperWorld) -> ZooKeeperCoordination:
    """Return a connected session."""
    made = world.make()
    await connected(made)
    return made


@pytest.fixture
async def other(world: ZooKeeperWorld) -> ZooKeeperCoordination:
    """Return a second connected session."""
    made = world.make()
    await connected(made)
    return made


@pytest.fixture
def kazoo_session(session: ZooKeeperCoordination) -> KazooSession:
    """Return what bridges ``session`` to kazoo."""
    bridge = session._link
    assert isinstance(bridge, KazooSession)
    return bridge

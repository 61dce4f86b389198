"""Servers of the ensemble that fall behind or lose the others, as their clients meet them."""

import asyncio

import pytest
from coordination_worlds import connected

from loadmanager.ports.coordination import Delete, Disconnected
from tests.testbed.memory import MemoryCoordination, MemoryService
from tests.testbed.memory.server import Server


async def _turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class World:
    """A client on a server of its own, and a writer on the main one."""

    def __init__(self) -> None:
        self.service = MemoryService()
        self.client = MemoryCoordination(self.service)
        self.writer = MemoryCoordination(self.service)
        self.server: Server = self.service.add_server()

    async def begin(self) -> None:
        """Connect both, write /a, and let the client's server fall behind."""
        await connected(self.client)
        await connected(self.writer)
        self.client.connect_to(self.server)
        await _turns()
        await self.writer.create("/a", b"old")
        assert await self._read("/a") == b"old"
        self.server.hold()

    async def _read(self, path: str) -> bytes | None:
        node = await self.client.get(path)
        return node.data if node else None


@pytest.fixture
async def world() -> World:
    world = World()
    await world.begin()
    return world


async def test_a_sync_is_answered_when_the_server_has_caught_up(world: World) -> None:
    await world.writer.set("/a", b"new")
    syncing = asyncio.ensure_future(world.client.sync("/a"))
    reading = asyncio.ensure_future(world._read("/a"))
    await _turns()
    assert not syncing.done()
    assert not reading.done()  # It was asked after the sync.
    world.server.catch_up()
    await syncing
    assert await reading == b"new"


async def test_a_client_sees_what_it_wrote_and_all_that_was_before(world: World) -> None:
    await world.writer.set("/a", b"new")
    writing = asyncio.ensure_future(world.client.create("/b", b"own"))
    await _turns()
    assert "/b" in world.service.dump()
    assert not writing.done()
    world.server.apply_next()
    await _turns()
    assert not writing.done()
    world.server.apply_next()
    await writing
    assert (await world._read("/a"), await world._read("/b")) == (b"new", b"own")


async def test_a_server_that_lost_the_others_answers_until_it_is_written_to(world: World) -> None:
    world.server.catch_up()
    world.server.leave_ensemble()
    await world.writer.set("/a", b"new")
    await world.client.sync("/a")
    assert await world._read("/a") == b"old"
    writing = asyncio.ensure_future(world.client.commit([Delete("/a")]))
    syncing = asyncio.ensure_future(world.client.sync("/"))
    reading = asyncio.ensure_future(world._read("/a"))
    await _turns()
    assert not any(one.done() for one in (writing, syncing, reading))
    world.service.remove_server(world.server)
    world.client.connect_to(world.service.main)
    for asked in (writing, syncing, reading):
        with pytest.raises(Disconnected):
            await asked
    assert await world._read("/a") == b"new"

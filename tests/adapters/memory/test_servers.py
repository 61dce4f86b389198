"""Servers of the ensemble that fall behind or lose the others, as their clients meet them."""

import asyncio

import pytest
from coordination_worlds import connected
from waiting import eventually

from loadmanager.ports.coordination import (
    Create,
    Delete,
    Disconnected,
    Node,
)
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


async def test_a_server_that_is_behind_answers_reads_from_an_older_state(world: World) -> None:
    await world.writer.set("/a", b"new")
    await world.writer.create("/b", b"")
    assert await world._read("/a") == b"old"
    assert await world.client.children("/") == ("a",)
    world.server.apply_next()
    assert await world._read("/a") == b"new"
    assert await world._read("/b") is None


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


async def test_watches_tell_when_the_server_applies_a_change(world: World) -> None:
    told: list[Node | None] = []
    world.client.watch("/a", told.append)
    await eventually(lambda: told)
    await world.writer.set("/a", b"new")
    await _turns()
    assert [node and node.data for node in told] == [b"old"]
    world.server.catch_up()
    await eventually(lambda: len(told) == 2)
    assert [node and node.data for node in told] == [b"old", b"new"]


async def test_who_lost_a_reply_may_come_to_a_server_that_does_not_know_the_write(
    world: World,
) -> None:
    world.client.lose_next_reply()
    with pytest.raises(Disconnected):
        await world.client.commit([Create("/b", b"")])
    await _turns()
    assert "/b" in world.service.dump()
    assert await world._read("/b") is None
    syncing = asyncio.ensure_future(world.client.sync("/b"))
    await _turns()
    world.server.catch_up()
    await syncing
    assert await world._read("/b") == b""


async def test_a_server_that_lost_the_others_answers_reads_and_syncs_until_it_is_written_to(
    world: World,
) -> None:
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

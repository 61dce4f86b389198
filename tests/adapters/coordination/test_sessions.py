import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from coordination_worlds import SESSION_TIMEOUT_S, World, connected
from waiting import eventually

from loadmanager.ports.coordination import (
    Connection,
    CoordinationError,
    Create,
    Disconnected,
    NodeExists,
    SessionLost,
    SessionState,
)
from loadmanager.ports.session import Coordination

REQUESTS: dict[str, Callable[[Coordination], Awaitable[Any]]] = {
    "get": lambda it: it.get("/a"),
    "children": lambda it: it.children("/a"),
    "sync": lambda it: it.sync("/a"),
    "heartbeat": lambda it: it.heartbeat(),
    "create": lambda it: it.create("/late", b""),
    "create ephemeral": lambda it: it.create("/late", b"", ephemeral=True),
    "set": lambda it: it.set("/a", b"late"),
    "delete": lambda it: it.delete("/a"),
    "commit": lambda it: it.commit([Create("/late", b"")]),
    "empty commit": lambda it: it.commit([]),
    "ensure": lambda it: it.ensure("/late"),
}


async def suspend(world: World, session: Coordination) -> None:
    world.cut(session)
    await eventually(lambda: session.session.connection is Connection.SUSPENDED)


async def test_a_session_has_an_id_of_its_own_and_the_granted_timeout_once_it_is_connected(
    world: World, other: Coordination
) -> None:
    session = world.make()
    assert session.session == SessionState(Connection.SUSPENDED, 0, SESSION_TIMEOUT_S)
    with pytest.raises(Disconnected, match="nothing was sent"):
        await session.get("/a")
    told: list[SessionState] = []
    session.on_session(told.append)
    await connected(session)
    state = session.session
    assert told == [state]
    assert state.session_id not in {0, other.session.session_id}
    assert state.timeout_s == SESSION_TIMEOUT_S
    with pytest.raises(CoordinationError, match="started already"):
        await session.start()


async def test_what_is_asked_while_suspended_is_refused_at_once_and_lost(
    world: World, session: Coordination
) -> None:
    await session.create("/a", b"before")
    await suspend(world, session)
    async with asyncio.timeout(SESSION_TIMEOUT_S / 2):
        for ask in REQUESTS.values():
            with pytest.raises(Disconnected, match="nothing was sent"):
                await ask(session)
    world.mend(session)
    await eventually(lambda: session.session.connection is Connection.CONNECTED)
    await session.sync("/")
    node = await session.get("/a")
    assert node is not None
    assert node.data == b"before"
    assert await session.get("/late") is None


async def test_a_reconnected_session_keeps_its_id_and_its_locks(
    world: World, session: Coordination, other: Coordination
) -> None:
    stat = await session.create("/lock", b"", ephemeral=True)
    before = session.session
    told: list[SessionState] = []
    session.on_session(told.append)
    await suspend(world, session)
    world.mend(session)
    await eventually(lambda: session.session == before)
    suspended = SessionState(Connection.SUSPENDED, before.session_id, before.timeout_s)
    assert told == [suspended, before]
    node = await other.get("/lock")
    assert node is not None
    assert node.stat == stat


async def test_an_expired_session_is_lost_and_followed_by_a_new_one_without_the_locks(
    world: World, session: Coordination, other: Coordination
) -> None:
    await session.create("/lock", b"", ephemeral=True)
    before = session.session
    told: list[SessionState] = []
    session.on_session(told.append)
    await world.expire(session)
    await eventually(lambda: len(told) == 3)
    states = [state.connection for state in told]
    assert states == [Connection.SUSPENDED, Connection.LOST, Connection.CONNECTED]
    assert [state.session_id == before.session_id for state in told] == [True, True, False]
    assert await other.get("/lock") is None
    await session.create("/lock", b"", ephemeral=True)


async def test_closing_ends_the_session_and_its_locks_now(
    session: Coordination, other: Coordination
) -> None:
    await session.create("/lock", b"", ephemeral=True)
    told: list[SessionState] = []
    session.on_session(told.append)
    await session.close()
    await session.close()
    await other.sync("/lock")
    assert await other.get("/lock") is None
    assert [state.connection for state in told] == [Connection.LOST]
    for ask in REQUESTS.values():
        with pytest.raises(SessionLost):
            await ask(session)


async def test_closing_early_or_while_cut_off_returns(world: World, session: Coordination) -> None:
    unstarted = world.make()
    await unstarted.close()
    assert unstarted.session.connection is Connection.LOST
    await suspend(world, session)
    async with asyncio.timeout(30):
        await session.close()


async def test_a_failing_session_listener_is_reported_and_the_others_are_told_unless_closed(
    world: World, session: Coordination
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail(_state: SessionState) -> None:
        raise ValueError("of this test")

    told: list[SessionState] = []
    silent: list[SessionState] = []
    watch = session.on_session(silent.append)
    session.on_session(fail)
    session.on_session(told.append)
    watch.close()
    watch.close()
    await suspend(world, session)
    assert (len(told), silent) == (1, [])
    assert [str(context["exception"]) for context in reported] == ["of this test"]


async def test_a_locks_lost_reply(world: World, session: Coordination, other: Coordination) -> None:
    await session.ensure("/locks")
    world.lose_next_reply(session)
    stat = await session.create("/locks/a", b"me", ephemeral=True)
    assert stat.ephemeral_owner == session.session.session_id
    node = await other.get("/locks/a")
    assert node is not None
    assert node.stat == stat


async def test_a_lost_reply_to_a_lock_that_another_holds_is_resolved(
    world: World, session: Coordination, other: Coordination
) -> None:
    await other.create("/lock", b"me", ephemeral=True)
    world.lose_next_reply(session)
    with pytest.raises(NodeExists, match=f"session {other.session.session_id:#x}"):
        await session.create("/lock", b"me", ephemeral=True)


async def test_a_lock_that_was_lost_is_not_taken_later(world: World, session: Coordination) -> None:
    world.lose_next_write(session)
    with pytest.raises(Disconnected, match="before it was created"):
        await session.create("/lock", b"me", ephemeral=True)
    assert await session.get("/lock") is None


async def test_a_node_with_a_lost_reply_is_nobodys(world: World, session: Coordination) -> None:
    world.lose_next_reply(session)
    with pytest.raises(Disconnected, match="who created it"):
        await session.create("/a", b"x")
    assert await session.get("/a") is not None


async def test_a_lock_whose_session_expires_before_the_reply_is_lost(
    world: World, session: Coordination, other: Coordination
) -> None:
    world.cut_at_next_reply(session)
    creation = asyncio.create_task(session.create("/lock", b"me", ephemeral=True))
    await eventually(lambda: session.session.connection is Connection.SUSPENDED)
    assert not creation.done()
    assert await other.get("/lock") is not None
    await world.expire(session)
    with pytest.raises(SessionLost):
        await creation
    assert await other.get("/lock") is None


@pytest.mark.parametrize("applied", [True, False])
async def test_other_writes_without_a_reply_are_left_to_the_caller(
    world: World, session: Coordination, applied: bool
) -> None:
    await session.create("/a", b"0")
    lose = world.lose_next_reply if applied else world.lose_next_write
    for write in (
        lambda: session.set("/a", b"1"),
        lambda: session.commit([Create("/b", b"")]),
        lambda: session.delete("/a"),
    ):
        before = (await session.get("/a"), await session.get("/b"))
        lose(session)
        with pytest.raises(Disconnected):
            await write()
        await eventually(lambda: session.session.connection is Connection.CONNECTED)
        await session.sync("/")
        after = (await session.get("/a"), await session.get("/b"))
        assert (after != before) is applied


async def test_many_requests_at_once_are_answered_in_full(session: Coordination) -> None:
    await asyncio.gather(*(session.create(f"/many-{i}", b"") for i in range(500)))
    assert len(await session.children("/")) == 500


async def test_a_cancelled_request_leaves_the_session_well(session: Coordination) -> None:
    for i in range(300):
        task = asyncio.create_task(session.create(f"/cancelled-{i}", b""))
        await asyncio.sleep(0)
        task.cancel()
    await session.heartbeat()
    await session.create("/after", b"")

import asyncio
import time

import pytest
from coordination_worlds import ZooKeeperWorld, connected
from kazoo.protocol.states import KeeperState
from waiting import eventually, own_time_s

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.adapters.zookeeper.kazoo_overrides import ClientEvent, GatedClient, Resumption
from loadmanager.adapters.zookeeper.session import KazooSession
from loadmanager.ports.coordination import Connection, Disconnected, SessionState
from loadmanager.ports.session import Coordination

pytestmark = pytest.mark.zookeeper


def is_connected(session: Coordination) -> bool:
    return session.session.connection is Connection.CONNECTED


def client_of(kazoo_session: KazooSession) -> GatedClient:
    client = kazoo_session._client
    assert client is not None
    return client


def block_until_reconnected(client: GatedClient) -> None:
    """Break the connection and let kazoo make another, while the loop learns of nothing."""
    before = client._generation
    client.drop()
    deadline_s = time.monotonic() + 60
    while client._generation == before or not client._open:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


async def test_a_request_decided_on_a_former_connection_is_not_sent_on_the_next(
    zookeeper_address: str, kazoo_session: KazooSession, session: ZooKeeperCoordination
) -> None:
    """Kazoo would send it: its connection is open again. The session may be another one."""
    await session.create("/a", b"before")
    client = client_of(kazoo_session)
    client.set_hosts(zookeeper_address)  # the proxy runs on this loop, which is blocked
    block_until_reconnected(client)
    assert is_connected(session), "the loop knows nothing yet"
    assert client.connected
    with pytest.raises(Disconnected):
        await session.set("/a", b"late")
    await eventually(lambda: is_connected(session))
    node = await session.get("/a")
    assert node is not None
    assert (node.data, node.stat.version) == (b"before", 0)


async def test_a_request_that_waited_for_its_turn_is_not_sent_on_the_next_connection(
    zookeeper_address: str,
    world: ZooKeeperWorld,
    session: ZooKeeperCoordination,
    kazoo_session: KazooSession,
) -> None:
    await session.create("/a", b"")
    world.proxy(session).silent = True
    requests = [asyncio.create_task(session.set("/a", b"late")) for _ in range(300)]
    await asyncio.sleep(0)
    client = client_of(kazoo_session)
    client.set_hosts(zookeeper_address)  # the proxy runs on this loop, which is blocked
    block_until_reconnected(client)
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert {type(result) for result in results} == {Disconnected}
    assert is_connected(session)
    node = await session.get("/a")
    assert node is not None
    assert node.stat.version == 0


async def test_a_thousand_requests_to_a_silent_server_do_not_block_the_loop(
    world: ZooKeeperWorld, session: ZooKeeperCoordination
) -> None:
    """Kazoo wakes its thread through a socket that fills up after some 270 of them."""
    await session.create("/a", b"")
    world.proxy(session).silent = True
    content = b"x" * 100_000  # so that kazoo's thread itself gets stuck in writing
    requests = [asyncio.create_task(session.set("/a", content)) for _ in range(1000)]
    longest_s, last_s = 0.0, own_time_s()
    while not all(request.done() for request in requests):
        await asyncio.sleep(0.01)
        now_s = own_time_s()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    assert longest_s < 1.0  # a thread stuck in writing would wait for its own end, a dead link
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert {type(result) for result in results} == {Disconnected}


async def test_lost_shows_only_after_the_reconnect(
    world: ZooKeeperWorld, session: ZooKeeperCoordination, other: ZooKeeperCoordination
) -> None:
    """Who must stop before its lock goes to another cannot wait for LOST."""
    await session.create("/lock", b"", ephemeral=True)
    lost_by = session.session.session_id
    told: list[SessionState] = []
    session.on_session(told.append)
    world.cut(session)
    gone = asyncio.Event()
    other.watch("/lock", lambda node: gone.set() if node is None else None)
    await asyncio.wait_for(gone.wait(), 60)
    assert [state.connection for state in told] == [Connection.SUSPENDED]
    world.mend(session)
    await eventually(lambda: is_connected(session))
    assert [state.connection for state in told[1:]] == [Connection.LOST, Connection.CONNECTED]
    assert [state.session_id == lost_by for state in told[1:]] == [True, False]


async def test_a_session_that_a_server_silently_replaced_is_lost(
    world: ZooKeeperWorld, session: ZooKeeperCoordination
) -> None:
    before = session.session.session_id
    told: list[SessionState] = []
    session.on_session(told.append)
    world.proxy(session).forget_session = True
    world.proxy(session).drop()
    await eventually(lambda: len(told) == 3)
    states = [(state.connection, state.session_id == before) for state in told]
    assert states == [
        (Connection.SUSPENDED, True),
        (Connection.LOST, True),
        (Connection.CONNECTED, False),
    ]


@pytest.mark.parametrize("busy", [True, False])
async def test_a_dead_link_shows_within_half_the_session_timeout(
    world: ZooKeeperWorld, session: ZooKeeperCoordination, busy: bool
) -> None:
    """Kazoo needs two thirds, and for ever while requests are made."""
    await session.create("/a", b"")
    world.proxy(session).silent = True
    since_s = own_time_s()

    async def keep_busy() -> None:
        while True:
            requests.append(asyncio.create_task(session.set("/a", b"")))
            await asyncio.sleep(0.05)

    requests: list[asyncio.Task[object]] = []
    chatter = asyncio.create_task(keep_busy() if busy else asyncio.sleep(60))
    await eventually(lambda: not is_connected(session))
    took_s = own_time_s() - since_s
    chatter.cancel()
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert took_s < session.session.timeout_s * 0.6
    assert {type(result) for result in results} == ({Disconnected} if busy else set())


async def test_an_idle_session_stays_connected(session: ZooKeeperCoordination) -> None:
    told: list[SessionState] = []
    session.on_session(told.append)
    await asyncio.sleep(session.session.timeout_s * 1.2)
    assert told == []


async def test_a_blocked_loop_costs_no_session(zookeeper_address: str) -> None:
    """Callbacks do not run on kazoo's threads, so a slow one does not stop its pings."""
    options = ZooKeeperOptions(
        hosts=zookeeper_address, chroot="/test-blocked-loop", session_timeout_s=2.0
    )
    session = await connected(ZooKeeperCoordination(options))
    told: list[SessionState] = []
    session.on_session(told.append)
    blocked: list[object] = []

    def block(node: object) -> None:
        if node is not None:
            time.sleep(3.0)
            blocked.append(node)

    session.watch("/a", block)
    await session.create("/a", b"")
    await eventually(lambda: blocked)
    await session.heartbeat()
    assert told == []
    await session.close()


async def test_watches_that_come_and_go_leave_one_trigger_behind(
    session: ZooKeeperCoordination, kazoo_session: KazooSession
) -> None:
    """Kazoo cannot take a watch back, and keeps every callable it was given."""
    for _ in range(20):
        told: list[object] = []
        watch = session.watch("/a", told.append)
        await eventually(lambda told=told: told)  # type: ignore[misc]  # mypy cannot type a default
        watch.close()
    client = client_of(kazoo_session)
    assert [len(watchers) for watchers in client._data_watchers.values()] == [1]


async def test_an_answer_that_cannot_be_read_costs_the_connection_and_not_the_session(
    session: ZooKeeperCoordination, kazoo_session: KazooSession
) -> None:
    await session.create("/lock", b"", ephemeral=True)
    before, told = session.session.session_id, list[SessionState]()
    session.on_session(told.append)
    client_of(kazoo_session)._connection._read_frame(b"\0\0")
    await eventually(lambda: len(told) == 2)
    assert [state.connection for state in told] == [Connection.SUSPENDED, Connection.CONNECTED]
    assert session.session.session_id == before
    assert await session.get("/lock") is not None


@pytest.mark.parametrize("dropped", [False, True])
async def test_a_client_that_was_never_admitted_ends_its_session_by_itself(
    zookeeper_address: str, dropped: bool
) -> None:
    """As one does whose successor was begun before the loop was notified of its connection."""
    told: list[ClientEvent] = []
    options = ZooKeeperOptions(hosts=zookeeper_address)
    client = GatedClient(options, asyncio.get_running_loop(), told.append)
    client.start_async()
    await eventually(lambda: told)
    if dropped:
        client.drop()
        await eventually(lambda: len(told) == 3)
    began_s = time.monotonic()
    await asyncio.to_thread(client.end)
    assert time.monotonic() - began_s < options.session_timeout_s / 4
    await eventually(lambda: told[-1].state == KeeperState.CLOSED)
    states = [event.state for event in told]
    connected, lost = KeeperState.CONNECTED, KeeperState.CONNECTING
    again = [lost, connected] if dropped else []
    assert states == [connected, *again, KeeperState.CLOSED]
    # The server confirmed the end: nobody can resume the session.
    resumed: list[ClientEvent] = []
    resumption = Resumption(told[0].session_id, told[0].session_password, 0)
    late = GatedClient(options, asyncio.get_running_loop(), resumed.append, resumption)
    late.start_async()
    await eventually(lambda: resumed)
    await asyncio.to_thread(late.end)
    assert resumed[0].state == KeeperState.EXPIRED_SESSION

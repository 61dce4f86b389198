import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from coordination_worlds import connected
from kazoo.client import KeeperState
from waiting import eventually, own_time_s
from zookeeper_proxy import ZooKeeperProxy

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeper
from loadmanager.adapters.zookeeper.session import KazooSession
from loadmanager.demo.cluster import free_ports
from loadmanager.ports.coordination import Connection, Disconnected, SessionState

pytestmark = pytest.mark.zookeeper


def session_with(hosts: str, *, timeout_s: float = 3.0) -> ZooKeeperCoordination:
    usual = ZooKeeperOptions(hosts=hosts, reconnect_delay_max_s=0.2)
    # Shorter than a sidecar may be configured with.
    return ZooKeeperCoordination(usual.model_copy(update={"session_timeout_s": timeout_s}))


@asynccontextmanager
async def running(server: EmbeddedZooKeeper) -> AsyncIterator[None]:
    await asyncio.to_thread(server.start)
    try:
        yield
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_session_survives_a_restart_of_its_server(tmp_path: Path) -> None:
    # Not among the ports of outgoing connections: a client that tries to connect could take it.
    (port,) = free_ports(1)
    server = EmbeddedZooKeeper(tick_ms=500, data_dir=tmp_path, port=port)
    async with running(server):
        session = await connected(session_with(server.address, timeout_s=10))
        before = session.session
        stat = await session.create("/lock", b"", ephemeral=True)
    await eventually(lambda: session.session.connection is Connection.SUSPENDED)
    async with running(EmbeddedZooKeeper(tick_ms=500, data_dir=tmp_path, port=port)):
        await eventually(lambda: session.session == before)
        node = await session.get("/lock")
        assert node is not None
        assert node.stat == stat
        await session.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedZooKeeper]:
    """Return a server that no other module minds being frozen."""
    with EmbeddedZooKeeper(tick_ms=500) as server:
        yield server


@contextmanager
def frozen(server: EmbeddedZooKeeper) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    # Its threads stop one after the other, and until then they answer.
    tasks = Path(f"/proc/{server.pid}/task")
    while any(" T " not in (task / "stat").read_text() for task in tasks.glob("*")):
        time.sleep(0.001)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_a_frozen_server_shows_in_time(own_server: EmbeddedZooKeeper) -> None:
    session = await connected(session_with(own_server.address, timeout_s=8.0))
    before = session.session
    with frozen(own_server):
        since_s = own_time_s()
        with pytest.raises(Disconnected):
            await session.heartbeat()
        assert session.session.connection is Connection.SUSPENDED
        assert own_time_s() - since_s < before.timeout_s * 2 / 3
    await eventually(lambda: session.session == before)
    await session.heartbeat()
    await session.close()


async def test_closing_a_session_takes_a_bounded_time(own_server: EmbeddedZooKeeper) -> None:
    options = ZooKeeperOptions(hosts=own_server.address, session_timeout_s=30, close_timeout_s=0.5)
    session = await connected(ZooKeeperCoordination(options))
    with frozen(own_server):
        async with asyncio.timeout(20):
            await session.close()


TIMEOUT_S = 4.0
ATTEMPTS = 13
WITHIN_S = 18.0
"""Pauses that double up to 3 s need 27 s for so many; up to a twentieth of the timeout, 3 s."""


@asynccontextmanager
async def closing_server() -> AsyncIterator[tuple[str, list[float]]]:
    """Yield the address of a server that closes each connection, and when they came."""
    came_s: list[float] = []

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came_s.append(time.monotonic())
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        yield f"{host}:{port}", came_s


async def test_a_short_session_waits_for_short_pauses_that_differ() -> None:
    """So sidecars do not come together."""
    async with closing_server() as (address, came_s):
        session = ZooKeeperCoordination(
            ZooKeeperOptions(hosts=address, session_timeout_s=TIMEOUT_S, close_timeout_s=0.5)
        )
        await session.start()
        await eventually(lambda: len(came_s) >= ATTEMPTS, within_s=60)
        await session.close()
    assert came_s[ATTEMPTS - 1] - came_s[0] < WITHIN_S
    pauses_s = [later - earlier for earlier, later in pairwise(came_s)]
    assert max(pauses_s[3:]) > 1.1 * min(pauses_s[3:])


async def test_a_session_outlives_outages_that_leave_it_little_time(zookeeper_address: str) -> None:
    async with ZooKeeperProxy(zookeeper_address) as proxy:
        session = await connected(
            ZooKeeperCoordination(
                ZooKeeperOptions(hosts=proxy.address, session_timeout_s=TIMEOUT_S)
            )
        )
        before = session.session.session_id
        for _ in range(3):
            proxy.cut()
            await eventually(lambda: session.session.connection is Connection.SUSPENDED)
            await asyncio.sleep(0.6 * TIMEOUT_S)
            proxy.mend()
            await eventually(lambda: session.session.connection is Connection.CONNECTED)
            assert session.session.session_id == before
        await session.close()


async def test_a_client_that_gives_up_as_its_session_closes_leaves_nothing_open(
    own_server: EmbeddedZooKeeper,
) -> None:
    states: list[SessionState] = []
    session = KazooSession(ZooKeeperOptions(hosts=own_server.address))
    session.open(states.append)
    await eventually(lambda: states and states[-1].connection is Connection.CONNECTED)
    client = session._client
    assert client is not None
    asyncio.get_running_loop().call_soon(client._report_state, KeeperState.CLOSED)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await session.close()
    assert session._client is None
    assert client._connection.connection_closed.is_set()

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from coordination_worlds import connected
from waiting import eventually
from zookeeper_proxy import ZooKeeperProxy

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.ports.coordination import Connection

pytestmark = pytest.mark.zookeeper
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

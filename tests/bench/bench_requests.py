"""The CPU time that this process spends on a read of ZooKeeper, with twenty sessions in it."""

import asyncio
import time

import pytest
from figures import emit
from waiting import eventually

from loadmanager.adapters.zookeeper import ZooKeeperOptions
from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeper
from loadmanager.adapters.zookeeper.session import KazooSession
from loadmanager.ports.coordination import Connection, SessionState

SESSIONS = 20
READS = 300


@pytest.mark.bench
@pytest.mark.parametrize("pause_s", [0.0, 0.02])
async def test_a_read_takes_little_cpu(pause_s: float) -> None:
    states: dict[KazooSession, SessionState] = {}
    async with EmbeddedZooKeeper(tick_ms=2000) as server:
        sessions = [KazooSession(ZooKeeperOptions(hosts=server.address)) for _ in range(SESSIONS)]
        for one in sessions:
            one.open(lambda state, one=one: states.update({one: state}))  # type: ignore[misc]  # mypy cannot type a default
        await eventually(
            lambda: (
                [state.connection for state in states.values()] == [Connection.CONNECTED] * SESSIONS
            )
        )

        async def read(session: KazooSession) -> None:
            for _ in range(READS):
                await session.ask("/", lambda client: client.get_async("/"))
                await asyncio.sleep(pause_s)

        began_s = time.process_time()
        await asyncio.gather(*map(read, sessions))
        used_s = time.process_time() - began_s
        for one in sessions:
            await one.close()
    cpu_us = 1e6 * used_s / SESSIONS / READS
    emit("requests", figure="CPU of a read", sessions=SESSIONS, pause_s=pause_s, cpu_us=cpu_us)
    assert cpu_us < 300  # each took 380 and more through kazoo's threads

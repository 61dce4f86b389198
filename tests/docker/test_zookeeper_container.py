"""The ZooKeeper adapter against a server of its own, which is restarted and cut off."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from testcontainers.core.container import DockerContainer

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.demo.children import free_ports
from loadmanager.ports.coordination import Connection, Node, SessionState

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

CLIENT_PORT = 2181
SESSION_TIMEOUT_S = 4.0
LOCK = "/locks/bundle"


class Server:
    def __init__(self, image: str) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        # Sessions are from 2 to 20 ticks long: here from 1 s to 10 s.
        self._container = DockerContainer(image, env={"ZOO_TICK_TIME": "500"})
        # Its own way of publishing a port opens it on every address of the host.
        published: Any = self._container.ports
        published[CLIENT_PORT] = ("127.0.0.1", port)
        self._container.start()

    def restart(self) -> None:
        self._container.get_wrapped_container().restart(timeout=5)

    def pull_cable(self) -> None:
        self._network().disconnect(self._container.get_wrapped_container())

    def plug_cable(self) -> None:
        self._network().connect(self._container.get_wrapped_container())

    def remove(self) -> None:
        self._container.stop()

    def _network(self) -> Any:
        return self._container.get_docker_client().client.networks.get("bridge")


@pytest.fixture
def server(zookeeper_image: str) -> Iterator[Server]:
    server = Server(zookeeper_image)
    yield server
    server.remove()


@pytest.fixture
async def session(server: Server) -> AsyncIterator[ZooKeeperCoordination]:
    options = ZooKeeperOptions(
        hosts=server.address, session_timeout_s=SESSION_TIMEOUT_S, reconnect_delay_max_s=0.5
    )
    session = ZooKeeperCoordination(options)
    await session.start()
    await until(session, lambda state: state.connection is Connection.CONNECTED)
    yield session
    await session.close()


async def until(
    session: ZooKeeperCoordination, reached: Callable[[SessionState], bool]
) -> SessionState:
    arrived = asyncio.Event()

    def look(state: SessionState) -> None:
        if reached(state):
            arrived.set()

    watch = session.on_session(look)
    look(session.session)
    async with asyncio.timeout(60):
        await arrived.wait()
    watch.close()
    return session.session


def test_adapter_keeps_the_whole_contract_on_a_server_of_another_make(server: Server) -> None:
    contract = Path(__file__).parents[1] / "adapters" / "coordination"
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "zookeeper", "-p", "no:cacheprovider", contract],
        env={**os.environ, "LOADMANAGER_TEST_ZOOKEEPER": server.address},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout


async def test_session_and_lock_survive_a_restart_of_the_server(
    server: Server, session: ZooKeeperCoordination
) -> None:
    lock = await session.create(LOCK, b"mine", ephemeral=True)
    before = session.session
    suspended = asyncio.ensure_future(
        until(session, lambda state: state.connection is not Connection.CONNECTED)
    )
    await asyncio.to_thread(server.restart)
    await suspended
    after = await until(session, lambda state: state.connection is Connection.CONNECTED)
    assert after.session_id == before.session_id
    assert await session.get(LOCK) == Node(b"mine", lock)


async def test_session_that_expired_behind_a_cut_is_lost_with_its_locks_and_begun_anew(
    server: Server, session: ZooKeeperCoordination
) -> None:
    await session.create(LOCK, b"mine", ephemeral=True)
    await session.create("/kept", b"old")
    told: asyncio.Queue[Node | None] = asyncio.Queue()
    session.watch(LOCK, told.put_nowait)
    before = session.session
    seen: list[Connection] = []
    session.on_session(lambda state: seen.append(state.connection))
    await asyncio.to_thread(server.pull_cable)
    # The server alone decides when: nothing that could be waited for tells of it here.
    await asyncio.sleep(2 * SESSION_TIMEOUT_S)
    assert set(seen) == {Connection.SUSPENDED}
    await asyncio.to_thread(server.plug_cable)
    after = await until(session, lambda state: state.session_id != before.session_id)
    assert seen == [Connection.SUSPENDED, Connection.LOST, Connection.CONNECTED]
    assert after.connection is Connection.CONNECTED
    assert await session.get(LOCK) is None
    kept = await session.get("/kept")
    assert kept is not None
    assert kept.data == b"old"
    async with asyncio.timeout(60):
        while await told.get() is not None:
            pass

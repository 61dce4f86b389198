"""The same service twice, with the same ways to break it: in memory and real."""

import asyncio
import uuid
from contextlib import AsyncExitStack

from kazoo.client import KazooClient
from waiting import eventually
from zookeeper_proxy import Loss, ZooKeeperProxy

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.ports.coordination import Connection
from loadmanager.ports.session import Coordination
from tests.testbed.memory import MemoryCoordination, MemoryService

SESSION_TIMEOUT_S = 6.0
"""Long enough that nothing expires by itself on a busy machine."""


async def connected(session: Coordination) -> Coordination:
    await session.start()
    await eventually(lambda: session.session.connection is Connection.CONNECTED)
    return session


class MemoryWorld:
    """Sessions whose connections are cut and mended; writes or replies that are lost break them."""

    def __init__(self) -> None:
        self.service = MemoryService()
        self._sessions: list[MemoryCoordination] = []

    def make(self, *, chroot: str = "") -> MemoryCoordination:
        session = MemoryCoordination(self.service, timeout_s=SESSION_TIMEOUT_S, chroot=chroot)
        self._sessions.append(session)
        return session

    def cut(self, session: Coordination) -> None:
        _memory(session).suspend()

    def mend(self, session: Coordination) -> None:
        _memory(session).reconnect()

    async def expire(self, session: Coordination) -> None:
        """Make the service expire the session; its client is let back afterwards."""
        _memory(session).expire()
        _memory(session).reconnect()

    def lose_next_write(self, session: Coordination) -> None:
        _memory(session).lose_next_request()

    def lose_next_reply(self, session: Coordination) -> None:
        _memory(session).lose_next_reply()

    def cut_at_next_reply(self, session: Coordination) -> None:
        """Break the connection as `lose_next_reply`, and keep it broken as `cut`."""
        memory = _memory(session)
        memory.lose_next_reply()
        suspended = Connection.SUSPENDED
        memory.on_session(lambda to: memory.suspend() if to.connection is suspended else None)

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()


def _memory(session: Coordination) -> MemoryCoordination:
    assert isinstance(session, MemoryCoordination)
    return session


class ZooKeeperWorld:
    """A real server; each session has its own proxy, and all live below one chroot."""

    def __init__(self, address: str, *, timeout_s: float = SESSION_TIMEOUT_S) -> None:
        self.address = address
        self.root = f"/test-{uuid.uuid4().hex[:12]}"
        self._timeout_s = timeout_s
        self._stack = AsyncExitStack()
        self._spare: list[ZooKeeperProxy] = []
        self._sessions: dict[ZooKeeperCoordination, ZooKeeperProxy] = {}

    async def prepare(self) -> None:
        for _ in range(3):
            self._spare.append(await self._stack.enter_async_context(ZooKeeperProxy(self.address)))

    def make(self, *, chroot: str = "") -> ZooKeeperCoordination:
        proxy = self._spare.pop()
        options = ZooKeeperOptions(
            hosts=proxy.address,
            chroot=self.root + chroot,
            session_timeout_s=self._timeout_s,
            reconnect_delay_max_s=0.1,
        )
        session = ZooKeeperCoordination(options)
        self._sessions[session] = proxy
        return session

    def proxy(self, session: Coordination) -> ZooKeeperProxy:
        assert isinstance(session, ZooKeeperCoordination)
        return self._sessions[session]

    def cut(self, session: Coordination) -> None:
        self.proxy(session).cut()

    def mend(self, session: Coordination) -> None:
        self.proxy(session).mend()

    async def expire(self, session: Coordination) -> None:
        assert isinstance(session, ZooKeeperCoordination)
        resumption = session._link._resumption  # type: ignore[attr-defined]  # the link is a KazooSession
        self.cut(session)
        await eventually(lambda: session.session.connection is not Connection.CONNECTED)
        await asyncio.to_thread(
            _end_session, self.address, (resumption.session_id, resumption.session_password)
        )
        self.mend(session)

    def lose_next_write(self, session: Coordination) -> None:
        self.proxy(session).loss = Loss.REQUEST

    def lose_next_reply(self, session: Coordination) -> None:
        self.proxy(session).loss = Loss.REPLY

    def cut_at_next_reply(self, session: Coordination) -> None:
        self.proxy(session).loss = Loss.REPLY_FOR_GOOD

    async def close(self) -> None:
        for session in self._sessions:
            self.mend(session)
            await session.close()
        await self._stack.aclose()


World = MemoryWorld | ZooKeeperWorld


def _end_session(address: str, client_id: tuple[int, bytes]) -> None:
    """Take over a session and close it, which is what an expiry looks like to its owner."""
    thief = KazooClient(address, client_id=client_id)
    thief.start()
    assert thief.client_id[0] == client_id[0]
    thief.stop()
    thief.close()

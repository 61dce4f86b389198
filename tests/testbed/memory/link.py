"""The way from one session to the in-process service, with hooks that break it."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from loadmanager.ports.coordination import (
    ArmedTrigger,
    Check,
    Connection,
    Create,
    Delete,
    Disconnected,
    Node,
    Operation,
    SessionLost,
    SessionState,
    SetData,
    Stat,
    Trigger,
)
from tests.testbed.memory.server import Server
from tests.testbed.memory.service import MemoryService

Answer = TypeVar("Answer")


class LossPlace(StrEnum):
    REQUEST = "request"
    REPLY = "reply"


@dataclass(frozen=True, slots=True)
class _Event:
    link: "MemoryLink"
    trigger: Trigger

    def __call__(self) -> None:
        self.link.deliver(self.trigger)


class MemoryLink:
    """A `Link` to a `MemoryService`.

    A request takes two turns of the loop: one on its way there, one on its way back.
    Whatever breaks the connection in the first leaves it unapplied, in the second
    applied without a reply.

    Args:
        turn: awaited once on each way; a simulation puts its scheduler here. Requests
            of one link must come through in the order they were made in.
        turn_back: what is awaited on the way back, if that is another.
    """

    def __init__(
        self,
        service: MemoryService,
        *,
        timeout_s: float,
        turn: Callable[[], Awaitable[None]],
        turn_back: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._service = service
        self._timeout_s = timeout_s
        self._turn = turn
        self._turn_back = turn_back or turn
        self._changed: Callable[[SessionState], None] = _nobody
        self._state = SessionState(Connection.SUSPENDED, 0, timeout_s)
        self._connection = 0
        self._cut = False
        self._loss: LossPlace | None = None
        self._wished = self.server = service.main
        self._seen_zxid = 0
        self._armed_zxid = 0
        self._armed = True
        self._asked_zxid: float = 0

    # What `Link` asks for.

    def open(self, changed: Callable[[SessionState], None]) -> None:
        """Connect at the next turn of the loop, unless the link is cut."""
        self._changed = changed
        asyncio.get_running_loop().call_soon(self._connect)

    async def close(self) -> None:
        """End the session, unless it cannot be reached: then it expires in its time."""
        self._changed = _nobody
        if not self._cut:
            self._service.close_session(self._state.session_id)
        self.suspend()

    async def get(self, path: str, trigger: Trigger | None = None) -> Node:
        armed = trigger and _Event(self, trigger)
        return await self._ask(lambda session: self._service.get(session, path, armed))

    async def exists(self, path: str, trigger: Trigger | None = None) -> Stat | None:
        armed = trigger and _Event(self, trigger)
        return await self._ask(lambda session: self._service.exists(session, path, armed))

    async def children(self, path: str, trigger: Trigger | None = None) -> tuple[str, ...]:
        armed = trigger and _Event(self, trigger)
        return await self._ask(lambda session: self._service.children(session, path, armed))

    async def rearm(self, triggers: Sequence[ArmedTrigger]) -> None:
        queued = [replace(one, trigger=_Event(self, one.trigger)) for one in triggers]
        since, connection = self._armed_zxid, self._connection
        await self._ask(lambda session: self._service.rearm(session, since, queued))
        self._armed = self._armed or connection == self._connection

    async def sync(self, path: str) -> None:
        """Return when the server has applied what was committed before.

        One that lost the others answers by itself, as a leader of ZooKeeper does.
        """
        del path
        await self._ask(self._service.sync, by_leader=True, writes=False)

    async def heartbeat(self) -> None:
        await self.commit([Check("/", -1)])

    async def create(
        self,
        path: str,
        data: bytes,
        *,
        ephemeral: bool,
        private: bool = False,  # noqa: ARG002 - there are no logins here
    ) -> Stat:
        return await self._write(Create(path, data, ephemeral))

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        return await self._write(SetData(path, data, version))

    async def delete(self, path: str, version: int) -> None:
        deletion = Delete(path, version)
        await self._ask(lambda session: self._service.apply_one(session, deletion), by_leader=True)

    async def commit(self, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        stats = await self._ask(
            lambda session: self._service.apply(session, operations), by_leader=True
        )
        pairs = zip(operations, stats, strict=True)
        return tuple(stat if isinstance(done, SetData) else None for done, stat in pairs)

    # What a test asks for.

    def lose_next(self, loss: LossPlace) -> None:
        self._loss = loss

    def suspend(self) -> None:
        self._cut = True
        self.drop()

    def connect_to(self, server: Server) -> None:
        """Break the connection, and connect to ``server`` from now on.

        That is for as long as it is there and has what this client has seen.
        """
        self._wished = server
        self._break()

    def reconnect(self) -> None:
        self._cut = False
        self._connect()

    def deliver(self, trigger: Trigger) -> None:
        """Call a trigger in its turn on the loop, as a packet would come on the wire."""
        asyncio.get_running_loop().call_soon(trigger)

    async def _write(self, operation: Create | SetData) -> Stat:
        stat = await self._ask(
            lambda session: self._service.apply_one(session, operation), by_leader=True
        )
        if stat is None:
            raise AssertionError(f"{operation} left no stat")
        return stat

    async def _ask(
        self, request: Callable[[int], Answer], *, by_leader: bool = False, writes: bool = True
    ) -> Answer:
        """Carry one request there and its answer back.

        One that goes through the leader is answered when the session's own server has
        applied it, and so is everything that was asked after it.
        """
        self._require_connected()
        connection, loss, self._loss = self._connection, self._loss, None
        await self._turn()
        if loss is LossPlace.REQUEST:
            self._break()
        self._require_still(connection)
        server = self.server
        if not server.in_ensemble:
            if by_leader and writes:
                self._asked_zxid = math.inf  # Nothing is answered any more on this connection.
            by_leader = False
        if not by_leader:
            await self._reached(server, self._asked_zxid, connection)
            self._require_still(connection)
        try:
            answer = request(self._state.session_id)
        finally:
            # An error is an answer too, and can be lost like one.
            if by_leader:
                self._asked_zxid = asked_zxid = self._service.zxid
            if loss is LossPlace.REPLY:
                self._break()
            if by_leader:
                await self._reached(server, asked_zxid, connection)
            seen_zxid = server.zxid
            await self._turn_back()
            self._require_still(connection)
            self._seen_zxid = max(self._seen_zxid, seen_zxid)
        return answer

    async def _reached(self, server: Server, zxid: float, connection: int) -> None:
        await server.reached(zxid, lambda: connection == self._connection)

    def _require_connected(self) -> None:
        if self._state.connection is Connection.LOST:
            raise SessionLost(f"session {self._state.session_id:#x} is lost; nothing was sent")
        if self._state.connection is Connection.SUSPENDED:
            raise Disconnected("the link is suspended; nothing was sent")

    def _require_still(self, connection: int) -> None:
        if connection != self._connection:
            raise Disconnected("the connection broke before the reply")

    def _connect(self) -> None:
        if self._cut or self._state.connection is Connection.CONNECTED:
            return
        if self._state.connection is Connection.SUSPENDED and self._state.session_id:
            try:
                self._service.resume_session(self._state.session_id)
            except SessionLost:
                self._become(Connection.LOST, self._state.session_id)
            else:
                self._armed = False
                self._connected(self._state.session_id)
                return
        self._armed = True
        self._connected(self._service.open_session(self._timeout_s, self._expired))

    def _connected(self, session_id: int) -> None:
        self._asked_zxid = 0
        self.server = self._service.attach(session_id, self._wished, self._seen_zxid)
        self._become(Connection.CONNECTED, session_id)

    def _break(self) -> None:
        self.drop()
        asyncio.get_running_loop().call_soon(self._connect)

    def drop(self) -> None:
        self._connection += 1
        self.server.wake()
        if self._state.connection is Connection.CONNECTED:
            if self._armed:
                self._armed_zxid = self._seen_zxid
            self._service.silence(self._state.session_id)
            self._become(Connection.SUSPENDED, self._state.session_id)

    def _expired(self) -> None:
        """React as a client to a closed connection: it gets the reason after reconnecting."""
        if self._state.connection is Connection.CONNECTED:
            self._break()

    def _become(self, connection: Connection, session_id: int) -> None:
        self._state = SessionState(connection, session_id, self._timeout_s)
        self._changed(self._state)


def _nobody(_state: SessionState) -> None:
    """Stand in for the listener before `open` and after `close`."""

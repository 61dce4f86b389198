import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

from loadmanager.ports.coordination import (
    Connection,
    Node,
    NodeWatch,
    Operation,
    SessionState,
    Stat,
    Trigger,
)
from tests.testbed.faults.service import TimedService
from tests.testbed.faults.wires import Gate, Losses, Wire, sent
from tests.testbed.memory import MemoryCoordination
from tests.testbed.memory.link import MemoryLink
from tests.testbed.memory.server import Server

T = TypeVar("T")
LATENCY_S = 0.002
_GIVE_UP_FRACTION = 2 / 3
"""A client closes a connection without a reply after this fraction of its timeout."""


class FaultyLink(MemoryLink):
    """A link whose process may freeze, and whose messages may be delayed or dropped.

    Events and replies share one path and keep their order, as in ZooKeeper, unless ``scatter_s``
    is set: then each event is delayed by a random time up to it, and may overtake other events
    and replies.
    """

    def __init__(self, service: TimedService, gate: Gate, rng: Random, *, timeout_s: float) -> None:
        self._timed = service
        self._process = gate
        self.network = Gate()
        self._rng = rng
        gates = (gate, self.network)
        self.way_there = Wire(gates, rng, LATENCY_S)
        self.way_back = Wire(gates, rng, LATENCY_S)
        self.scatter_s = 0.0
        self._late_events: set[asyncio.Task[None]] = set()
        super().__init__(
            service, timeout_s=timeout_s, turn=self.way_there.turn, turn_back=self.way_back.turn
        )

    def deliver(self, trigger: Trigger) -> None:
        loop = asyncio.get_running_loop()
        if self.scatter_s:
            loop.call_later(self._rng.random() * self.scatter_s, trigger)
        elif self.way_back.lag_s or not self.way_back.empty:
            task = loop.create_task(self._deliver_in_turn(trigger))
            self._late_events.add(task)
            task.add_done_callback(self._late_events.discard)
        else:
            loop.call_soon(trigger)

    @property
    def heard(self) -> bool:
        return self.server.in_ensemble

    def is_on(self, server: Server) -> bool:
        return self.server is server and self._state.connection is Connection.CONNECTED

    def connect_to(self, server: Server) -> None:
        if self.network.shut:
            self._wished = server
        else:
            super().connect_to(server)

    def wake(self) -> None:
        """Reconnect, or notice an expired session, unless the process is frozen."""
        if self._process.shut or (self.is_on(self.server) and not self.heard):
            return
        if self._state.connection is not Connection.CONNECTED:
            self._connect()
        elif self._timed.lives(self._state.session_id):
            self._timed.unmute(self._state.session_id)
        else:
            self._break()

    async def _deliver_in_turn(self, trigger: Trigger) -> None:
        await self.way_back.turn()
        trigger()

    def _connect(self) -> None:
        if not self._process.shut and not self._timed.down:
            super()._connect()

    def _expired(self) -> None:
        if not self._process.shut and not self.network.shut:
            super()._expired()


class ClientSession(MemoryCoordination):
    """A session whose requests, once sent, are not stopped by a cancellation.

    ``before_commit`` is called with the operations of every commit, ``after_read`` with every
    node that is read, and ``after_watch`` with every node that a watch delivers. If
    ``freeze_at_next_commit`` is set, it is called at the next commit, and the process freezes
    while the commit is on its way.
    """

    def __init__(
        self, service: TimedService, gate: Gate, rng: Random, losses: Losses, *, timeout_s: float
    ) -> None:
        self._gate = gate
        self._losses = losses
        self._timed = service
        self._faulty = FaultyLink(service, gate, rng, timeout_s=timeout_s)
        self.delay_commits_s = 0.0
        self.freeze_at_next_commit: Callable[[], None] | None = None
        self.before_commit: Callable[[Sequence[Operation]], None] | None = None
        self.after_read: Callable[[str, Node | None], None] | None = None
        self.after_watch: Callable[[str, Node | None], None] | None = None
        super().__init__(service, timeout_s=timeout_s, link=self._faulty)

    @property
    def swallowing(self) -> bool:
        """Whether all messages are dropped without the client noticing."""
        return self._faulty.network.shut

    @property
    def in_touch(self) -> bool:
        """Whether the process is connected to the ensemble and receives its messages."""
        connected = self.session.connection is Connection.CONNECTED
        heard = self._faulty.heard and not self.swallowing
        return connected and heard and not self._gate.shut

    @property
    def lag_s(self) -> float:
        """The largest delay of messages: the lag of the server plus that of the connection."""
        link = self._faulty
        return self._timed.lag_s_of(link.server) + max(link.way_back.lag_s, link.scatter_s)

    def suspend(self) -> None:
        self._faulty.network.open()
        self._faulty.suspend()

    def reconnect(self) -> None:
        if self.swallowing:
            self._faulty.network.open()
            self._faulty.wake()
        self._faulty.reconnect()

    def is_on(self, server: Server) -> bool:
        return self._faulty.is_on(server)

    def lose_connection(self) -> None:
        """Break the connection; the client reconnects when the service is up."""
        self._faulty.network.open()
        self._faulty.drop()

    def connect_again(self) -> None:
        """Reconnect after the service is up, unless the client is cut off or frozen."""
        if self._opened and not self.swallowing:
            self._faulty.wake()

    def swallow(self) -> None:
        """Drop all messages in both directions until `reconnect`, without an error.

        The client closes the connection after two thirds of its timeout without a reply.
        """
        session = self.session
        if session.connection is Connection.CONNECTED and not self.swallowing:
            self._faulty.network.close()
            self._timed.mute(session.session_id)
            asyncio.get_running_loop().call_later(
                session.timeout_s * _GIVE_UP_FRACTION, self._give_up, session
            )

    def delay_replies(self, lag_s: float) -> None:
        self._faulty.way_back.lag_s = lag_s

    def scatter_events(self, scatter_s: float) -> None:
        """Delay each event by a random time up to ``scatter_s``, out of order, unlike ZooKeeper."""
        self._faulty.scatter_s = scatter_s

    def freeze(self) -> None:
        self._gate.close()
        self._timed.mute(self.session.session_id)

    def thaw(self) -> None:
        frozen = self._gate.shut
        self._gate.open()
        if frozen and not self.swallowing:
            self._faulty.wake()

    async def get(self, path: str) -> Node | None:
        node = await super().get(path)
        if self.after_read is not None:
            self.after_read(path, node)
        return node

    def watch(
        self,
        path: str,
        callback: Callable[[Node | None], None],
        *,
        postpone: Callable[[], bool] | None = None,
    ) -> NodeWatch:
        def on_change(node: Node | None) -> None:
            if self.after_watch is not None:
                self.after_watch(path, node)
            callback(node)

        return super().watch(path, on_change, postpone=postpone)

    async def commit(self, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        if self.before_commit is not None:
            self.before_commit(operations)
        if self.freeze_at_next_commit is not None:
            self.freeze_at_next_commit()
            self.freeze_at_next_commit = None
            self.freeze()
        await asyncio.sleep(self.delay_commits_s)
        return await self._sent(lambda: super(ClientSession, self).commit(operations))

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, private: bool = False
    ) -> Stat:
        return await self._sent(
            lambda: super(ClientSession, self).create(
                path, data, ephemeral=ephemeral, private=private
            )
        )

    async def set(self, path: str, data: bytes, *, version: int = -1) -> Stat:
        return await self._sent(lambda: super(ClientSession, self).set(path, data, version=version))

    async def delete(self, path: str, *, version: int = -1) -> None:
        await self._sent(lambda: super(ClientSession, self).delete(path, version=version))

    async def _sent(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def send() -> T:
            if self._losses.next_is_lost():
                self._faulty.lose_next(self._losses.place)
            return await request()

        return await sent(send())

    def _give_up(self, since: SessionState) -> None:
        if self.swallowing and self.session == since:
            self.suspend()

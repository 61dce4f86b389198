"""The in-process service as a cluster meets it: latency, frozen clients, sessions timed out."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, TypeVar

from loadmanager.adapters.memory import MemoryCoordination, MemoryService
from loadmanager.adapters.memory.tree import Draft
from loadmanager.core import znodes
from loadmanager.core.wire import decode_leader
from loadmanager.ports import Operation, Stat

T = TypeVar("T")


class TimedService(MemoryService):
    """Expires sessions by virtual time, counted from the last request it heard of each.

    A client that lives pings every third of its timeout, so a session whose connection
    breaks was heard at most that long ago. ``epochs`` are those of every leader elected.
    """

    def __init__(self) -> None:
        super().__init__(clock=lambda: asyncio.get_running_loop().time())
        self.epochs: list[int] = []
        self._heard_at_s: dict[int, float] = {}

    def silence(self, session_id: int) -> None:
        """Let the session's time run from the last request that was heard."""
        super().silence(session_id)
        self.mute(session_id)

    def mute(self, session_id: int) -> None:
        """Hear nothing of a session whose connection stands: its client is frozen."""
        session = self._sessions.get(session_id)
        if session is not None:
            pinged_at_s = self._clock() - session.timeout_s / 3
            session.silent_since_s = max(self._heard_at_s.get(session_id, 0.0), pinged_at_s)
            left_s = session.silent_since_s + session.timeout_s - self._clock()
            asyncio.get_running_loop().call_later(max(left_s, 0.0) + 0.001, self.expire_silent)

    def unmute(self, session_id: int) -> None:
        """Hear the session again, if it lives."""
        if session_id in self._sessions:
            self.resume_session(session_id)

    def apply(self, session_id: int, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        """Note that the session was heard."""
        self._heard_at_s[session_id] = self._clock()
        return super().apply(session_id, operations)

    def exists(
        self, session_id: int, path: str, trigger: Callable[[], None] | None = None
    ) -> Stat | None:
        """Note that the session was heard: this is what a heartbeat asks."""
        self._heard_at_s[session_id] = self._clock()
        return super().exists(session_id, path, trigger)

    def _adopt(self, draft: Draft) -> None:
        elected = draft.changes.get(znodes.LEADER)
        before = self._tree.get(znodes.LEADER)
        if elected and (before is None or before.node.stat.czxid != elected.node.stat.czxid):
            self.epochs.append(decode_leader(znodes.LEADER, elected.node.data).epoch)
        super()._adopt(draft)


class Gate:
    """Lets everything through until it is shut; then everything waits until it opens."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def shut(self) -> bool:
        """Whether things wait."""
        return not self._open.is_set()

    def close(self) -> None:
        """Let nothing through."""
        self._open.clear()

    def open(self) -> None:
        """Let everything through."""
        self._open.set()

    async def passed(self) -> None:
        """Return when it is open."""
        while self.shut:
            await self._open.wait()


class Wire:
    """A way that takes time: what goes in first comes out first."""

    def __init__(self, gate: Gate, rng: Random, longest_s: float) -> None:
        self._gate = gate
        self._rng = rng
        self._longest_s = longest_s
        self._last: asyncio.Future[None] | None = None

    async def turn(self) -> None:
        """Return after the latency, and after everything that went before."""
        before, mine = self._last, asyncio.get_running_loop().create_future()
        self._last = mine
        try:
            await asyncio.sleep(self._rng.random() * self._longest_s)
            if before is not None and not before.done():
                await asyncio.wait({before})
            await self._gate.passed()
        finally:
            mine.set_result(None)


class LossPlace(StrEnum):
    """Where on its way a write is lost."""

    REQUEST = "request"
    REPLY = "reply"


@dataclass(slots=True)
class Losses:
    """Which writes lose their request or reply: numbers of writes of the whole cluster."""

    place: LossPlace = LossPlace.REPLY
    lost: frozenset[int] = frozenset()
    writes: int = 0

    def next_is_lost(self) -> bool:
        """Count one write, and say whether it is to be lost."""
        self.writes += 1
        return self.writes - 1 in self.lost


class ClientSession(MemoryCoordination):
    """A session whose requests, once made, are on their way: cancelling stops none."""

    def __init__(
        self, service: TimedService, gate: Gate, rng: Random, losses: Losses, *, timeout_s: float
    ) -> None:
        self._gate = gate
        self._losses = losses
        self._timed = service
        self.delay_commits_s = 0.0
        super().__init__(service, timeout_s=timeout_s, turn=Wire(gate, rng, 0.002).turn)

    async def commit(self, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        """Send it."""
        await asyncio.sleep(self.delay_commits_s)
        return await self._sent(lambda: super(ClientSession, self).commit(operations))

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Stat:
        """Send it."""
        return await self._sent(
            lambda: super(ClientSession, self).create(path, data, ephemeral=ephemeral)
        )

    async def set(self, path: str, data: bytes, *, version: int = -1) -> Stat:
        """Send it."""
        return await self._sent(lambda: super(ClientSession, self).set(path, data, version=version))

    async def delete(self, path: str, *, version: int = -1) -> None:
        """Send it."""
        await self._sent(lambda: super(ClientSession, self).delete(path, version=version))

    def freeze(self) -> None:
        """Let the client's process stand still, connected as it is."""
        self._gate.close()
        self._timed.mute(self.session.session_id)

    def thaw(self) -> None:
        """Let it go on."""
        self._gate.open()
        self._timed.unmute(self.session.session_id)

    async def _sent(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def send() -> T:
            if self._losses.next_is_lost():
                if self._losses.place is LossPlace.REPLY:
                    self.lose_next_reply()
                else:
                    self.lose_next_request()
            return await request()

        return await sent(send())


async def sent(request: Coroutine[Any, Any, T]) -> T:
    """Return what ``request`` returns; whoever waits may give up, it goes on all the same."""
    task = asyncio.ensure_future(request)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)

"""Paths of messages, with latency and order, which may be blocked."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from tests.testbed.memory.link import LossPlace

T = TypeVar("T")


class Gate:
    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def shut(self) -> bool:
        return not self._open.is_set()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        while self.shut:
            await self._open.wait()


class Wire:
    """A path with latency that keeps the order of its messages.

    ``lag_s`` is an additional delay. Messages wait while one of its gates is shut.
    """

    def __init__(self, gates: tuple[Gate, ...], rng: Random, longest_s: float) -> None:
        self._gates = gates
        self._rng = rng
        self._longest_s = longest_s
        self._arrival_s = 0.0
        self._under_way = 0
        self._held: asyncio.Future[None] | None = None
        self.lag_s = 0.0

    @property
    def empty(self) -> bool:
        return not self._under_way

    async def turn(self) -> None:
        """Return after the latency, and after all earlier messages."""
        loop = asyncio.get_running_loop()
        takes_s = self._rng.random() * self._longest_s + self.lag_s
        self._arrival_s = max(self._arrival_s, loop.time() + takes_s)
        arrived = loop.create_future()
        timer = loop.call_at(self._arrival_s, _arrive, arrived)
        self._under_way += 1
        try:
            await arrived
            if self._held is not None or self._blocked():
                await self._pass_gates()
        finally:
            timer.cancel()
            self._under_way -= 1

    def _blocked(self) -> bool:
        return any(gate.shut for gate in self._gates)

    async def _pass_gates(self) -> None:
        """Wait for earlier blocked messages, then until all gates are open."""
        before, mine = self._held, asyncio.get_running_loop().create_future()
        self._held = mine
        try:
            if before is not None and not before.done():
                await asyncio.wait({before})
            while self._blocked():
                for gate in self._gates:
                    await gate.passed()
        finally:
            mine.set_result(None)
            if self._held is mine:
                self._held = None


def _arrive(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)


@dataclass(slots=True)
class Losses:
    """The writes whose request or reply is lost, by their number in the whole cluster."""

    place: LossPlace = LossPlace.REPLY
    lost: frozenset[int] = frozenset()
    writes: int = 0

    def next_is_lost(self) -> bool:
        """Count a write, and return whether it is lost."""
        self.writes += 1
        return self.writes - 1 in self.lost


async def sent(request: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``request``, which continues if the caller is cancelled."""
    task = asyncio.ensure_future(request)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)

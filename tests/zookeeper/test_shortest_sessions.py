"""How long sessions of an ensemble live at the least after their last answered heartbeat.

A follower tells its leader twice a tick which sessions it heard from. What it heard since is
lost when it freezes.

`pytest -m zookeeper tests/zookeeper/test_shortest_sessions.py -s` prints the figures.
"""

import asyncio
import signal
import struct
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, Self

import pytest
from coordination_worlds import connected
from figures import emit
from waiting import eventually
from zookeeper_servers import LOOPBACK, PORTS_PER_MEMBER, Server, ensemble

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.core.lease import CLOCK_DRIFT_FRACTION, Heartbeats, latest_end_s, report_interval_s
from loadmanager.demo.cluster import free_ports
from loadmanager.ports.session import Coordination

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]
TICK_S: Final = 1.0
TIMEOUTS_S: Final = (2.5, 2.6, 2.7, 2.8, 2.9, 3.0, 3.1, 3.2, 3.3, 3.4)
"""Spread over one tick, since a leader counts in whole ticks: some sessions get nothing on top."""
ROUNDS: Final = 5
EVERY_S: Final = 0.2
RUN_UP_S: Final = 2.0
SYNC: Final = "sync"
TRANSACTION: Final = "transaction"
SILENCE: Final = "transaction after silence"
KINDS: Final = (SYNC, TRANSACTION, SILENCE)


_CREATE, _SYNC, _CHECK, _MULTI = 1, 9, 13, 14
_OPEN_TO_ALL = (31, "world", "anyone")
_EPHEMERAL = 1


class RawSession:
    """Sends nothing but what it is told to: no client pings for it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._requests = 0
        self.timeout_s = timeout_s
        """As it was granted."""

    @classmethod
    async def begin(cls, host: str, port: int, timeout_s: float) -> Self:
        reader, writer = await asyncio.open_connection(host, port)
        request = struct.pack(">iqiqi16sb", 0, 0, int(1000 * timeout_s), 0, 16, bytes(16), 0)
        _send(writer, request)
        _, granted_ms = struct.unpack_from(">ii", await _received(reader))
        return cls(reader, writer, granted_ms / 1000)

    async def create_ephemeral(self, path: str) -> None:
        permissions, scheme, identity = _OPEN_TO_ALL
        acl = struct.pack(">ii", 1, permissions) + _text(scheme) + _text(identity)
        empty = struct.pack(">i", 0)
        await self._ask(_CREATE, _text(path) + empty + acl + struct.pack(">i", _EPHEMERAL))

    async def sync(self) -> None:
        await self._ask(_SYNC, _text("/"))

    async def heartbeat(self) -> None:
        """Commit the transaction that the sidecar's heartbeat is: a check that changes nothing."""
        check = struct.pack(">ibi", _CHECK, 0, -1) + _text("/") + struct.pack(">i", -1)
        await self._ask(_MULTI, check + struct.pack(">ibi", -1, 1, -1))

    def close(self) -> None:
        self._writer.transport.abort()

    async def _ask(self, kind: int, body: bytes) -> None:
        self._requests += 1
        _send(self._writer, struct.pack(">ii", self._requests, kind) + body)
        number, _, error = struct.unpack_from(">iqi", await _received(self._reader))
        assert (number, error) == (self._requests, 0)


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack(">i", len(content)) + content


def _send(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(struct.pack(">i", len(message)) + message)


async def _received(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


@dataclass(slots=True)
class Life:
    """One session, its last answered heartbeat, and since when the leader counts at least."""

    kind: str
    timeout_s: float
    heartbeats: Heartbeats
    sent_at_s: float = 0.0
    known_since_s: float = 0.0
    ended_at_s: float = 0.0

    @property
    def fraction(self) -> float:
        """Which part of its timeout it lived after that heartbeat was sent."""
        return (self.ended_at_s - self.sent_at_s) / self.timeout_s

    @property
    def over_at_s(self) -> float:
        """When the longest lease that was given by then is over by a slow clock."""
        leased_s = latest_end_s(self.known_since_s, self.timeout_s) - self.known_since_s
        return self.known_since_s + leased_s * (1 + CLOCK_DRIFT_FRACTION)

    def answered(self, sent_at_s: float) -> None:
        """Take note of an answer to a heartbeat."""
        interval_s = report_interval_s(self.timeout_s, TICK_S)
        self.sent_at_s = sent_at_s
        self.known_since_s = self.heartbeats.known_since_s(sent_at_s, monotonic(), interval_s)


async def test_no_session_ends_before_the_longest_lease_is_over(tmp_path: Path) -> None:
    servers = ensemble(tmp_path, int(1000 * TICK_S), free_ports(3 * PORTS_PER_MEMBER))
    lives: list[Life] = []
    try:
        await servers.start()
        leader, follower = await servers.in_mode("leader"), await servers.in_mode("follower")
        options = ZooKeeperOptions(hosts=f"{LOOPBACK}:{leader.port}", session_timeout_s=10.0)
        watching = await connected(ZooKeeperCoordination(options))
        await watching.ensure("/sessions")
        for number in range(ROUNDS):
            lives += await _round(number, watching, follower)
        await watching.close()
    finally:
        servers.stop()
    for kind in KINDS:
        some = [life for life in lives if life.kind == kind]
        emit(
            "shortest_session",
            figure="life of a session after its last answered heartbeat was sent, as a part of "
            "its timeout, where its follower froze then",
            heartbeats=kind,
            sessions=len(some),
            ended_early=sum(life.fraction < 1 for life in some),
            shortest_fraction=min(life.fraction for life in some),
            tick_s=TICK_S,
        )
    assert all(life.ended_at_s > life.over_at_s for life in lives)
    # What the lease counts from matters: the last answer alone promises next to nothing.
    assert min(life.fraction for life in lives if life.kind == SILENCE) < 0.5


async def _round(number: int, watching: Coordination, follower: Server) -> list[Life]:
    """Freeze the follower, each time at another moment between two of its reports."""
    lives: dict[str, Life] = {}
    ended: dict[str, float] = {}
    present: set[str] = set()

    def seen(names: tuple[str, ...]) -> None:
        ended.update(dict.fromkeys(present - set(names), monotonic()))
        present.clear()
        present.update(names)

    half_s = TICK_S / 2
    freeze_at_s = (monotonic() // half_s + 1 + number / ROUNDS) * half_s + RUN_UP_S
    watch = watching.watch_children("/sessions", seen)
    async with asyncio.TaskGroup() as tasks:
        living = []
        for kind in KINDS:
            for index, timeout_s in enumerate(TIMEOUTS_S):
                name = f"{kind.replace(' ', '-')}-{index}"
                life = lives[name] = Life(kind, timeout_s, Heartbeats(monotonic()))
                path = f"/sessions/{name}"
                living.append(tasks.create_task(_live(life, path, follower.port, freeze_at_s)))
        await asyncio.sleep(freeze_at_s - monotonic())
        follower.signal(signal.SIGSTOP)
        try:
            await eventually(lambda: len(ended) == len(living), within_s=10.0)
        finally:
            follower.signal(signal.SIGCONT)
            for task in living:
                task.cancel()
    watch.close()
    for name, life in lives.items():
        life.ended_at_s = ended[name]
    return list(lives.values())


async def _live(life: Life, path: str, port: int, freeze_at_s: float) -> None:
    """Keep a session alive, or say nothing until shortly before the follower freezes."""
    session = await RawSession.begin(LOOPBACK, port, life.timeout_s)
    try:
        assert session.timeout_s == life.timeout_s
        await session.create_ephemeral(path)
        send = session.sync if life.kind == SYNC else session.heartbeat
        shift_s = EVERY_S * TIMEOUTS_S.index(life.timeout_s) / len(TIMEOUTS_S)
        at_s = freeze_at_s - EVERY_S - shift_s if life.kind == SILENCE else monotonic() + shift_s
        while True:
            await asyncio.sleep(at_s - monotonic())
            sent_at_s = monotonic()
            await send()
            if monotonic() < freeze_at_s:
                life.answered(sent_at_s)
            at_s += 10 if life.kind == SILENCE else EVERY_S
    finally:
        session.close()

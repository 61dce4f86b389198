"""A server that misbehaves costs its connection: nothing else, and only for as long as it does."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic, thread_time
from typing import Any, Final

import psutil
import pytest
from kazoo.exceptions import ConnectionLoss
from odd_zookeeper import CHILDREN, MULTI, PING, Odd, OddServer, answer, framed, login, right, text
from waiting import eventually

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.adapters.zookeeper.kazoo_overrides import (
    LARGEST_ANSWER_BYTES,
    ClientEvent,
    GatedClient,
)
from loadmanager.ports.coordination import Check, Connection, CoordinationError, SetData

READY_WITHIN_S: Final = 10.0
ODD_FOR_S: Final = 0.2
FLAT_BYTES: Final = 128 * 2**20
EVENT: Final = -1
HUGE: Final = 400_000_000
LONG: Final = bytes(2 * LARGEST_ANSWER_BYTES)


def _error(code: int) -> Odd:
    return lambda xid, _: answer(xid, error=code)


def _event(kind: int) -> bytes:
    return answer(EVENT, struct.pack(">ii", kind, 3) + text(b"/a"))


def _children(count: int, *names: bytes) -> Odd:
    body = struct.pack(">i", count) + b"".join(names)
    return lambda xid, kind: answer(xid, body) if kind == CHILDREN else right(xid, kind)


def _results(count: int) -> Odd:
    body = struct.pack(">i?i", 13, 0, 0) * count + struct.pack(">i?i", -1, 1, -1)
    return lambda xid, kind: answer(xid, body) if kind == MULTI else right(xid, kind)


ANSWERS: Final[dict[str, Odd]] = {
    "unknown error": _error(-9999),
    "expired": _error(-112),
    "auth failed": _error(-115),
    "connection loss": _error(-4),
    "session moved": _error(-118),
    "cut header": lambda _xid, _kind: framed(b"\0\0\0"),
    "empty": lambda _xid, _kind: framed(b""),
    "cut body": lambda xid, _: answer(xid, b"\0\0"),
    "body of a negative length": lambda xid, _: answer(xid, struct.pack(">i", -7) + bytes(68)),
    "no UTF-8": _children(1, text(b"\xff\xfe")),
    "another request's": lambda xid, kind: right(xid + 7, kind),
    "twice": lambda xid, kind: right(xid, kind) * 2,
    "not asked for": lambda xid, kind: right(1_000_000, kind) + right(xid, kind),
    "to a login": lambda xid, kind: answer(-4) + right(xid, kind),
    "none": lambda _xid, _kind: b"",
    "length without end": lambda _xid, _kind: struct.pack(">i", HUGE) + LONG,
    "negative length": lambda _xid, _kind: struct.pack(">i", -2),
    "events of no kind": lambda xid, kind: _event(99) * 1000 + right(xid, kind),
    "a flood of events": lambda xid, kind: _event(3) * 20_000 + right(xid, kind),
    "a flood of pings": lambda xid, kind: answer(PING) * 50_000 + right(xid, kind),
    "pings only": lambda _xid, _kind: answer(PING) * 1000,
    "children without end": _children(2**31 - 1, text(b"a")),
    "a negative number of children": _children(-3),
    "a child without a name": _children(1, struct.pack(">i", -1)),
    "a child elsewhere": _children(1, text(b"../b")),
    "too many results": _results(3),
    "no results": _results(0),
    "an event without a path": lambda xid, kind: (
        answer(EVENT, struct.pack(">iii", 3, 3, -1)) + right(xid, kind)
    ),
    "a transaction far ahead": lambda xid, _: answer(xid, text(b"") + bytes(68), zxid=2**63 - 1),
}

LOGINS: Final[dict[str, Callable[[int], bytes]]] = {
    "a timeout of weeks": lambda _: login(2**31 - 1),
    "no timeout": lambda _: login(0),
    "a negative timeout": lambda _: login(-5),
    "a timeout of a millisecond": lambda _: login(1),
    "without a password": lambda asked_ms: framed(struct.pack(">iiqi?", 0, asked_ms, 7, -1, 0)),
    "cut": lambda asked_ms: login(asked_ms)[:9],
    "without content": lambda _: framed(b""),
    "length without end": lambda _: struct.pack(">i", HUGE) + bytes(1000),
    "negative length": lambda _: struct.pack(">i", -2),
    "an answer to a request": lambda _: answer(1),
}


@asynccontextmanager
async def _session(server: OddServer) -> AsyncIterator[ZooKeeperCoordination]:
    """A session, and a check that the loop hears of no error that nobody expected."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    options = ZooKeeperOptions(
        hosts=server.address, session_timeout_s=4.0, reconnect_delay_max_s=0.1, close_timeout_s=0.5
    )
    session = ZooKeeperCoordination(options)
    await session.start()
    try:
        yield session
    finally:
        server.end()
        await session.close()
    assert unheard == []


async def _ask(session: ZooKeeperCoordination, until_s: float) -> None:
    while monotonic() < until_s:
        requests = (
            session.get("/a"),
            session.children("/a"),
            session.heartbeat(),
            session.commit([Check("/a", -1)]),
        )
        for failed in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(failed, BaseException):
                assert isinstance(failed, CoordinationError), repr(failed)
        await asyncio.sleep(0.02)


async def _ready(session: ZooKeeperCoordination) -> None:
    async with asyncio.timeout(READY_WITHIN_S):
        while True:
            try:
                await session.heartbeat()
                assert await session.children("/a") == ("child",)
            except CoordinationError:
                await asyncio.sleep(0.05)
            else:
                return


async def _odd_for_a_while(server: OddServer, session: ZooKeeperCoordination) -> None:
    rss_before = psutil.Process().memory_info().rss
    await _ask(session, monotonic() + ODD_FOR_S)
    assert psutil.Process().memory_info().rss - rss_before < FLAT_BYTES
    server.end()
    await _ready(session)


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_session_is_ready_soon_after_its_server_answered_oddly(name: str) -> None:
    async with OddServer().running() as server, _session(server) as session:
        await _ready(session)
        server.odd = ANSWERS[name]
        await _odd_for_a_while(server, session)
        if name == "length without end":
            assert server.taken_bytes < LARGEST_ANSWER_BYTES


@pytest.mark.parametrize("name", LOGINS)
async def test_a_session_is_ready_soon_after_its_server_logged_it_in_oddly(name: str) -> None:
    async with OddServer(odd_login=LOGINS[name]).running() as server, _session(server) as session:
        await _odd_for_a_while(server, session)


@pytest.mark.parametrize("name", ["tiny children", "tiny results"])
async def test_the_longest_answer_takes_the_loop_no_moment(name: str) -> None:
    """To parse it would take two seconds: leases and lookups wait meanwhile."""
    many = {
        "tiny children": _children(2_000_000, text(b"a") * 2_000_000),
        "tiny results": _results(1_000_000),
    }
    async with OddServer().running() as server, _session(server) as session:
        await _ready(session)
        server.odd = many[name]
        began_s = thread_time()
        with pytest.raises(CoordinationError, match="no reply"):
            await (session.children("/a") if name == "tiny children" else session.heartbeat())
        assert thread_time() - began_s < 0.5


async def test_a_commit_with_a_result_of_another_kind_is_not_known_to_be_applied() -> None:
    async with OddServer().running() as server, _session(server) as session:
        await _ready(session)
        with pytest.raises(CoordinationError, match="cannot be read"):
            await session.commit([SetData("/a", b"")])  # Its result is that of a check.


async def test_a_client_that_is_being_stopped_sends_nothing_more() -> None:
    admitted: list[ClientEvent] = []
    async with OddServer(odd=lambda _xid, _kind: b"").running() as server:
        loop = asyncio.get_running_loop()
        client = GatedClient(ZooKeeperOptions(hosts=server.address), loop, admitted.append)
        client.start_async()
        await eventually(lambda: admitted)
        stopping = asyncio.create_task(asyncio.to_thread(client.end))
        await eventually(client._stopped.is_set)
        client.admit(admitted[0].generation)
        assert isinstance(client.sync_async("/").exception, ConnectionLoss)
        server.end()
        await stopping


async def test_a_login_that_trickles_in_is_given_up_in_time() -> None:
    async with (
        OddServer(odd_login=login, pause_s=0.3).running() as slow,
        OddServer().running() as other,
    ):
        hosts = f"{slow.address},{other.address}"
        for times in range(1, 4):  # Which of them is tried first is drawn.
            session = ZooKeeperCoordination(
                ZooKeeperOptions(hosts=hosts, session_timeout_s=4.0, close_timeout_s=0.5)
            )
            await session.start()
            await _ready(session)
            assert other.sessions == times
            await session.close()


@pytest.mark.parametrize(("granted_ms", "used_s"), [(2**31 - 1, 4.0), (3000, 3.0)])
async def test_the_timeout_is_at_most_what_was_asked_for(granted_ms: int, used_s: float) -> None:
    odd = OddServer(odd_login=lambda _: login(granted_ms))
    async with odd.running() as server, _session(server) as session:
        await eventually(lambda: session.session.connection is Connection.CONNECTED)
        assert session.session.timeout_s == used_s
        server.odd = lambda _xid, _kind: b""
        with pytest.raises(CoordinationError):  # The keepalive notices the silence.
            await session.get("/a")


async def test_after_weeks_were_granted_and_a_far_transaction_was_seen_a_new_session_begins() -> (
    None
):
    odd = ANSWERS["a transaction far ahead"]
    weeks = OddServer(odd=odd, odd_login=lambda _: login(2**31 - 1))
    async with weeks.running() as server, _session(server) as session:
        await eventually(lambda: session.session.connection is Connection.CONNECTED)
        await _odd_for_a_while(server, session)
        assert server.sessions > 0

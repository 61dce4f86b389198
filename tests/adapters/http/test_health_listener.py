"""Probes are answered from a thread of their own, and fail once the event loop hangs."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from loadmanager.adapters.http.health_listener import HealthAnswers, HealthListener
from loadmanager.ports.lookup import Readiness
from tests.adapters.http.conftest import until

Probe = Callable[[int, str], tuple[int, str]]


def probe(port: int, path: str, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, str]:
    connection = HTTPConnection(host, port, timeout=1.0)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def later(after_s: float, port: int, path: str) -> tuple[int, str]:
    time.sleep(after_s)
    return probe(port, path)


class Told:
    def __init__(self) -> None:
        self.late_s: list[float] = []
        self.stalls = 0

    def stalled(self) -> None:
        self.stalls += 1


OpenAListener = Callable[..., Awaitable[tuple[int, Told]]]


@pytest.fixture
async def open_a_listener() -> AsyncIterator[OpenAListener]:
    opened: list[HealthListener] = []

    async def open_one(
        readiness: Callable[[], Readiness] = lambda: Readiness(ready=True),
        stalled_after_s: float = 5.0,
    ) -> tuple[int, Told]:
        told = Told()
        one = HealthListener(
            readiness,
            port=0,
            late=told.late_s.append,
            stalled=told.stalled,
            stalled_after_s=stalled_after_s,
        )
        opened.append(one)
        return one.start(), told

    yield open_one
    for one in opened:
        await one.stop()


async def test_a_live_and_ready_service_says_so(open_a_listener: OpenAListener) -> None:
    port, _ = await open_a_listener()
    assert await asyncio.to_thread(probe, port, "/healthz") == (200, "ok")
    status, text = await asyncio.to_thread(probe, port, "/readyz?verbose")
    assert (status, json.loads(text)) == (200, {"ready": True, "reasons": []})
    assert await asyncio.to_thread(probe, port, "/healthz", "HEAD") == (200, "")
    for request, none in ((("/metrics",), 404), (("/",), 404), (("/healthz", "POST"), 405)):
        assert (await asyncio.to_thread(probe, port, *request))[0] == none
    if socket.has_dualstack_ipv6():
        assert await asyncio.to_thread(probe, port, "/healthz", "GET", "::1") == (200, "ok")


async def test_readiness_follows_the_service(open_a_listener: OpenAListener) -> None:
    now = Readiness(ready=False, reasons=("no session",), troubles=("full",))
    port, _ = await open_a_listener(lambda: now)
    status, text = await asyncio.to_thread(probe, port, "/readyz")
    assert (status, json.loads(text)) == (
        503,
        {"ready": False, "reasons": ["no session"], "reason": "no session", "troubles": ["full"]},
    )
    now = Readiness(ready=True)
    async with asyncio.timeout(30):
        while (await asyncio.to_thread(probe, port, "/readyz"))[0] != 200:  # noqa: ASYNC110 - asked from outside
            await asyncio.sleep(0.05)


async def test_a_blocked_event_loop_is_told_within_a_second(open_a_listener: OpenAListener) -> None:
    port, told = await open_a_listener(stalled_after_s=0.7)
    await asyncio.sleep(0.1)
    with capture_logs() as logs, ThreadPoolExecutor() as threads:
        early = threads.submit(probe, port, "/healthz")
        late = threads.submit(later, 1.0, port, "/healthz")
        readiness = threads.submit(later, 1.0, port, "/readyz")
        time.sleep(1.6)  # noqa: ASYNC251 - this is the fault: the loop does not run
        assert early.result() == (200, "ok")
        assert late.result()[0] == readiness.result()[0] == 503
        assert "the event loop has not run for" in late.result()[1]
        await until(lambda: len(logs) == 2)
        assert await asyncio.to_thread(probe, port, "/healthz") == (200, "ok")
    assert [entry["event"] for entry in logs] == ["http.loop.stalled", "http.loop.recovered"]
    assert told.stalls == 1
    assert max(told.late_s) > 0.9


def test_five_seconds_without_a_tick_are_the_limit() -> None:
    answers = HealthAnswers(5.0)
    answers.tick(100.0, Readiness(ready=True))
    line = b"GET /healthz HTTP/1.1"
    assert answers.response_to(line, 104.9).startswith(b"HTTP/1.1 200 ")
    assert answers.response_to(line, 105.1).startswith(b"HTTP/1.1 503 ")
    overdue = ""
    answers.overdue = lambda: overdue
    health = b"GET /health HTTP/1.1"
    assert answers.response_to(health, 104.9).startswith(b"HTTP/1.1 200 ")
    assert answers.response_to(health, 105.1).startswith(b"HTTP/1.1 503 ")
    overdue = "no round has begun for 91 s"
    assert answers.response_to(health, 104.9).endswith(b'{"reason":"no round has begun for 91 s"}')
    assert answers.response_to(line, 104.9).startswith(b"HTTP/1.1 200 ")
    assert answers.response_to(b"nonsense", 100.0).startswith(b"HTTP/1.1 400 ")
    assert answers.response_to(b"\xff\xfe", 100.0).startswith(b"HTTP/1.1 400 ")


async def test_idle_connections_keep_no_probe_out(open_a_listener: OpenAListener) -> None:
    port, _ = await open_a_listener()
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 1.0)).send(b"GET ")
        assert await asyncio.to_thread(probe, port, "/healthz") == (200, "ok")


async def test_readiness_that_fails_is_no_dead_loop(open_a_listener: OpenAListener) -> None:
    def fail() -> Readiness:
        raise ZeroDivisionError

    with capture_logs() as logs:
        port, _ = await open_a_listener(fail)
        assert await asyncio.to_thread(probe, port, "/healthz") == (200, "ok")
        assert (await asyncio.to_thread(probe, port, "/readyz"))[0] == 503
    assert logs[0]["event"] == "http.readiness.failed"


async def test_a_port_in_use_is_told_with_the_key(open_a_listener: OpenAListener) -> None:
    port, told = await open_a_listener()
    late, stalled = told.late_s.append, told.stalled
    second = HealthListener(lambda: Readiness(ready=True), port=port, late=late, stalled=stalled)
    with pytest.raises(OSError, match=rf"\[sidecar\] health_port: .* port {port}: address"):
        second.start()
    await second.stop()


async def test_systemds_watchdog_is_fed_while_the_loop_runs(
    open_a_listener: OpenAListener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(address))
        supervisor.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        await open_a_listener(stalled_after_s=0.6)
        assert await asyncio.to_thread(supervisor.recv, 100) == b"WATCHDOG=1"
        time.sleep(1.2)  # noqa: ASYNC251 - the loop does not run
        supervisor.settimeout(0.0)
        with suppress(BlockingIOError):
            while supervisor.recv(100):
                pass
        time.sleep(0.8)  # noqa: ASYNC251 - and still does not
        with pytest.raises(BlockingIOError):
            supervisor.recv(100)

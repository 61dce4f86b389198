"""What `loadmanager attach --page` and `--metrics-port` show."""

import asyncio
import http.client
import json
import math
import socket
import time
import tracemalloc
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from attach_process import LIMIT_S, attached, event, free_port
from fake_pulsar import FakePulsar
from prometheus_client.parser import text_string_to_metric_families

from loadmanager.pulsar import reports
from loadmanager.pulsar.state import SHEDDING
from tests.attach.conftest import attach

BALANCING = "/admin/v2/loadmanager/balancing"
PAUSE = f"{BALANCING}/pause?by=live%20page&reason=a%20look%0Afirst"
RESUME = f"{BALANCING}/resume"


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    connection.request(method, path, headers={n.replace("_", "-"): headers[n] for n in headers})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def overview(port: int, mode: str, by: str = "") -> dict[str, Any]:
    until_s = time.monotonic() + LIMIT_S
    while True:
        kind, told = event(port)
        if kind == "event: overview":
            seen: dict[str, Any] = told["overview"]
            balancing = seen["balancing"]
            if balancing["mode"] == mode and balancing["by"].startswith(by):
                return seen
        assert time.monotonic() < until_s, told
        time.sleep(0.1)


def figures(port: int) -> dict[str, float]:
    """Return what is served by name, tasks by state, holds by reason; nothing without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return {}
    return {
        labels.get("state") or labels.get("reason") or name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for labels, name in [(sample.labels, sample.name.removeprefix("loadmanager_attach_"))]
        if not name.endswith("_created")
    }


def until(port: int, **wanted: float) -> dict[str, float]:
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        found = figures(port)
        if found and all(found[name] == value for name, value in wanted.items()):
            return found
        assert time.monotonic() < deadline_s, (wanted, found)
        time.sleep(0.05)


@pytest.mark.parametrize("mode", ["observing", "active"])
def test_what_attach_does_is_shown_here(pulsar: FakePulsar, tmp_path: Path, mode: str) -> None:
    port, metrics_port = free_port(), free_port()
    more = ["--balance", "--settle", "0"] if mode == "active" else []
    options = ["--pulsar", pulsar.url, "--interval", "0.2", "--state-dir", str(tmp_path)]
    shows = ["--page", str(port), "--metrics-port", str(metrics_port)]
    with attached(*options, *shows, *more) as process:
        seen = overview(port, mode)
        assert seen["measure"] == "rate"
        assert ("drain" in seen["actions"]) is (mode == "active")
        assert len(seen["brokers"]) == seen["brokersInAll"] > 1
        assert ask(metrics_port, "/health") == (200, "ok")
        assert ask(port, "/", Host="localhost")[0] == 200
        assert ask(port, "/live/app.js", Host="127.0.0.1")[0] == 200
        assert ask(port, "/live/events", Host="evil.example")[0] == 403
        if mode == "observing":
            code, why = ask(port, PAUSE, "PUT")
            assert (code, "makes no moves now" in why) == (503, True)
            assert json.loads(ask(port, BALANCING)[1])["mode"] == mode
            found = until(metrics_port, pulsar_shedding=1, balancing=0, brokers=3)
            assert found["brokers_missing"] == 0
            assert math.isclose(found["max_over_mean"], 3.0)
            assert math.isclose(found["least_max_over_mean"], 9 / 8)
            pulsar.dynamic[SHEDDING] = "false"
            until(metrics_port, pulsar_shedding=0, balancing=0)
        else:
            until(metrics_port, pulsar_shedding=0, balancing=1, budget=0, serving=5, failed=0)
        process.terminate()
        process.wait()


def test_the_page_pauses_and_resumes_like_the_command(pulsar: FakePulsar, tmp_path: Path) -> None:
    port = free_port()
    options = ["--pulsar", pulsar.url, "--interval", "0.2", "--state-dir", str(tmp_path)]
    with attached(*options, "--pause") as command:
        assert command.wait() == 0
    with attached(*options, "--page", str(port), "--balance", "--settle", "0") as process:
        seen = overview(port, "paused")
        assert seen["balancing"]["by"] == "attach --pause"
        assert seen["balancing"]["sinceMs"] > 1_700_000_000_000
        code, text = ask(port, "/admin/v2/loadmanager/plan?limit=1")
        assert (code, "takes it off" in json.loads(text)["moves"][0]["meaning"]) == (200, True)
        assert ask(port, RESUME, "PUT", Origin="http://evil.example")[0] == 403
        assert pulsar.unloads == []
        assert ask(port, RESUME, "PUT", Origin=f"http://127.0.0.1:{port}")[0] == 204
        process.until("not paused any more: asked over HTTP")
        process.until("serving")
        assert pulsar.unloads
        assert ask(port, PAUSE, "PUT")[0] == 204
        assert json.loads(ask(port, BALANCING)[1])["mode"] == "paused"
        process.until(
            "nothing moves until it is resumed: asked over HTTP by live page: a look first"
        )
        assert overview(port, "paused", "live page")["balancing"]["reason"] == "a look first"
        process.end()


@pytest.mark.parametrize("size", [1, 15_000, 2_000_000])
async def test_unfinished_heads_are_bounded(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Each of 400 clients sends so much of a head, and waits.

    One that sends nothing may be left in the kernel's queue, which the listener never sees.
    """
    limits = reports.LIMITS.model_copy(update={"head_s": 1.0})
    monkeypatch.setattr(reports, "LIMITS", limits)
    loop, port = asyncio.get_running_loop(), free_port()
    head = (b"GET /metrics HTTP/1.1\r\n" + b"A: aaaaaaa\r\n" * (size // 12))[:size]

    async def client() -> None:
        with socket.socket() as own:
            own.settimeout(0)
            await loop.sock_connect(own, ("127.0.0.1", port))
            with suppress(ConnectionError):
                await loop.sock_sendall(own, head)
                while await loop.sock_recv(own, 1_024):
                    pass

    async with reports.served_metrics(port, "127.0.0.1", str), asyncio.timeout(LIMIT_S):
        tracemalloc.start()
        try:
            clients = [asyncio.create_task(client()) for _ in range(400)]
            ended = asyncio.gather(*clients)
            kept = 0
            while not ended.done():
                await asyncio.wait({ended}, timeout=0.1)
                kept = max(kept, tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert kept < 64_000_000
        found = await asyncio.to_thread(figures, port)
        assert "balancing" in found


async def test_one_that_takes_all_of_its_connections_leaves_health_to_others() -> None:
    port = free_port()

    def health() -> bytes:
        address, own = ("127.0.0.1", port), ("127.0.0.2", 0)
        with socket.create_connection(address, LIMIT_S, source_address=own) as other:
            other.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            return other.recv(1_024).split(b"\r\n")[0]

    async with reports.served_metrics(port, "127.0.0.1", str):
        with ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(
                    await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port))
                )
            assert await asyncio.to_thread(health) == b"HTTP/1.1 200 OK"


def test_a_port_that_is_taken_is_named(pulsar: FakePulsar) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        found = attach(pulsar, "--once", "--metrics-port", str(port))
    assert found.exit_code == 1
    assert f"--metrics-port {port}: " in found.stderr
    assert "expected a free port" in found.stderr


async def test_health_and_systemds_watchdog_end_when_something_is_overdue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overdue, port, address = "", free_port(), tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(address))
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(address))
        supervisor.settimeout(LIMIT_S)
        async with reports.served_metrics(port, "127.0.0.1", lambda: overdue):
            assert await asyncio.to_thread(ask, port, "/health") == (200, "ok")
            assert await asyncio.to_thread(supervisor.recv, 100) == b"WATCHDOG=1"
            overdue = "no round has begun for 91 s"
            code, why = await asyncio.to_thread(ask, port, "/health")
            assert (code, json.loads(why)) == (503, {"reason": overdue})
            supervisor.settimeout(0.0)
            with suppress(BlockingIOError):
                while supervisor.recv(100):
                    pass
            await asyncio.sleep(1.2)  # Twice as long as between two notifications.
            with pytest.raises(BlockingIOError):
                supervisor.recv(100)

"""Lookups per second of the HTTP door beside a bare aiohttp handler with the same bytes.

Both servers are real processes on loopback with uvloop; so is the client, a raw protocol
on keep-alive connections that waits for each answer before it asks again. Rounds are
interleaved, so that a busy machine slows all lanes alike, and the medians are compared.

The client has a core of its own at best, and asks as fast as Python can; where it is the
bottleneck, the door's requests per second are a lower bound. The CPU time that the
server spends on a request, counted by the kernel, has no such bound, so it is told too.

``python -m tests.bench.bench_lookup`` prints one JSON line for each figure.
"""

import asyncio
import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import psutil
import pytest
import structlog
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry

from loadmanager.adapters.http import DoorSettings, HttpDoor
from loadmanager.adapters.http.answers import Answer, render
from loadmanager.telemetry.lookups import LookupMetrics

ROOT: Final = Path(__file__).parents[2]
TOPICS: Final = 1_000
BUNDLES: Final = 1_024
PREFIX: Final = "/lookup/v2/topic/persistent/public/default/topic-"
HEADERS: Final = (
    "Host: 127.0.0.1\r\nAccept: application/json\r\nAccept-Encoding: gzip, deflate\r\n"
    "User-Agent: bench\r\n"
)


@dataclass(frozen=True, slots=True)
class Lane:
    """One server asked in one way.

    With ``fresh_headers`` no two requests have the same headers, as behind a proxy
    that numbers them: the door then never answers before aiohttp has parsed.
    """

    server: str
    fresh_headers: bool = False

    @property
    def name(self) -> str:
        """The server, and how it is asked."""
        return f"{self.server}{'_fresh_headers' if self.fresh_headers else ''}"


LANES: Final = (Lane("door"), Lane("bare"), Lane("door", True), Lane("bare", True))  # noqa: FBT003 - a table


@dataclass(frozen=True, slots=True)
class Round:
    """What one lane did in one round."""

    requests_per_s: float
    server_cpu_us_per_request: float


def measure(rounds: int = 5, round_s: float = 1.0, connections: int = 32) -> dict[str, list[Round]]:
    """Return the rounds of each lane, after one round that does not count.

    Takes about ``4 * (rounds + 1) * round_s`` seconds.
    """
    results: dict[str, list[Round]] = {lane.name: [] for lane in LANES}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_server(name)) for name in ("door", "bare")}
        for number in range(rounds + 1):
            for lane in LANES if number % 2 else reversed(LANES):
                process, port = servers[lane.server]
                measured = _round(process, port, lane, round_s, connections)
                if number:
                    results[lane.name].append(measured)
    return results


def figures(results: dict[str, list[Round]]) -> Iterator[dict[str, object]]:
    """Yield the medians, and how the door compares with the bare handler."""
    speed = {name: [r.requests_per_s for r in each] for name, each in results.items()}
    cpu = {name: [r.server_cpu_us_per_request for r in each] for name, each in results.items()}
    for name in results:
        yield {
            "bench": "lookup",
            "lane": name,
            "requests_per_s": round(statistics.median(speed[name])),
            "requests_per_s_min": round(min(speed[name])),
            "requests_per_s_max": round(max(speed[name])),
            "server_cpu_us_per_request": round(statistics.median(cpu[name]), 1),
        }
    for suffix in ("", "_fresh_headers"):
        door, bare = f"door{suffix}", f"bare{suffix}"
        yield {
            "bench": "lookup",
            "figure": f"ratio_to_bare_aiohttp{suffix}",
            "requests_per_s_ratio": _ratio(speed[door], speed[bare]),
            "server_cpu_ratio": _ratio(cpu[bare], cpu[door]),
        }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return round(statistics.median(ours) / statistics.median(theirs), 2)


@contextmanager
def _server(name: str) -> Iterator[tuple[psutil.Process, int]]:
    command = [sys.executable, "-m", "tests.bench.bench_lookup", "serve", name]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            yield psutil.Process(started.pid), int(started.stdout.readline())
        finally:
            started.terminate()


def _round(
    server: psutil.Process, port: int, lane: Lane, round_s: float, connections: int
) -> Round:
    before = server.cpu_times()
    arguments = [str(port), str(round_s), str(connections), str(int(lane.fresh_headers))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_lookup", "ask", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=round_s + 30,
    )
    after = server.cpu_times()
    told = json.loads(done.stdout)
    cpu_s = after.user + after.system - before.user - before.system
    return Round(told["requests"] / told["seconds"], 1e6 * cpu_s / told["requests"])


async def _serve_door() -> int:
    from tests.adapters.http.conftest import PUBLIC, FakeLookup  # noqa: PLC0415 - here the root is the working directory

    lookup = FakeLookup()
    lookup.recut(PUBLIC, BUNDLES)
    for bundle in lookup.namespaces[PUBLIC].bundles:
        lookup.give(bundle, "b1:8080")
    registry = CollectorRegistry()
    metrics = LookupMetrics()
    registry.register(metrics)
    door = HttpDoor(
        lookup, metrics=metrics, registry=registry, version="bench", settings=DoorSettings()
    )
    return await door.start("127.0.0.1", 0)


def _answer() -> Answer:
    from loadmanager.core.bundles import Boundaries  # noqa: PLC0415 - as above
    from tests.adapters.http.conftest import PUBLIC, owner_named  # noqa: PLC0415 - as above

    return render(owner_named(Boundaries.even(PUBLIC, BUNDLES).bundles[0], "b1:8080"), "")


async def _serve_bare() -> int:
    answer = _answer()

    async def handler(_request: web.Request) -> web.Response:
        return web.Response(body=answer.body, headers=answer.headers)

    app = web.Application()
    app.router.add_get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=DoorSettings().backlog).start()
    return int(runner.addresses[0][1])


async def serve(name: str) -> None:
    """Serve until killed, after printing the port."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    port = await (_serve_door() if name == "door" else _serve_bare())
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


class Asker(asyncio.Protocol):
    """Asks on one connection, one request after the other."""

    def __init__(self, first: int, fresh_headers: bool) -> None:
        self._next = first
        self._fresh = fresh_headers
        self._got = b""
        self.answered = 0
        self.refused = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the first question."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Ask the next question once the answer to the last is whole."""
        self._got += data
        head_end = self._got.find(b"\r\n\r\n")
        if head_end < 0:
            return
        start = self._got.find(b"Content-Length: ") + len(b"Content-Length: ")
        length = int(self._got[start : self._got.find(b"\r\n", start)])
        if len(self._got) < head_end + 4 + length:
            return
        self.refused += not self._got.startswith(b"HTTP/1.1 200 ")
        self._got = b""
        self.answered += 1
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        self._next += 1
        self._transport.write(_request(self._next, fresh_headers=self._fresh))


_PLAIN: Final = [
    f"GET {PREFIX}{number} HTTP/1.1\r\n{HEADERS}\r\n".encode() for number in range(TOPICS)
]


def _request(number: int, *, fresh_headers: bool) -> bytes:
    if not fresh_headers:
        return _PLAIN[number % TOPICS]
    line = f"GET {PREFIX}{number % TOPICS} HTTP/1.1\r\n"
    return f"{line}{HEADERS}X-Request-Id: {number}-{id(_PLAIN)}\r\n\r\n".encode()


async def ask(port: int, seconds: float, connections: int, *, fresh_headers: bool) -> None:
    """Ask for so long on so many connections, and print what was answered."""
    loop = asyncio.get_running_loop()
    offset = time.monotonic_ns() % 1_000_000_007
    askers: list[Asker] = []

    def one_more() -> Asker:
        askers.append(Asker(offset + 1_000_000 * len(askers), fresh_headers))
        return askers[-1]

    for _ in range(connections):
        await loop.create_connection(one_more, "127.0.0.1", port)
    started = time.perf_counter()
    await asyncio.sleep(seconds)
    requests = sum(asker.answered for asker in askers)
    if any(asker.refused or not asker.answered for asker in askers):
        raise RuntimeError("not every connection was answered, with 200 alone")
    print(json.dumps({"requests": requests, "seconds": time.perf_counter() - started}))


@pytest.mark.bench
@pytest.mark.timeout(180)
def test_a_lookup_costs_no_more_than_the_barest_aiohttp_handler() -> None:
    from figures import emit  # noqa: PLC0415 - pytest finds it; the processes started here do not

    lines = list(figures(measure()))
    for line in lines:
        emit(str(line.pop("bench")), **line)
    ratios = {line["figure"]: line["requests_per_s_ratio"] for line in lines if "figure" in line}
    assert float(str(ratios["ratio_to_bare_aiohttp"])) >= 1.0
    assert float(str(ratios["ratio_to_bare_aiohttp_fresh_headers"])) >= 0.8


def main(arguments: list[str]) -> None:
    """Run one part, or all of it."""
    match arguments:
        case ["serve", name]:
            uvloop.run(serve(name))
        case ["ask", port, seconds, connections, fresh]:
            uvloop.run(ask(int(port), float(seconds), int(connections), fresh_headers=fresh == "1"))
        case _:
            for line in figures(measure()):
                print(json.dumps(line))


if __name__ == "__main__":
    main(sys.argv[1:])

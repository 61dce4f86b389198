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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Final, cast

import jwt
import psutil
import pytest
import structlog
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry

from loadmanager.adapters.http.http_server import HttpServer
from loadmanager.adapters.http.lookups import Answer, render
from loadmanager.adapters.http.security.guard import (
    ClusterKeyGuard,
    Guard,
    OwnNames,
    Rights,
    Tokens,
)
from loadmanager.config.sections import HttpSettings
from loadmanager.telemetry.metrics import LookupMetrics

ROOT: Final = Path(__file__).parents[2]
TOPICS: Final = 1_000
BUNDLES: Final = 1_024
PREFIX: Final = "/lookup/v2/topic/persistent/public/default/topic-"
SECRET: Final = b"a secret that is only for this run"
HEADERS: Final = (
    "Host: 127.0.0.1",
    "Accept: application/json",
    "Accept-Encoding: gzip, deflate",
    "User-Agent: bench",
)
# As curl and Pulsar's C++, Java and Go clients send them; the versions are filled in.
CLIENTS: Final = (
    ("Host: 127.0.0.1", "User-Agent: curl/8.{}", "Accept: */*"),
    ("Host: 127.0.0.1", "User-Agent: Pulsar-CPP-v4.{}", "Accept: */*"),
    ("accept: application/json", "host: 127.0.0.1", "user-agent: Pulsar-Java-v4.{}"),
    (
        "Host: 127.0.0.1",
        "User-Agent: Pulsar-httpClient-Go-v{}",
        "Accept: application/json",
        "Accept-Encoding: gzip",
    ),
)
VERSIONS: Final = 10
# Requests that follow one another are of several clients.
STRIDE: Final = 7_919


@dataclass(frozen=True, slots=True)
class Lane:
    """One server asked in one way.

    ``guarded`` checks Pulsar's tokens; ``default`` is what guards without [security].

    With ``fresh_headers`` no two requests have the same headers: several versions of several
    clients ask, each with its headers in any order, behind a proxy that numbers requests.
    """

    server: str
    fresh_headers: bool = False

    @property
    def proves(self) -> bool:
        return self.server == "guarded"

    @property
    def name(self) -> str:
        return f"{self.server}{'_fresh_headers' if self.fresh_headers else ''}"


SERVERS: Final = ("door", "guarded", "default", "bare")
LANES: Final = tuple(Lane(server, fresh) for fresh in (False, True) for server in SERVERS)


@dataclass(frozen=True, slots=True)
class Round:
    requests_per_s: float
    server_cpu_us_per_request: float


def measure(rounds: int = 5, round_s: float = 1.0, connections: int = 32) -> dict[str, list[Round]]:
    """Return the rounds of each lane, after one round that does not count.

    Takes about ``8 * (rounds + 1) * round_s`` seconds.
    """
    results: dict[str, list[Round]] = {lane.name: [] for lane in LANES}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_server(name)) for name in SERVERS}
        for number in range(rounds + 1):
            for lane in LANES if number % 2 else reversed(LANES):
                process, port = servers[lane.server]
                measured = _round(process, port, lane, round_s, connections)
                if number:
                    results[lane.name].append(measured)
    return results


def figures(results: dict[str, list[Round]]) -> Iterator[dict[str, object]]:
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
        bare = f"bare{suffix}"
        for server, figure in (
            ("door", "ratio_to_bare_aiohttp"),
            ("guarded", "ratio_to_bare_aiohttp_with_tokens"),
            ("default", "ratio_to_bare_aiohttp_by_default"),
        ):
            lane = f"{server}{suffix}"
            yield {
                "bench": "lookup",
                "figure": f"{figure}{suffix}",
                "requests_per_s_ratio": _ratio(speed[lane], speed[bare]),
                "server_cpu_ratio": _ratio(cpu[bare], cpu[lane]),
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
    arguments = [str(port), str(round_s), str(connections)]
    arguments += [str(int(lane.fresh_headers)), str(int(lane.proves))]
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


async def _serve_door(guard: Guard | None = None) -> int:
    from tests.adapters.http.conftest import PUBLIC, FakeLookup  # noqa: PLC0415 - here the root is the working directory

    lookup = FakeLookup()
    lookup.recut(PUBLIC, BUNDLES)
    for bundle in lookup.namespaces[PUBLIC].bundles:
        lookup.give(bundle, "b1:8080")
    registry = CollectorRegistry()
    metrics = LookupMetrics()
    registry.register(metrics)
    door = HttpServer(
        lookup,
        metrics=metrics,
        registry=registry,
        version="bench",
        settings=HttpSettings(),
        guard=guard,
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
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=HttpSettings().backlog).start()
    return int(runner.addresses[0][1])


async def serve(name: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    guard = Guard(Rights(lookup_roles=frozenset({"client"})), Tokens(SECRET, ("HS256",)))
    by_default = ClusterKeyGuard(lambda: SECRET, OwnNames())
    doors = {"door": None, "guarded": guard, "default": by_default}
    port = await (_serve_door(doors[name]) if name in doors else _serve_bare())
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


class Asker(asyncio.Protocol):
    def __init__(self, first: int, heads: Sequence[str], *, numbered: bool) -> None:
        self._next = first
        self._heads = heads
        self._numbered = numbered
        self._got = b""
        self.answered = 0
        self.refused = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
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
        topic, head = self._next % TOPICS, self._heads[self._next * STRIDE % len(self._heads)]
        self._transport.write(
            _request(topic, f"{head}X-Request-Id: {self._next}-{id(self)}\r\n")
            if self._numbered
            else _repeated(topic, head)
        )


def _request(topic: int, head: str) -> bytes:
    return f"GET {PREFIX}{topic} HTTP/1.1\r\n{head}\r\n".encode()


_repeated: Final = cache(_request)


def _heads(*, fresh_headers: bool, token: str) -> list[str]:
    """Return blocks of headers without the empty line at their end."""
    if not fresh_headers:
        return ["".join(f"{line}\r\n" for line in [*HEADERS, *_proof(token)])]
    return [
        "".join(f"{line}\r\n" for line in order).format(version)
        for client in CLIENTS
        for order in permutations([*client, *_proof(token)])
        for version in range(VERSIONS)
    ]


def _proof(token: str) -> list[str]:
    return [f"Authorization: Bearer {token}"] if token else []


async def ask(
    port: int, seconds: float, connections: int, *, fresh_headers: bool, proves: bool
) -> None:
    loop = asyncio.get_running_loop()
    offset = time.monotonic_ns() % 1_000_000_007
    askers: list[Asker] = []
    token = jwt.encode({"sub": "client"}, SECRET, "HS256") if proves else ""
    heads = _heads(fresh_headers=fresh_headers, token=token)

    def one_more() -> Asker:
        first = offset + 1_000_000 * len(askers)
        askers.append(Asker(first, heads, numbered=fresh_headers))
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
@pytest.mark.flaky(reruns=1, only_rerun=["TooSlow"])
def test_lookups_cost_a_fraction_of_the_barest_aiohttp_handler() -> None:
    from figures import TooSlow, emit  # noqa: PLC0415 - pytest finds it; the processes started here do not

    lines = list(figures(measure()))
    for line in lines:
        emit(str(line.pop("bench")), **line)
    # The client and the server share the cores; what the server spends is its own.
    ratios = {line["figure"]: line["server_cpu_ratio"] for line in lines if "figure" in line}
    least = {name: 1.8 if str(name).endswith("_fresh_headers") else 2.0 for name in ratios}
    missed = {name: ratios[name] for name in least if float(str(ratios[name])) < least[name]}
    if missed:
        raise TooSlow(f"{missed}; expected at least {least}")


def main(arguments: list[str]) -> None:
    match arguments:
        case ["serve", name]:
            uvloop.run(serve(name))
        case ["ask", port, seconds, connections, fresh, proves]:
            asking = ask(
                *(int(port), float(seconds), int(connections)),
                fresh_headers=fresh == "1",
                proves=proves == "1",
            )
            uvloop.run(asking)
        case _:
            for line in figures(measure()):
                print(json.dumps(line))


if __name__ == "__main__":
    main(sys.argv[1:])

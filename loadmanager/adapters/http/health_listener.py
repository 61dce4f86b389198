"""Liveness and readiness probes on a separate port and thread.

Probes must succeed while the event loop is busy with a flood of requests, and must fail once it
hangs. So the event loop records a tick with the current readiness twice a second, and another
thread answers from the last tick. That thread shares nothing else with the service: it has its
own event loop and a small server, without tokens and TLS.
"""

import asyncio
import errno
import json
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from pydantic import Field

from loadmanager.adapters.http.operations import TEXT, Document, Reply, Resource, operation
from loadmanager.adapters.http.routes import (
    Refused,
    Role,
    Target,
    bytes_reply,
    json_reply,
    raw_head,
)
from loadmanager.ports.lookup import LookupService
from loadmanager.ports.lookup import Readiness as ServiceReadiness

# The errors of a host on which one of the two protocols is missing or disabled.
_NO_PROTOCOL: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


def listening_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return sockets that listen on ``host``; "" is all addresses, IPv4 and IPv6 where present.

    With port 0 all of them have the port that the first one got. Raises `OSError`: no address can
    be bound, or one of them is in use.
    """
    opened: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, (name, _, *more) in _addresses(host):
            try:
                # IPv4 has a separate socket, so that its peers have IPv4 addresses.
                address: Any = (name, port, *more)
                opened.append(socket.create_server(address, family=family, backlog=backlog))
            except OSError as error:
                why = os.strerror(error.errno or 0).lower()
                absent = OSError(error.errno, f"{name} port {port}: {why}")
                if error.errno not in _NO_PROTOCOL:
                    raise absent from error
            else:
                port = opened[0].getsockname()[1]
        if absent is not None and not opened:
            raise absent
    except OSError:
        for one in opened:
            one.close()
        raise
    return opened


def _addresses(host: str) -> list[tuple[int, tuple[Any, ...]]]:
    found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    different = dict.fromkeys((int(one[0]), one[4]) for one in found)
    return sorted(different, key=lambda one: one[0] != socket.AF_INET)


_PATHS: Final = ("/health", "/healthz", "/readyz")


class HealthAnswers:
    """The last tick, and the responses to probes according to it.

    Ticks come from one thread and requests from another, so a tick is a single value that is
    replaced as a whole. Times are on the monotonic clock.
    """

    def __init__(self, stalled_after_s: float, overdue: Callable[[], str] = str) -> None:
        self._stalled_after_s = stalled_after_s
        self.overdue = overdue
        self._tick: tuple[float, ServiceReadiness] = (0.0, ServiceReadiness(ready=False))

    def tick(self, now_s: float, readiness: ServiceReadiness) -> None:
        self._tick = (now_s, readiness)

    def silent_s(self, now_s: float) -> float:
        return now_s - self._tick[0]

    def is_stalled(self, now_s: float) -> bool:
        return self.silent_s(now_s) > self._stalled_after_s

    def response_to(self, line: bytes, now_s: float) -> bytes:
        method, _, rest = line.decode("latin-1").partition(" ")
        target, _, version = rest.partition(" ")
        path = target.partition("?")[0]
        if not version.startswith("HTTP/1."):
            return _response(400, {"reason": "the request is not valid HTTP"})
        if path not in _PATHS:
            return _response(404, {"reason": f"there is nothing here but {' and '.join(_PATHS)}"})
        if method not in {"GET", "HEAD"}:
            return _response(405, {"reason": f"{method} is not for this path"})
        status, body = self._answer(path, now_s)
        return _response(status, body, with_body=method == "GET")

    def _answer(self, path: str, now_s: float) -> tuple[int, bytes | dict[str, Any]]:
        readiness = self._tick[1]
        stalled = self.is_stalled(now_s)
        why = f"the event loop has not run for {self.silent_s(now_s):.0f} s"
        if path != "/readyz":
            why = why if stalled else self.overdue() if path == "/health" else ""
            return (503, {"reason": why}) if why else (200, b"ok")
        if stalled:
            readiness = ServiceReadiness(ready=False, reasons=(why, *readiness.reasons))
        return readiness_answer(readiness)


def readiness_answer(readiness: ServiceReadiness) -> tuple[int, dict[str, Any]]:
    document = {"troubles": list(readiness.troubles)} if readiness.troubles else {}
    if readiness.ready:
        return 200, {"ready": True, "reasons": [], **document}
    reasons = list(readiness.reasons)
    reason = "; ".join(reasons) or "not ready"
    return 503, {"ready": False, "reasons": reasons, "reason": reason, **document}


def _response(status: int, body: bytes | dict[str, Any], *, with_body: bool = True) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    kind = "text/plain; charset=utf-8" if isinstance(body, bytes) else "application/json"
    return raw_head(status, kind, len(text)) + (text if with_body else b"")


STALLED_AFTER_S: Final = 5.0
_TICK_S: Final = 0.5
_CONNECTION_S: Final = 2.0
_MAX_CONNECTIONS: Final = 64
_MAX_REQUEST_BYTES: Final = 8_192
_STOP_S: Final = 2.0
_BACKLOG: Final = 1_024

log = structlog.get_logger()


class HealthListener:
    """Answers ``/health``, ``/healthz`` and ``/readyz`` independently of the event loop.

    ``readiness`` and ``late``, with the delay of each tick in seconds, are called on the event
    loop, ``stalled``, once for each stall, and ``overdue`` on the other thread. The loop counts as
    stalled when its last tick is ``stalled_after_s`` old.
    """

    def __init__(
        self,
        readiness: Callable[[], ServiceReadiness],
        *,
        port: int,
        late: Callable[[float], None],
        stalled: Callable[[], None],
        stalled_after_s: float = STALLED_AFTER_S,
        overdue: Callable[[], str] = str,
    ) -> None:
        self._readiness = readiness
        self._port = port
        self._late = late
        self._stalled = stalled
        self._answers = HealthAnswers(stalled_after_s, overdue)
        self._ticking: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._stop = asyncio.Event()
        self._probes: dict[asyncio.WriteTransport, None] = {}

    def start(self) -> int:
        """Call it on the event loop to be watched. Raises `OSError`, which names the key."""
        try:
            listening = listening_sockets("", self._port, _BACKLOG)
        except OSError as error:
            raise OSError(
                error.errno,
                f"[sidecar] health_port: {error.strerror}; expected a free port, "
                "another one for each sidecar of a host",
            ) from None
        self._answers.tick(monotonic(), self._readiness_now())
        self._ticking = asyncio.create_task(self._tick(), name="health ticks")
        self._loop = loop = asyncio.new_event_loop()

        def serve() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._serve(listening))

        self._thread = threading.Thread(target=serve, name="health", daemon=True)
        self._thread.start()
        port = int(listening[0].getsockname()[1])
        log.info("http.health.listening", port=port)
        return port

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if self._ticking is not None:
            self._ticking.cancel()
        if thread is None:
            return
        with suppress(RuntimeError):  # It has ended by itself.
            self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(thread.join, _STOP_S)

    async def _tick(self) -> None:
        while True:
            before_s = monotonic()
            await asyncio.sleep(_TICK_S)
            now_s = monotonic()
            self._late(max(0.0, now_s - before_s - _TICK_S))
            self._answers.tick(now_s, self._readiness_now())

    def _readiness_now(self) -> ServiceReadiness:
        try:
            return self._readiness()
        except Exception:
            log.exception("http.readiness.failed")
            return ServiceReadiness(ready=False, reasons=("readiness is not known; see the log",))

    async def _serve(self, listening: list[socket.socket]) -> None:
        servers = [
            await asyncio.start_server(
                self._probed, sock=one, limit=_MAX_REQUEST_BYTES, backlog=_BACKLOG
            )
            for one in listening
        ]
        watching = asyncio.create_task(self._watch_loop())
        try:
            await self._stop.wait()
        finally:
            watching.cancel()
            for server in servers:
                server.close()
            for probe in list(self._probes):
                probe.abort()

    async def _probed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; the oldest connection is closed when there are too many."""
        transport = writer.transport
        if len(self._probes) >= _MAX_CONNECTIONS:
            next(iter(self._probes)).abort()
        self._probes[transport] = None
        with suppress(
            TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(_CONNECTION_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answers.response_to(head.partition(b"\r\n")[0], monotonic()))
                writer.close()
                await writer.wait_closed()
        self._probes.pop(transport, None)
        transport.abort()

    async def _watch_loop(self) -> None:
        """Log when the event loop stalls and when it continues, and notify systemd's watchdog."""
        stalled_since_s: float | None = None
        while True:
            now_s = monotonic()
            silent_s = self._answers.silent_s(now_s)
            if not self._answers.is_stalled(now_s):
                if not self._answers.overdue():
                    notify_watchdog()
                if stalled_since_s is not None:
                    log.warning("http.loop.recovered", stalled_s=round(now_s - stalled_since_s, 1))
                    stalled_since_s = None
            elif stalled_since_s is None:
                stalled_since_s = now_s - silent_s
                self._stalled()
                log.error("http.loop.stalled", silent_s=round(silent_s, 1))
            await asyncio.sleep(_TICK_S)


async def feed_watchdog(overdue: Callable[[], str]) -> None:
    """Notify systemd's watchdog from this loop, until cancelled, while nothing is overdue."""
    while True:
        if not overdue():
            notify_watchdog()
        await asyncio.sleep(_TICK_S)


def notify_watchdog() -> None:
    """Notify systemd's watchdog that the service is alive, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or not os.environ.get("WATCHDOG_USEC"):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        ) as notify_socket:
            notify_socket.sendto(b"WATCHDOG=1", address)
    except OSError as error:
        log.warning("http.watchdog.unreachable", why=str(error))


class Readiness(Document):
    """Whether this sidecar is ready, and the reasons if it is not."""

    ready: bool
    reasons: list[str]
    troubles: list[str] = Field(default_factory=list)
    """Other problems, such as that history cannot be written; absent if there are none."""


class Watching(Resource, tag="watching"):
    """Answers ``/metrics``, ``/healthz`` and ``/readyz``."""

    def __init__(self, lookup: LookupService, registry: CollectorRegistry) -> None:
        self._lookup = lookup
        self._registry = registry

    @operation(
        "GET /metrics",
        Reply(200, "The metrics as text, or as OpenMetrics if the client accepts that.", TEXT),
        raw=True,
    )
    async def metrics(self, request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Get all metrics, for Prometheus."""
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return bytes_reply(encode(self._registry), content_type)

    @operation("GET /healthz", Reply(200, "`ok`.", TEXT), role=Role.NOBODY)
    async def alive(self) -> str:
        """Check whether the process answers at all."""
        return "ok"

    @operation(
        "GET /readyz",
        Reply(200, "The sidecar is ready.", Readiness),
        Reply(503, "The sidecar is not ready; `reason` says why."),
        role=Role.NOBODY,
        raw=True,
    )
    async def ready(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Check whether this sidecar can answer lookups and its broker has a lease."""
        status, body = readiness_answer(self._lookup.readiness())
        return json_reply(body, status)


class Leader(Document):
    """The broker whose sidecar leads the cluster."""

    broker_id: str
    service_url: str


class Health(Resource, tag="brokers"):
    """Answers for this sidecar, from the cluster state that lookups are answered from."""

    def __init__(self, lookup: LookupService, version: str) -> None:
        self._lookup = lookup
        self._version = version

    @operation(
        "GET /admin/v2/brokers/leaderBroker",
        Reply(200, "The leader's broker.", Leader),
        Reply(404, "No leader is elected."),
    )
    async def leader_broker(self) -> Leader:
        """Get the broker whose sidecar leads the cluster."""
        leader = self._lookup.leader
        if leader is None:
            raise Refused(404, "Couldn't find leader broker")
        return Leader(broker_id=leader.broker, service_url=leader.service_url)

    @operation(
        "GET /admin/v2/brokers/health",
        "GET /admin/v2/brokers/ready",
        Reply(200, "`ok`.", TEXT),
        Reply(503, "Lookups cannot be answered; `reason` says why."),
        role=Role.NOBODY,
    )
    async def health(self) -> str:
        """Check whether lookups can be answered from a current cluster state."""
        readiness = self._lookup.readiness()
        if not readiness.ready:
            raise Refused(503, "; ".join(readiness.reasons) or "not ready")
        return "ok"

    @operation("GET /admin/v2/brokers/version", Reply(200, "The version.", TEXT), role=Role.NOBODY)
    async def version(self) -> str:
        """Get this sidecar's version."""
        return self._version

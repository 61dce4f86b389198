"""Liveness and readiness probes on a separate port and thread.

Probes must succeed while the event loop is busy with a flood of requests, and must fail once it
hangs. So the event loop records a tick with the current readiness twice a second, and another
thread answers from the last tick. That thread shares nothing else with the service: it has its
own event loop and a small server, without tokens and TLS.
"""

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, cast

import structlog

from loadmanager.adapters.http.listening import listening_sockets
from loadmanager.adapters.http.replies import raw_head
from loadmanager.ports.lookup import Readiness

_PATHS: Final = ("/health", "/healthz", "/readyz")


class HealthAnswers:
    """The last tick, and the responses to probes according to it.

    Ticks come from one thread and requests from another, so a tick is a single value that is
    replaced as a whole. Times are on the monotonic clock.
    """

    def __init__(self, stalled_after_s: float, overdue: Callable[[], str] = str) -> None:
        self._stalled_after_s = stalled_after_s
        self.overdue = overdue
        self._tick: tuple[float, Readiness] = (0.0, Readiness(ready=False))

    def tick(self, now_s: float, readiness: Readiness) -> None:
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
            readiness = Readiness(ready=False, reasons=(why, *readiness.reasons))
        return readiness_answer(readiness)


def readiness_answer(readiness: Readiness) -> tuple[int, dict[str, Any]]:
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


@dataclass(frozen=True, slots=True)
class LoopWatch:
    """Callbacks about the event loop: the delay of each tick (seconds), and each stall."""

    late: Callable[[float], None]
    stalled: Callable[[], None]


class HealthListener:
    """Answers ``/health``, ``/healthz`` and ``/readyz`` independently of the event loop.

    ``readiness`` is called on the event loop, ``watch.stalled`` and ``overdue`` on the other
    thread. The loop counts as stalled when its last tick is ``stalled_after_s`` old.
    """

    def __init__(
        self,
        readiness: Callable[[], Readiness],
        *,
        port: int,
        watch: LoopWatch,
        stalled_after_s: float = STALLED_AFTER_S,
        overdue: Callable[[], str] = str,
    ) -> None:
        self._readiness = readiness
        self._port = port
        self._watch = watch
        self._answers = HealthAnswers(stalled_after_s, overdue)
        self._ticking: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._running = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

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
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listening)), name="health", daemon=True
        )
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
        await asyncio.to_thread(self._running.wait, _STOP_S)
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and thread.is_alive():
            loop.call_soon_threadsafe(stop.set)
        await asyncio.to_thread(thread.join, _STOP_S)

    async def _tick(self) -> None:
        while True:
            before_s = monotonic()
            await asyncio.sleep(_TICK_S)
            now_s = monotonic()
            self._watch.late(max(0.0, now_s - before_s - _TICK_S))
            self._answers.tick(now_s, self._readiness_now())

    def _readiness_now(self) -> Readiness:
        try:
            return self._readiness()
        except Exception:
            log.exception("http.readiness.failed")
            return Readiness(ready=False, reasons=("readiness is not known; see the log",))

    async def _serve(self, listening: list[socket.socket]) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._stop = stop = asyncio.Event()
        self._running.set()
        probes: dict[_Probe, None] = {}
        servers = [
            await loop.create_server(
                lambda: _Probe(self._answers, probes), sock=one, backlog=_BACKLOG
            )
            for one in listening
        ]
        watching = asyncio.create_task(self._watch_loop())
        try:
            await stop.wait()
        finally:
            watching.cancel()
            for server in servers:
                server.close()
            for probe in list(probes):
                probe.abort()

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
                self._watch.stalled()
                log.error("http.loop.stalled", silent_s=round(silent_s, 1))
            await asyncio.sleep(_TICK_S)


class _Probe(asyncio.Protocol):
    """One connection with one request; the oldest is closed when there are too many."""

    def __init__(self, answers: HealthAnswers, probes: "dict[_Probe, None]") -> None:
        self._answers = answers
        self._probes = probes
        self._got = b""
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._deadline = asyncio.get_running_loop().call_later(_CONNECTION_S, self.abort)
        if len(self._probes) >= _MAX_CONNECTIONS:
            next(iter(self._probes)).abort()
        self._probes[self] = None

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._transport is None or self._transport.is_closing():
            return
        if b"\r\n\r\n" in self._got:
            line = self._got.partition(b"\r\n")[0]
            self._transport.write(self._answers.response_to(line, monotonic()))
            self._transport.close()
        elif len(self._got) > _MAX_REQUEST_BYTES:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._probes.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()

    def abort(self) -> None:
        self._probes.pop(self, None)
        if self._transport is not None:
            self._transport.abort()


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

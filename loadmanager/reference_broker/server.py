"""The in-memory broker over HTTP: the broker contract, and publishing.

``POST /publish/{domain}/{tenant}/{namespace}/{topic}`` takes the body as one message.
A topic of a bundle that is not served here gets 421 (Misdirected Request): the client must look
up the owner again. It is not 404, because that is the answer to a wrong path.
"""

import asyncio
import os
import signal
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from loadmanager import __version__
from loadmanager.adapters.broker.contract import (
    PREFIX,
    Body,
    ErrorAnswer,
    LeaseAnswer,
    LeaseRequest,
    LoadRequest,
    PublishAnswer,
    StatsAnswer,
    TopicsAnswer,
    UnloadRequest,
    parsed,
    parsed_query,
    require_secret,
)
from loadmanager.core.errors import InvalidName, LoadManagerError, MalformedContent
from loadmanager.core.hashing import DEFAULT_HASH, HashName
from loadmanager.core.ids import BundleId, TopicName, parse_bundle, topic_from_parts
from loadmanager.ports.broker import StaleAgent
from loadmanager.reference_broker.changes import (
    Accepted,
    Change,
    LeaseLost,
    NoLease,
    NotNow,
    NotServed,
    RecordFile,
    StaleToken,
    Stopped,
    TopicNotServed,
)
from loadmanager.reference_broker.memory_broker import MemoryBroker

log = structlog.get_logger()

_UNAVAILABLE: Final = 503
_STATUS: Final[Mapping[type[LoadManagerError], int]] = {
    StaleAgent: 409,
    StaleToken: 412,
    NotNow: _UNAVAILABLE,
    NotServed: 404,
    MalformedContent: 400,
    InvalidName: 400,
    NoLease: _UNAVAILABLE,
    TopicNotServed: 421,
}
_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    401: {"WWW-Authenticate": "Bearer"},
    # A lease comes back within a renewal interval, about a second.
    _UNAVAILABLE: {"Retry-After": "1"},
}
# Time that other requests, such as the agent's commands, wait for one slice of work.
_CPU_SLICE_S: Final = 0.005

_WELCOME: Final = f"""\
The in-memory topic broker of loadmanager, for demonstrations and tests.
It keeps no message: it counts what is published and answers.

  POST /publish/{{domain}}/{{tenant}}/{{namespace}}/{{topic}}   publish the body as one message
  GET  {PREFIX}/health
  GET  {PREFIX}/stats
  GET  {PREFIX}/bundles/{{tenant}}/{{namespace}}/{{range}}/topics
  PUT  {PREFIX}/lease
  PUT  {PREFIX}/bundles/{{tenant}}/{{namespace}}/{{range}}
  DELETE {PREFIX}/bundles/{{tenant}}/{{namespace}}/{{range}}?agentEpoch=N&fencingToken=N
"""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Settings of the server; requests of the contract need ``control_secret``, "" for none.

    ``cpu_s_per_message`` is really spent. ``max_waiting`` publishes may wait for the current one.
    """

    version: str = ""
    process_id: int | None = None
    cpu_s_per_message: float = 0.0
    max_body_bytes: int = 1024 * 1024
    max_waiting: int = 1000
    body_timeout_s: float = 10.0
    shutdown_s: float = 2.0
    control_secret: str = ""


def broker_application(broker: MemoryBroker, options: ServerOptions) -> web.Application:
    """Return the routes of ``broker``, for `serve` or for inspection."""
    return _Routes(broker, options).application()


async def serve(
    broker: MemoryBroker, listening: socket.socket, options: ServerOptions, stopping: asyncio.Event
) -> None:
    """Serve on ``listening`` until ``stopping`` is set, then stop the broker and return."""
    application = broker_application(broker, options)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=options.shutdown_s)
    await runner.setup()
    try:
        await web.SockSite(runner, listening, backlog=1024).start()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(broker.watch_leases())
            await stopping.wait()
            watching.cancel()
    finally:
        broker.stop()
        await runner.cleanup()


class _Routes:
    def __init__(self, broker: MemoryBroker, options: ServerOptions) -> None:
        self._broker = broker
        self._options = options
        # One message at a time, so that an unload waits for one, not for a whole queue.
        self._turn = asyncio.Lock()
        self._waiting = 0

    def application(self) -> web.Application:
        secret = self._options.control_secret
        application = web.Application(
            middlewares=[_with_reasons, require_secret(secret)] if secret else [_with_reasons],
            client_max_size=self._options.max_body_bytes,
        )
        bundle = PREFIX + "/bundles/{tenant}/{namespace}/{range}"
        application.add_routes(
            [
                web.get("/", self._welcome),
                web.get(f"{PREFIX}/health", self._health),
                web.get(f"{PREFIX}/stats", self._stats),
                web.put(f"{PREFIX}/lease", self._lease),
                web.get(f"{bundle}/topics", self._topics),
                web.put(bundle, self._load),
                web.delete(bundle, self._unload),
                web.post("/publish/{domain}/{tenant}/{namespace}/{topic}", self._publish),
            ]
        )
        return application

    async def _welcome(self, _request: web.Request) -> web.Response:
        return web.Response(text=_WELCOME)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _stats(self, _request: web.Request) -> web.Response:
        options, stats = self._options, self._broker.stats()
        stats = replace(stats, version=options.version, process_id=options.process_id)
        return _json(StatsAnswer.of(stats))

    async def _topics(self, request: web.Request) -> web.Response:
        return _json(TopicsAnswer.busiest_of(self._broker.topics(_bundle(request))))

    async def _lease(self, request: web.Request) -> web.Response:
        wanted = parsed(LeaseRequest, await self._body(request), "PUT lease")
        state = self._broker.renew_lease(
            agent_epoch=wanted.agent_epoch,
            until_s=wanted.until_seconds,
            incarnation=wanted.incarnation,
        )
        return _json(LeaseAnswer.of(state))

    async def _load(self, request: web.Request) -> web.Response:
        bundle = _bundle(request)
        wanted = parsed(LoadRequest, await self._body(request), f"PUT {bundle}")
        self._broker.load(bundle, **vars(wanted))
        return web.Response(status=204)

    async def _unload(self, request: web.Request) -> web.Response:
        bundle = _bundle(request)
        wanted = parsed_query(UnloadRequest, request.query, f"DELETE {bundle}")
        await self._broker.unload(bundle, **vars(wanted))
        return web.Response(status=204)

    async def _publish(self, request: web.Request) -> web.Response:
        topic = _topic(request)
        payload = await self._body(request)
        if self._waiting >= self._options.max_waiting:
            return _refused(_UNAVAILABLE, f"{self._waiting} messages are waiting already")
        self._waiting += 1
        try:
            async with self._turn:
                accepted = await self._work_on(topic, _producer(request), len(payload))
        finally:
            self._waiting -= 1
        return _json(
            PublishAnswer(
                incarnation=self._broker.incarnation,
                bundle=accepted.bundle,
                fencing_token=accepted.fencing_token,
                clock_seconds=accepted.clock_s,
            )
        )

    async def _work_on(self, topic: TopicName, producer: str, payload_bytes: int) -> Accepted:
        ticket = self._broker.begin_publish(topic)
        try:
            await spend_cpu(self._options.cpu_s_per_message)
        except asyncio.CancelledError:
            self._broker.abandon(ticket)
            raise
        return self._broker.finish_publish(ticket, producer=producer, payload_bytes=payload_bytes)

    async def _body(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(self._options.body_timeout_s):
                return await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(
                reason=f"no whole body within {self._options.body_timeout_s:g} s"
            ) from None


async def spend_cpu(cpu_s: float) -> None:
    """Spend CPU time of this thread in slices: on a busy machine it takes longer, not more."""
    left_s = cpu_s
    while left_s > 0:
        # Also before the first slice: otherwise a hundred requests that arrive together would
        # all be served before the next command.
        await asyncio.sleep(0)
        began_s = time.thread_time()
        until_s = began_s + min(left_s, _CPU_SLICE_S)
        while time.thread_time() < until_s:
            pass
        left_s -= time.thread_time() - began_s


@web.middleware
async def _with_reasons(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer each refusal in the contract's form, ``{"reason": ...}``."""
    try:
        return await handler(request)
    except tuple(_STATUS) as error:
        return _refused(_STATUS[type(error)], str(error))
    except web.HTTPException as error:
        return _refused(error.status, f"{request.method} {request.path[:200]}: {error.reason}")


def _refused(status: int, reason: str) -> web.Response:
    return _json(ErrorAnswer(reason=reason), status)


def _json(body: Body, status: int = 200) -> web.Response:
    headers = {"Content-Type": "application/json", **_HEADERS.get(status, {})}
    return web.Response(body=body.to_json(), status=status, headers=headers)


def _bundle(request: web.Request) -> BundleId:
    parts = request.match_info
    return parse_bundle(f"{parts['tenant']}/{parts['namespace']}/{parts['range']}")


def _topic(request: web.Request) -> TopicName:
    parts = request.match_info
    return topic_from_parts(parts["domain"], parts["tenant"], parts["namespace"], parts["topic"])


def _producer(request: web.Request) -> str:
    """Return the producer: the ``X-Producer`` header, or else the client's connection."""
    peer = request.transport.get_extra_info("peername") if request.transport else None
    return request.headers.get("X-Producer") or str(peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(ServerOptions):
    """Settings of ``loadmanager broker``. Port 0 chooses a free one."""

    host: str
    port: int
    record: Path | None = None
    hash_name: HashName = DEFAULT_HASH


async def run_broker(settings: BrokerSettings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``announce`` the URL once connections are accepted."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with ExitStack() as held:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listening = held.enter_context(
            socket.create_server((settings.host, settings.port), family=family, backlog=1024)
        )
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{shown}:{listening.getsockname()[1]}"
        file = None
        if settings.record is not None:
            file = held.enter_context(closing(RecordFile(settings.record)))

        def record(change: Change) -> None:
            if file is not None:
                file.write(change)
            _log(address, change)

        broker = MemoryBroker(
            broker=address,
            incarnation=uuid.uuid4().hex,
            clock_s=time.monotonic,
            record=record,
            hash_name=settings.hash_name,
        )
        options = replace(settings, version=__version__, process_id=os.getpid())
        # The socket already listens; connections are served from now on.
        announce(f"http://{address}")
        await serve(broker, listening, options, stopping)


def _log(address: str, change: Change) -> None:
    if isinstance(change, LeaseLost):
        log.warning(
            "broker.lease.lost",
            broker=address,
            agent_epoch=change.agent_epoch,
            noticed_after_s=round(change.at_s - change.until_s, 3),
        )
    elif isinstance(change, Stopped):
        log.info("broker.process.stopped", broker=address)

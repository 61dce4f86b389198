import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from loadmanager.adapters.host.processes import listener_on
from loadmanager.adapters.http.assign_client import assign_route
from loadmanager.adapters.http.describing import Describing
from loadmanager.adapters.http.health_listener import (
    Health,
    HealthListener,
    Watching,
    listening_sockets,
)
from loadmanager.adapters.http.live.page import Feed, Forwarder, LivePage
from loadmanager.adapters.http.lookups import Answers, FastPath, Lookups
from loadmanager.adapters.http.protocol import Admission, ConnectionServer
from loadmanager.adapters.http.routes import (
    Refused,
    Role,
    Route,
    RouteTable,
    refusal_of,
    refusal_reply,
    target_of,
)
from loadmanager.adapters.http.security.guard import Guard
from loadmanager.adapters.http.security.tls import TlsFiles
from loadmanager.config.sections import HttpSettings, LookupSettings
from loadmanager.core.errors import LoadManagerError
from loadmanager.ports.lookup import LookupService
from loadmanager.telemetry.metrics import LookupMetrics

log = structlog.get_logger()


class HttpServer:
    """Serves one `LookupService` over HTTP.

    Its own routes have precedence over ``more_routes``. Without a ``guard`` every caller may do
    everything. The files of ``tls`` are read again every ``tls_refresh_s``. Streams of the live
    page's ``feed`` end when the server stops. ``refused`` is called with the reason for each
    refused connection or request.
    """

    def __init__(
        self,
        lookup: LookupService,
        *,
        metrics: LookupMetrics,
        registry: CollectorRegistry,
        version: str,
        settings: HttpSettings | None = None,
        lookups: LookupSettings | None = None,
        more_routes: Sequence[Route] = (),
        guard: Guard | None = None,
        tls: TlsFiles | None = None,
        tls_refresh_s: float = 60.0,
        health: HealthListener | None = None,
        feed: Feed | None = None,
        forwarder: Forwarder | None = None,
        count_failure: Callable[[], None] = lambda: None,
        refused: Callable[[str], None] = lambda _why: None,
    ) -> None:
        self._refused = refused
        self._health = health
        self._feed = feed
        self._forwarder = forwarder
        self._count_failure = count_failure
        self._guard = guard
        self._tls = tls
        self._tls_refresh_s = tls_refresh_s
        self._refreshing: asyncio.Task[None] | None = None
        self._settings = settings = settings or HttpSettings()
        answers = Answers(lookup)
        self._fast_path = FastPath(answers, metrics, settings.max_head_bytes)
        lookups = lookups or LookupSettings()
        self._lookups = Lookups(lookup, answers, self._fast_path, metrics, lookups)
        routes = [
            *self._lookups.routes(),
            *Health(lookup, version).routes(),
            assign_route(lookup),
            *Watching(lookup, registry).routes(),
            *([] if feed is None else LivePage(feed).routes()),
            *more_routes,
        ]
        self._table = RouteTable([*routes, *Describing(version, routes).routes()])
        self._server: ConnectionServer | None = None
        self._listening = AsyncExitStack()

    async def start(self, host: str, port: int) -> int:
        """Listen on ``host`` ("" for all addresses) and return the port, a free one for 0.

        Raises `OSError`: it cannot listen on the address, or on the port for probes.
        """
        admission = Admission(self._settings, self._refused)
        server = ConnectionServer(self._handle, self._fast_path, admission, self._count_failure)
        context = None if self._tls is None else self._tls.context
        sockets = _sockets(host, port, self._settings.backlog)
        bound = int(sockets[0].getsockname()[1])
        await self._listening.enter_async_context(server.listening(sockets, context))
        self._server = server
        if self._health is not None:
            try:
                self._health.start()
            except OSError:
                await self.stop()
                raise
        if self._tls is not None:
            self._refreshing = asyncio.create_task(self._refresh(self._tls), name="tls files")
        log.info("http.server.listening", host=host or "*", port=bound)
        return bound

    def tune(self, lookups: LookupSettings) -> None:
        """Change the limit of waiting lookups, and the ``Retry-After`` of those above it."""
        self._lookups.settings = lookups

    async def stop(self) -> None:
        """Stop accepting connections, let requests under way finish within ``stop_s``, close."""
        if self._refreshing is not None:
            self._refreshing.cancel()
        if self._feed is not None:
            await self._feed.close()
        await self._listening.aclose()
        if self._server is not None:
            self._server = None
            log.info("http.server.closed")
        if self._health is not None:
            await self._health.stop()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            proofs = request.headers.getall("Authorization", ())
            if len(proofs) > 1:  # A proxy may have checked the other one.
                text = f"the request has {len(proofs)} Authorization headers; expected one"
                raise Refused(400, text)
            known = self._lookups.remembered(request)
            if known is not None:
                if self._guard is not None:
                    known.until_s = self._guard.admit(request, Role.LOOKUP).until_s
                return known
            route, target = self._table.find(request.method, target_of(request.raw_path))
            if self._guard is None or route.role is Role.NOBODY:
                return await route.handler(request, target)
            return await self._guard.through(
                request, route.role, lambda: route.handler(request, target)
            )
        except LoadManagerError as error:
            refused = refusal_of(error)
        if self._forwarder is not None and self._forwarder.wanted(request, refused):
            try:
                return await self._forwarder.forward(request, refused)
            except LoadManagerError as error:
                refused = refusal_of(error)
        return refusal_reply(refused)

    async def _refresh(self, tls: TlsFiles) -> None:
        while True:
            await asyncio.sleep(self._tls_refresh_s)
            tls.refresh()


def _sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Raises `OSError`: the message names the keys, and the process that uses the port if known."""
    try:
        return listening_sockets(host, port, backlog)
    except OSError as error:
        keys, expected, holder = "listen_host or listen_port", "an address of this host", None
        if error.errno == errno.EADDRINUSE:
            keys, expected, holder = "listen_port", "a free port", listener_on(port)
        by = f", by {holder.name} (process {holder.process_id})" if holder else ""
        raise OSError(
            error.errno, f"{error.strerror}{by}; expected {expected} as [sidecar] {keys}"
        ) from error

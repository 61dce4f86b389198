"""The HTTP door: one server for lookups, admin calls, the leader's line and metrics."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from loadmanager.adapters.http.admin.health import Health
from loadmanager.adapters.http.answers import Answers
from loadmanager.adapters.http.describing import Describing
from loadmanager.adapters.http.express import Express
from loadmanager.adapters.http.leading import Leading
from loadmanager.adapters.http.lookups import DoorMode, Lookups
from loadmanager.adapters.http.protocol import DoorServer
from loadmanager.adapters.http.replies import refusal_of, refusal_reply
from loadmanager.adapters.http.routes import Route, RouteTable, target_of
from loadmanager.adapters.http.watching import Watching
from loadmanager.core.errors import LoadManagerError
from loadmanager.ports import LookupService
from loadmanager.telemetry.lookups import LookupMetrics

log = structlog.get_logger()

Guard = Callable[[web.BaseRequest, Route], Awaitable[None]]
"""Raises `Refused` for a request whose caller may not do what the route's role asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    """How the door behaves.

    Attributes:
        mode: ``answer`` always answers by itself; ``redirect`` sends clients on to who
            decides, as Pulsar's brokers do.
        max_concurrent: lookups that may wait for an owner at once; more get 503.
        retry_after_s: when those are told to come back, and up to 4 s later.
        max_body_bytes: a longer request body gets 413.
        max_url_bytes: a longer URL gets 414.
        keepalive_s: how long an idle connection stays open. Longer than the idle time
            of a proxy in front, or it will send into closed connections.
        stop_s: how long requests under way may take when the door closes.
        backlog: connections the kernel holds until they are accepted.
        max_remembered_answers: bound on the memory of answers given.
    """

    mode: DoorMode = "answer"
    max_concurrent: int = 50_000
    retry_after_s: float = 1.0
    max_body_bytes: int = 1_048_576
    max_url_bytes: int = 8_190
    keepalive_s: float = 75.0
    stop_s: float = 5.0
    backlog: int = 1_024
    max_remembered_answers: int = 65_536


class HttpDoor:
    """Serves one `LookupService` over HTTP.

    Args:
        lookup: the application.
        metrics: told of each lookup's outcome.
        registry: what ``/metrics`` exposes.
        version: what ``/admin/v2/brokers/version`` and the API's description tell.
        settings: see `DoorSettings`.
        more_routes: routes of others, such as a dashboard's; the door's own come first.
        guard: asked before each request that is not answered from memory.
    """

    def __init__(
        self,
        lookup: LookupService,
        *,
        metrics: LookupMetrics,
        registry: CollectorRegistry,
        version: str,
        settings: DoorSettings | None = None,
        more_routes: Sequence[Route] = (),
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self._settings = settings = settings or DoorSettings()
        answers = Answers(lookup, settings.max_remembered_answers)
        self._express = Express(answers, metrics)
        self._lookups = Lookups(
            lookup,
            answers,
            self._express,
            metrics,
            mode=settings.mode,
            max_concurrent=settings.max_concurrent,
            retry_after_s=settings.retry_after_s,
        )
        self._table = RouteTable(
            [
                *self._lookups.routes(),
                *Health(lookup, version).routes(),
                *Describing(version).routes(),
                *Leading(lookup).routes(),
                *Watching(lookup, registry).routes(),
                *more_routes,
            ]
        )
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port: the one given, or a free one for 0.

        Raises:
            OSError: the address cannot be listened on.
        """
        server = DoorServer(
            self._handle,
            self._express,
            max_body_bytes=self._settings.max_body_bytes,
            max_url_bytes=self._settings.max_url_bytes,
            keepalive_s=self._settings.keepalive_s,
        )
        runner = web.ServerRunner(server, shutdown_timeout=self._settings.stop_s)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, backlog=self._settings.backlog).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        bound = int(runner.addresses[0][1])
        log.info("http.door.opened", host=host, port=bound, mode=self._settings.mode)
        return bound

    async def stop(self) -> None:
        """Take no more connections, let requests under way finish within ``stop_s``, close."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
            log.info("http.door.closed")

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        known = self._lookups.remembered(request)
        if known is not None:
            return known
        try:
            route, target = self._table.find(request.method, target_of(request.raw_path))
            if self._guard is not None:
                await self._guard(request, route)
            return await route.handler(request, target)
        except LoadManagerError as error:
            return refusal_reply(refusal_of(error))

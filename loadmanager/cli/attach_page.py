import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import nan
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.http.listening import TimedSite, listening_sockets
from loadmanager.adapters.http.live.feed import Feed, OverviewReader
from loadmanager.adapters.http.live.page import LivePage
from loadmanager.adapters.http.protocol import Admission, ConnectionServer
from loadmanager.adapters.http.replies import (
    Refused,
    bytes_reply,
    empty_reply,
    json_reply,
    refusal_reply,
    unavailable,
)
from loadmanager.adapters.http.routes import Role, Route, RouteTable, Target, target_of
from loadmanager.adapters.http.security.guard import (
    OwnNames,
    asked_hosts,
    is_forwarded,
    refuse_foreign_hosts,
    refuse_foreign_page,
)
from loadmanager.admin.balancing import BalancingState
from loadmanager.admin.overview import overview_document
from loadmanager.attach.observation import Observation
from loadmanager.attach.pulsar_balancer import SHEDDING
from loadmanager.attach.state import Course, State, StateUnusable
from loadmanager.attach.tasks import Proposal
from loadmanager.common.overview import (
    MOST_BROKERS,
    MOST_DECISIONS,
    MOST_TASKS,
    most_refused,
    scarcest_first,
)
from loadmanager.config.deployment import HttpSettings
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.bundle_task import BundleTask
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.explaining import Decision, Outcome
from loadmanager.core.move_limits import HeldReason
from loadmanager.ports.leading import TaskList
from loadmanager.ports.lookup import Unavailable
from loadmanager.ports.overview import BrokerUse, MissingBroker, Overview
from loadmanager.telemetry.metrics import AttachMetrics


class PortUnusable(LoadManagerError):
    pass


LIMITS: Final = HttpSettings(max_connections=256, max_head_bytes=16_384, max_body_bytes=65_536)


@asynccontextmanager
async def listening(
    routes: Iterable[Route],
    option: str,
    port: int,
    host: str,
    check: Callable[[web.BaseRequest], None] = lambda _: None,
) -> AsyncIterator[ConnectionServer]:
    """Serve ``routes`` within `LIMITS`; ``check`` refuses requests before they are looked at.

    Raises `PortUnusable`: the port cannot be listened on; ``option`` is what names it.
    """
    table = RouteTable(routes)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            check(request)
            route, target = table.find(request.method, target_of(request.raw_path))
            return await route.handler(request, target)
        except Refused as refused:
            return refusal_reply(refused)

    server = ConnectionServer(handle, None, Admission(LIMITS, lambda _: None), lambda: None)
    runner = web.ServerRunner(server, shutdown_timeout=1.0)
    await runner.setup()
    watching = asyncio.create_task(server.watch())
    try:
        try:
            for one in listening_sockets(host, port, LIMITS.backlog):
                await TimedSite(runner, one, server=server, handshake_s=LIMITS.head_s).start()
        except OSError as error:
            why = error.strerror or str(error)
            raise PortUnusable(f"{option} {port}: {why}; expected a free port") from None
        yield server
    finally:
        watching.cancel()
        await runner.cleanup()


@asynccontextmanager
async def served_metrics(port: int | None, host: str) -> AsyncIterator[AttachMetrics]:
    """Yield metrics, served at ``/metrics`` of a port; None serves none."""
    registry = CollectorRegistry()
    metrics = AttachMetrics(registry)
    if port is None:
        yield metrics
        return

    async def show(_request: web.BaseRequest, _target: Target) -> web.Response:
        return bytes_reply(generate_latest(registry), CONTENT_TYPE_LATEST)

    routes = [Route("GET", "/metrics", show, Role.READ)]
    async with listening(routes, "--metrics-port", port, host):
        yield metrics


def show_window(metrics: AttachMetrics, seen: Observation) -> None:
    differing = seen.cluster.differing(SHEDDING)
    metrics.pulsar_shedding.set(nan if not differing else float("true" in differing))
    for reason in HeldReason:
        metrics.held.labels(reason.value).set(reason in seen.holds)
    metrics.max_over_mean.set(nan if seen.plan is None else seen.plan.max_over_mean)
    metrics.least_max_over_mean.set(nan if seen.plan is None else seen.plan.least_max_over_mean)
    metrics.brokers.set(len(seen.cluster.brokers))
    metrics.brokers_missing.set(len(seen.missing))
    metrics.listed_twice.set(len(seen.twice))


_NAME: Final = "attach"
_ADMIN: Final = "/admin/v2/loadmanager"
_BY: Final = "paused by "
_LONGEST: Final = 200
_RETRY_AFTER_S: Final = 10.0


@dataclass(slots=True)
class PageSteering:
    """Pauses and resumes the balancer of this process, as ``--pause`` and ``--resume`` do."""

    balances: bool
    proposals: Sequence[Proposal] = ()
    _state: State | None = None
    _report: Callable[[str], None] = lambda _: None
    _paused: str = ""

    @contextmanager
    def open(self, state: State, report: Callable[[str], None]) -> Iterator[None]:
        self._state, self._report = state, report
        try:
            yield
        finally:
            self._state = None

    @property
    def actions(self) -> tuple[str, ...]:
        return () if self._state is None else ("pause", "resume")

    @property
    def balancing(self) -> Balancing:
        if self._paused:
            return Balancing(mode=BalancingMode.PAUSED, by=self._paused.removeprefix(_BY))
        return Balancing(mode=BalancingMode.ACTIVE if self.balances else BalancingMode.OBSERVING)

    def held(self, why: str) -> str:
        """Keep the reason why a round moves nothing; return it, "" for a pause."""
        self._paused = why if why.startswith(_BY) else ""
        return "" if self._paused else why

    def routes(self) -> list[Route]:
        path = f"{_ADMIN}/balancing"
        return [
            Route("GET", path, self._get, Role.READ),
            Route("PUT", f"{path}/pause", self._pause, Role.ADMIN),
            Route("PUT", f"{path}/resume", self._resume, Role.ADMIN),
            Route("GET", f"{_ADMIN}/plan", self._plan, Role.READ),
        ]

    async def _get(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        return json_reply(BalancingState.model_validate(self.balancing))

    async def _plan(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        moves = [
            {"bundle": m.bundle, "source": m.source, "target": m.target, "meaning": m.reason}
            for m in self.proposals
        ]
        return json_reply({"moves": moves, "optimality": None, "withMoves": None})

    async def _pause(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        state = self._open_to(request)
        at = datetime.now(tz=UTC).isoformat(timespec="seconds")
        reason = " ".join(target.query("reason").split())[:_LONGEST]
        why = f"{_BY}the live page at {at}{f': {reason}' if reason else ''}"
        try:
            await state.pause(why)
        except StateUnusable as error:
            raise unavailable(str(error), _RETRY_AFTER_S) from None
        self._paused = why
        self._report(f"{why}: nothing moves until it is resumed")
        return empty_reply(204)

    async def _resume(self, request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        state = self._open_to(request)
        try:
            await state.resume()
        except StateUnusable as error:
            raise unavailable(str(error), _RETRY_AFTER_S) from None
        self._paused = ""
        self._report("not paused any more: resumed by the live page")
        return empty_reply(204)

    def _open_to(self, request: web.BaseRequest) -> State:
        refuse_foreign_page(request, OwnNames())
        if is_forwarded(request):
            raise Refused(403, "a proxy passes the request on; only this host may pause and resume")
        if self._state is None:
            raise unavailable("this process makes no moves now; expected --balance", _RETRY_AFTER_S)
        return self._state


@dataclass(slots=True)
class AttachOverviews:
    """Keeps what the page shows; ``waits`` names what makes moves instead of this process, or "".

    It is shown until the first observation is over, and once another controller goes on.
    """

    steering: PageSteering
    waits: Callable[[], str] = lambda: ""
    course: Course = field(default_factory=Course)
    _clock: SystemClock = field(default_factory=SystemClock)
    _began_ms: int = 0
    _seen: Observation | None = None
    _held: str = ""
    _rounds: int = 0
    _epoch: int = 0
    _decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=MOST_DECISIONS))
    _tasks: dict[int, BundleTask] = field(default_factory=dict)

    def round(self, seen: Observation, held: str) -> None:
        at_ms = self._clock.wall_ms()
        self._began_ms = self._began_ms or at_ms
        self._seen, self._held = seen, self.steering.held(held)
        self.steering.proposals = seen.proposals
        self._rounds += 1
        self.course.note(seen, at_ms)
        moves = self.steering.balances and not held
        for one in seen.proposals:
            self._decisions.appendleft(
                Decision(
                    at_ms=at_ms,
                    epoch=self._epoch,
                    round=self._rounds,
                    subject=one.bundle,
                    outcome=Outcome.MOVED if moves else Outcome.OBSERVED,
                    code=one.cause,
                    detail=one.reason,
                    source=one.source,
                    target=one.target,
                )
            )

    def task(self, task: BundleTask) -> None:
        self._epoch = task.epoch
        self._tasks.pop(task.number, None)
        self._tasks[task.number] = task
        while len(self._tasks) > MOST_TASKS:
            del self._tasks[next(iter(self._tasks))]

    def end(self) -> None:
        self._seen, self.steering.proposals = None, ()
        self._decisions.clear()
        self._tasks.clear()

    def overview(self) -> Overview:
        """Return the cluster at a glance; raises `Unavailable` until it was observed."""
        seen, at_ms = self._seen, self._clock.wall_ms()
        if seen is None:
            raise Unavailable(self.waits() or "no window of the cluster is over yet")
        brokers = scarcest_first(_brokers(seen))
        tasks = sorted(self._tasks.values(), key=lambda one: (one.state.ended, -one.number))
        return Overview(
            cluster=seen.cluster.name,
            leader=_NAME,
            epoch=self._epoch,
            since_ms=self._began_ms,
            at_ms=at_ms,
            measure="rate",
            balancing=self.steering.balancing,
            course=self.course.points(at_ms),
            brokers=brokers[:MOST_BROKERS],
            brokers_in_all=len(brokers),
            resources=(),
            bundles=sum(one.bundles for one in brokers),
            unowned=0,
            missing=[MissingBroker(broker=one, why=why) for one, why in seen.missing.items()],
            tasks=TaskList(
                tasks=tasks,
                found=len(tasks),
                leader=_NAME,
                epoch=self._epoch,
                at_ms=at_ms,
                now_s=self._clock.monotonic_s(),
            ),
            refusals=most_refused(seen.refusals),
            decisions=tuple(self._decisions),
            held=self._held,
            actions=self.steering.actions,
        )


def _brokers(seen: Observation) -> list[BrokerUse]:
    return [
        BrokerUse(
            broker=broker,
            bundles=len(sample.bundles),
            topics=sum(one.topics for one in sample.bundles.values()),
            msgs_per_s=sum(one.msgs_per_s for one in sample.bundles.values()),
            bytes_per_s=sum(one.bytes_per_s for one in sample.bundles.values()),
        )
        for broker, sample in seen.samples.items()
    ]


@asynccontextmanager
async def served_page(port: int | None, *, balances: bool) -> AsyncIterator[AttachOverviews]:
    overviews = AttachOverviews(PageSteering(balances=balances))
    if port is None:
        yield overviews
        return
    feed = Feed(OverviewReader(lambda: overview_document(overviews.overview()), _NAME))
    routes = (*LivePage(feed).routes(), *overviews.steering.routes())
    async with listening(routes, "--page", port, "127.0.0.1", _check_host):
        try:
            yield overviews
        finally:
            await feed.close()


def _check_host(request: web.BaseRequest) -> None:
    refuse_foreign_hosts(asked_hosts(request), OwnNames())

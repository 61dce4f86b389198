"""What a controller shows and records: its page, its metrics, and the history of its term."""

import asyncio
import re
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import nan
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from loadmanager import __version__
from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.history.sink import ThreadedHistory
from loadmanager.adapters.http.describing import Describing
from loadmanager.adapters.http.health_listener import feed_watchdog, listening_sockets
from loadmanager.adapters.http.live.page import Feed, LivePage, OverviewReader
from loadmanager.adapters.http.protocol import Admission, ConnectionServer
from loadmanager.adapters.http.routes import (
    Refused,
    Role,
    Route,
    RouteTable,
    Target,
    bytes_reply,
    json_reply,
    refusal_of,
    refusal_reply,
    target_of,
    text_reply,
)
from loadmanager.adapters.http.security.guard import (
    READING,
    OwnNames,
    asked_hosts,
    is_forwarded,
    refuse_foreign_hosts,
    refuse_foreign_page,
)
from loadmanager.admin.decisions import Tasks
from loadmanager.admin.documents import TasksDocument, TasksQuery, tasks_document
from loadmanager.admin.overview import (
    BROKER_ACTIONS,
    MOST_DECISIONS,
    MOST_TASKS,
    MissingDocument,
    OverviewDocument,
    Overviews,
    broker_document,
    most_refused,
    overview_document,
)
from loadmanager.config.sections import HistorySettings, HttpSettings
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.bundle_task import BundleTask, TaskKind, TaskState
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.explaining import Decision, Outcome, move_decision
from loadmanager.core.history.records import Origin
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.move_limits import HeldReason
from loadmanager.core.plan import Reason, Refusal
from loadmanager.core.splitting.cutting import parts_at
from loadmanager.leader.records import HistoryRecorder
from loadmanager.ports.history import HistorySink, NoHistory, offer_report
from loadmanager.ports.lookup import Unavailable
from loadmanager.pulsar.balancing import Log
from loadmanager.pulsar.held_brokers import AttachDrains, AttachModes, Control, pause_of
from loadmanager.pulsar.moves import STUCK_S
from loadmanager.pulsar.observation import Observation, Strategy
from loadmanager.pulsar.state import SHEDDING, Course
from loadmanager.telemetry.logging import warnings_alone
from loadmanager.telemetry.metrics import AttachMetrics, HistoryMetrics


def _refusals(seen: Observation, held: str) -> tuple[Refusal, ...]:
    found = [Refusal(broker, Reason.LOAD_UNKNOWN, why) for broker, why in seen.missing.items()]
    found += [Refusal(bundle, Reason.NOT_OFFERED, why) for bundle, why in seen.staying.items()]
    if held:
        return (Refusal("", Reason.COOLING_DOWN, held), *found)
    if seen.proposals or seen.refusals:
        return tuple(found)
    return (Refusal("", Reason.WITHIN_THRESHOLD, seen.verdict), *found)


LIMITS: Final = HttpSettings(
    max_connections=256,
    # A client that takes all of its own does not have others find `/health` unwell.
    max_connections_per_address=64,
    max_head_bytes=16_384,
    max_body_bytes=65_536,
    stop_s=1.0,
)


@asynccontextmanager
async def listening(
    routes: Iterable[Route],
    option: str,
    port: int,
    host: str,
    check: Callable[[web.BaseRequest], None] = lambda _: None,
) -> AsyncIterator[None]:
    """Serve ``routes`` within `LIMITS`; ``check`` refuses requests before they are looked at.

    Raises `LoadManagerError`: the port cannot be listened on; ``option`` is what names it.
    """
    table = RouteTable(routes)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            check(request)
            route, target = table.find(request.method, target_of(request.raw_path))
            return await route.handler(request, target)
        except LoadManagerError as error:
            return refusal_reply(refusal_of(error))

    server = ConnectionServer(handle, None, Admission(LIMITS, lambda _: None), lambda: None)
    try:
        sockets = listening_sockets(host, port, LIMITS.backlog)
    except OSError as error:
        why = error.strerror or str(error)
        raise LoadManagerError(f"{option} {port}: {why}; expected a free port") from None
    async with server.listening(sockets):
        yield


@asynccontextmanager
async def served_metrics(
    port: int | None, host: str, overdue: Callable[[], str]
) -> AsyncIterator[AttachMetrics]:
    registry = CollectorRegistry()

    async def show(_request: web.BaseRequest, _target: Target) -> web.Response:
        return bytes_reply(generate_latest(registry), CONTENT_TYPE_LATEST)

    async def health(_request: web.BaseRequest, _target: Target) -> web.Response:
        return json_reply({"reason": why}, 503) if (why := overdue()) else text_reply("ok")

    routes = [Route("GET", "/metrics", show, Role.READ), Route("GET", "/health", health, Role.READ)]
    async with AsyncExitStack() as stack:
        stack.callback(asyncio.create_task(feed_watchdog(overdue)).cancel)
        if port is not None:
            await stack.enter_async_context(listening(routes, "--metrics-port", port, host))
        yield AttachMetrics(registry)


_NAME: Final = "attach"
_ADMIN: Final = "/admin/v2/loadmanager"


@dataclass
class AttachOverviews(Overviews, Tasks):
    """What the page shows; without an observation ``waits``: what makes moves instead of this."""

    balances: bool
    waits: Callable[[], str] = lambda: ""
    course: Course = field(default_factory=Course)
    _clock: SystemClock = field(default_factory=SystemClock)
    _began_ms: int = 0
    _held: str = ""
    _rounds: int = 0
    _epoch: int = 0
    _decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=MOST_DECISIONS))
    _tasks: dict[int, BundleTask] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mode = BalancingMode.ACTIVE if self.balances else BalancingMode.OBSERVING
        self._usual = Balancing(mode=mode)
        self.control = Control(self._usual)

    @contextmanager
    def of_term(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.control.seen = None
            self._decisions.clear()
            self._tasks.clear()

    def round(self, seen: Observation, held: str) -> None:
        at_ms = self._clock.wall_ms()
        self._began_ms = self._began_ms or at_ms
        paused = pause_of(held)
        self.control.seen, self.control.balancing = seen, paused or self._usual
        self._held = "" if paused else held
        self._rounds += 1
        self.course.note(seen, at_ms)
        outcome = Outcome.MOVED if self.balances and not held else Outcome.OBSERVED
        self._decisions.extendleft(
            replace(
                move_decision(one, outcome, at_ms=at_ms, epoch=self._epoch, number=self._rounds),
                detail=one.reason,
            )
            for one in seen.proposals
        )

    def task(self, task: BundleTask) -> None:
        self._epoch = task.epoch
        self._tasks.pop(task.number, None)
        if len(self._tasks) >= MOST_TASKS:
            del self._tasks[next(iter(self._tasks))]
        self._tasks[task.number] = task

    def overview(self) -> OverviewDocument:
        seen, at_ms = self.control.seen, self._clock.wall_ms()
        if seen is None:
            raise Unavailable(self.waits() or "no window of the cluster is over yet")
        gone = {
            broker: f"{'drained' if broker in seen.cluster.draining else 'cordoned'}, and not there"
            for broker in sorted(seen.cluster.cordoned - set(seen.cluster.brokers))
        }
        return overview_document(
            (
                broker_document(
                    broker,
                    bundles=len(sample.bundles),
                    topics=sample.topics_in_bundles,
                    msgs_per_s=sample.total.msgs_per_s,
                    bytes_per_s=sample.total.bytes_per_s,
                    cordoned=broker in seen.cluster.cordoned - seen.cluster.draining,
                    draining=broker in seen.cluster.draining,
                )
                for broker, sample in seen.samples.items()
            ),
            self.tasks(TasksQuery(limit=MOST_TASKS)),
            decisions=self._decisions,
            course=self.course.points(at_ms),
            cluster=seen.cluster.name,
            since_ms=self._began_ms,
            measure="rate",
            balancing=self.control.balancing,
            bundles=sum(len(one.bundles) for one in seen.samples.values()),
            unowned=0,
            missing=[
                MissingDocument(broker=one, why=why, since_ms=None)
                for one, why in {**seen.missing, **gone}.items()
            ],
            refusals=most_refused(seen.refusals),
            held=self._held,
            actions=["pause", "resume", *BROKER_ACTIONS] if self.control.begun else [],
        )

    def tasks(self, query: TasksQuery) -> TasksDocument:
        return tasks_document(
            sorted(self._tasks.values(), key=lambda one: (one.state.ended, -one.number)),
            query,
            leader=_NAME,
            epoch=self._epoch,
            at_ms=self._clock.wall_ms(),
            now_s=self._clock.monotonic_s(),
        )

    def routes(self) -> list[Route]:
        control = self.control
        steering = (AttachModes(control).routes(), AttachDrains(control).routes())
        routes = [*Overviews.routes(self), *chain.from_iterable(steering)]
        plan = Route("GET", f"{_ADMIN}/plan", self._plan, Role.READ)
        return [*routes, *Describing(__version__, routes).routes(), plan]

    async def _plan(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        moves = [
            {"bundle": m.bundle, "source": m.source, "target": m.target, "meaning": m.reason}
            for m in (() if self.control.seen is None else self.control.seen.proposals)
        ]
        return json_reply({"moves": moves, "optimality": None, "withMoves": None})


@asynccontextmanager
async def served_page(port: int | None, *, balances: bool) -> AsyncIterator[AttachOverviews]:
    overviews = AttachOverviews(balances)
    if port is None:
        yield overviews
        return
    feed = Feed(OverviewReader(overviews.overview, _NAME))
    routes = (*LivePage(feed).routes(), *overviews.routes())

    def check(request: web.BaseRequest) -> None:
        refuse_foreign_hosts(asked_hosts(request), OwnNames())
        refuse_foreign_page(request, OwnNames())
        if request.method not in READING and is_forwarded(request):
            raise Refused(403, "a proxy passes the request on; only this host may change anything")

    async with listening(routes, "--page", port, "127.0.0.1", check):
        try:
            yield overviews
        finally:
            await feed.close()


_CLOSE_S: Final = 30.0


def host_name() -> str:
    return re.sub(r"[^-.\w]", "_", socket.gethostname(), flags=re.ASCII) or "localhost"


@dataclass(kw_only=True)
class TermReports:
    """Reports what a term sees and does: to the history, the metrics, the page, and as text.

    In the history a window is a tick, and a round if the strategy decided in it. A round is written
    after its moves have ended: at the next window, or at the end of the term. ``begun`` is called
    with how many seconds longer than a round it may take until the next one begins.
    """

    printed: Log
    metrics: AttachMetrics
    overviews: AttachOverviews
    strategy: Strategy
    interval_s: float
    begun: Callable[[float], None] = lambda _: None
    sink: HistorySink = field(default_factory=NoHistory)
    epoch: int = 0
    _trouble: str = ""
    _reported_s: dict[BrokerId, float] = field(default_factory=dict)
    _ordered: set[BundleId] = field(default_factory=set)
    _unordered: str = ""
    _window_ms: int = 0

    def __post_init__(self) -> None:
        self._recorder = HistoryRecorder(
            self.sink,
            lambda: self._window_ms or self.strategy.loads.wall_ms(),
            self.strategy.loads.monotonic_s,
            self.epoch,
            self.strategy.loads.tracker,
            base_every_rounds=HistorySettings().base_every_rounds,
        )

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._recorder.began()
        try:
            yield
        finally:
            self._round_over()
            self._recorder.ended()

    def round(self, seen: Observation, held: str) -> None:
        self.begun(0.0)
        self.window(seen, held)
        with suppress(OSError):  # A log on a full disk loses lines, and ends no controller.
            self.printed.round(seen, held)
        if self.sink.trouble and not self._trouble:
            self.event(f"history is not written: {self.sink.trouble}")
        self._trouble = self.sink.trouble

    def window(self, seen: Observation, held: str = "") -> None:
        """Show a window, write the last round, and keep what was decided until the next."""
        metrics, plan, differing = self.metrics, seen.plan, seen.cluster.differing(SHEDDING)
        metrics.pulsar_shedding.set(nan if not differing else float("true" in differing))
        for reason in HeldReason:
            metrics.held.labels(reason.value).set(reason in seen.holds)
        metrics.max_over_mean.set(nan if plan is None else plan.max_over_mean)
        metrics.least_max_over_mean.set(nan if plan is None else plan.least_max_over_mean)
        metrics.brokers.set(len(seen.cluster.brokers))
        metrics.brokers_missing.set(len(seen.missing))
        metrics.bundles_listed_twice.set(len(seen.twice))
        self.overviews.round(seen, held)
        self._round_over()
        loads, decided, recorder = self.strategy.loads, self.strategy.decided, self._recorder
        self._window_ms = loads.at_ms
        for gone in loads.left:
            self._reported_s.pop(gone, None)
            recorder.forgot(gone)
        for broker, report in loads.taken.items():
            former_s = self._reported_s.get(broker)
            self._reported_s[broker] = loads.now_s
            offer_report(
                self.sink,
                report,
                loads.at_ms,
                due="first" if former_s is None else "age",
                interval_s=None if former_s is None else loads.now_s - former_s,
                window_s=seen.samples[broker].window_s,
            )
            recorder.took(broker, loads.at_ms)
        recorder.ticked()
        if decided is not None:
            made, view, balances = decided.plan, decided.view, self.overviews.balances
            recorder.began_round(
                view.now_s,
                lambda: view,
                decided.memory,
                planner=decided.planner,
                policies=view.policies,
                steering="active" if balances else "observing",
                reported_at_ms=dict.fromkeys(loads.taken, loads.at_ms),
            )
            moves, observed = (made.moves, ()) if balances and not held else ((), made.moves)
            refusals = (*made.refusals, *_refusals(seen, held))
            recorder.decided(view, replace(made, moves=moves, observed=observed, refusals=refusals))
            self._unordered = "failed" if moves else "observed" if observed else "quiet"
        self._window_ms = 0

    def task(self, task: BundleTask) -> None:
        self.begun(STUCK_S)
        self.strategy.task(task)
        self.overviews.task(task)
        if task.state.ended:
            self.metrics.tasks_total.labels(task.state.value).inc()
        if task.pause is not None and task.pause_s is not None:
            self.metrics.move_pause_seconds.observe(task.pause_s)
        if task.state is TaskState.ORDERED:
            self._ordered.add(task.bundle)
        self._recorder.task_changed(task)
        if task.kind is TaskKind.SPLIT and task.state is TaskState.SERVING:
            (cut,) = task.splits[task.bundle].positions
            self._recorder.cut("split", task.bundle, parts_at(task.bundle, cut))
        with suppress(OSError):
            self.printed.task(task)

    def event(self, what: str) -> None:
        self.printed.event(what)

    def _round_over(self) -> None:
        self._recorder.orders_known(self._ordered)
        self._ordered = set()
        self._recorder.round_over(self._unordered, took_s=None, tick_interval_s=self.interval_s)


@asynccontextmanager
async def history_in(folder: Path | None, cluster: str) -> AsyncIterator[HistorySink]:
    if folder is None:
        yield NoHistory()
        return
    origin = Origin(cluster, BrokerId(f"attach-{host_name()}:0"), secrets.token_hex(8))
    with warnings_alone():
        settings = HistorySettings(dir=str(folder))
        sink = ThreadedHistory(settings, origin, HistoryMetrics(CollectorRegistry()))
        sink.start()
        try:
            yield sink
        finally:
            # Not on the loop: it waits for the disk.
            await asyncio.to_thread(sink.close, _CLOSE_S)

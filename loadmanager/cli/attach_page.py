"""What ``loadmanager attach --page`` serves: the live page, to this host alone."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.http.live import Feed, LivePage, OverviewReader
from loadmanager.adapters.http.replies import Refused, refusal_reply
from loadmanager.adapters.http.routes import Route, target_of
from loadmanager.adapters.http.security.origin import OwnNames, refuse_foreign_host
from loadmanager.admin.overview import overview_document
from loadmanager.attach.observation import Observation
from loadmanager.attach.stored_course import Course
from loadmanager.cli.attach_metrics import listening
from loadmanager.cli.attach_steering import PageSteering
from loadmanager.common.overview import (
    MOST_BROKERS,
    MOST_DECISIONS,
    MOST_TASKS,
    most_refused,
    scarcest_first,
)
from loadmanager.core.bundle_task import BundleTask
from loadmanager.core.explaining import Decision, Outcome
from loadmanager.ports import (
    BrokerUse,
    MissingBroker,
    Overview,
    TaskList,
    Unavailable,
)

_NAME: Final = "attach"


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
        """Keep one observation of the cluster."""
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
                    detail=one.reason(),
                    source=one.source,
                    target=one.target,
                )
            )

    def task(self, task: BundleTask) -> None:
        """Keep a task in a new state."""
        self._epoch = task.epoch
        self._tasks.pop(task.number, None)
        self._tasks[task.number] = task
        while len(self._tasks) > MOST_TASKS:
            del self._tasks[next(iter(self._tasks))]

    def end(self) -> None:
        """Show nothing but the course any more: another controller goes on."""
        self._seen, self.steering.proposals = None, ()
        self._decisions.clear()
        self._tasks.clear()

    def overview(self) -> Overview:
        """Return the cluster at a glance; see `OverviewService`."""
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
    """Yield the page's content, served on loopback; None does not serve it.

    Raises:
        PortUnusable: the port cannot be listened on.
    """
    overviews = AttachOverviews(PageSteering(balances=balances))
    if port is None:
        yield overviews
        return
    feed = Feed(OverviewReader(lambda: overview_document(overviews.overview()), _NAME))
    app = web.Application()
    for route in (*LivePage(feed).routes(), *overviews.steering.routes()):
        app.router.add_route(route.method, route.pattern, _handler(route))
    async with listening(app, "--page", port, "127.0.0.1"):
        try:
            yield overviews
        finally:
            await feed.close()


def _handler(route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            refuse_foreign_host(request, OwnNames())
            return await route.handler(request, target_of(request.raw_path))
        except Refused as refused:
            return refusal_reply(refused)

    return handle

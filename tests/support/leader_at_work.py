"""A leader at work, on the in-process service, with brokers that only stand in the tree."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np
from prometheus_client import CollectorRegistry
from snapshot_samples import report
from structlog.testing import capture_logs
from waiting import eventually

from loadmanager.adapters.clock import SystemClock
from loadmanager.admin.decisions import Decisions
from loadmanager.common.cluster_conditions import TopicHash
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Context, Identity
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.config import Config
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.load import BrokerUrls, LoadReport
from loadmanager.core.orders import encode_owned
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.seed import Seed
from loadmanager.core.shedding import ThresholdShedder
from loadmanager.core.wire.policies import encode_boundaries
from loadmanager.core.wire.records import LeaderRecord, encode_leader
from loadmanager.core.wire.reports import encode_loads, encode_registration
from loadmanager.leader.election import Term
from loadmanager.leader.term import Leadership, LeaderTerm
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.in_process import InProcessBroker
from tests.testbed.memory import MemoryCoordination, MemoryService

B1, B2, B3 = (BrokerId(f"b{number}:8080") for number in (1, 2, 3))
ME = B1
EIGHT = Boundaries.even(Namespace("t/ns"), 8)
BUNDLES = EIGHT.bundles
HOT = (report(B1, 0.8, dict.fromkeys(BUNDLES, 20e6)), report(B2, 0.0, {}), report(B3, 0.0, {}))
AT_ONCE = PlannerSettings(settle_s=0.0)
THRESHOLD = Planner(shedder=ThresholdShedder(min_bytes_per_s=0.0), settings=AT_ONCE)


@dataclass(slots=True)
class LeaderAtWork:
    """A sidecar that may lead, and the hand that writes what others would.

    ``leading`` has a term from `lead` on.
    """

    context: Context
    hand: MemoryCoordination
    leading: Leadership
    explainer: Decisions
    registry: CollectorRegistry
    settings: RuntimeSettings
    term: Term | None = None
    working: asyncio.Task[None] | None = None

    @property
    def leader_term(self) -> LeaderTerm:
        assert self.leading.leader_term is not None
        return self.leading.leader_term

    async def write(self, path: str, content: bytes) -> None:
        if await self.hand.get(path) is None:
            await self.hand.create(path, content)
        else:
            await self.hand.set(path, content)

    async def report(self, *reports: LoadReport) -> None:
        for one in reports:
            await self.write(znodes.registration(one.broker), encode_registration(one))
            await self.write(znodes.loads(one.broker), encode_loads(one))
            await self.write(znodes.owned(one.broker), encode_owned(dict.fromkeys(one.bundles, 1)))
        known = self.context.cluster_state.loads.reports
        await eventually(
            lambda: all(
                one.broker in known
                and known[one.broker].report == one
                and set(one.bundles) <= set(self.context.cluster_state.owners)
                for one in reports
            )
        )

    async def create_namespace(self, boundaries: Boundaries) -> None:
        path = znodes.local_policies(boundaries.namespace)
        await self.write(path, encode_boundaries(boundaries))
        await self.context.cluster_state.boundaries(boundaries.namespace)

    async def elect(self, leader: LeaderRecord) -> None:
        await self.write(znodes.LEADER, encode_leader(leader))
        await eventually(lambda: self.context.cluster_state.leader is not None)

    def lead(self) -> None:
        assert self.term is not None
        self.working = asyncio.create_task(self.leading.lead(self.term))

    async def led(self, *reports: LoadReport) -> None:
        """Report, lead, and wait until the term has begun."""
        await self.report(*reports)
        self.lead()
        await eventually(lambda: self.leading.leader_term)

    async def rounds(self, count: int = 1) -> None:
        await eventually(
            lambda: self.leading.leader_term and self.leader_term.decision_log.rounds >= count
        )

    async def stop_leading(self) -> None:
        if self.working is not None:
            self.working.cancel()
            await asyncio.wait({self.working})
            self.working = None


@asynccontextmanager
async def leader_at_work(
    planner: Planner,
    *,
    round_interval_s: float = 0.02,
    tick_interval_s: float = 0.01,
    reports: Sequence[LoadReport] = (),
    read_seed: Callable[[int], Awaitable[Seed]] | None = None,
    build: Callable[[Context], Context] = lambda context: context,
) -> AsyncIterator[LeaderAtWork]:
    """Yield it; with ``reports`` the namespace of `EIGHT` is there, too."""
    service = MemoryService()
    coordination, hand = MemoryCoordination(service), MemoryCoordination(service)
    clock, registry = SystemClock(), CollectorRegistry()
    metrics = Metrics(registry)
    context = Context(
        identity=_identity(clock.wall_ms()),
        coordination=coordination,
        cluster_state=ClusterState(coordination, clock, metrics),
        broker=InProcessBroker(clock.monotonic_s),
        clock=clock,
        metrics=metrics,
        topic_hash=TopicHash("crc32"),
        read_seed=read_seed,
    )
    context = build(context)
    config = Config.model_validate({"broker": {"id": "b1:8080"}, "split": {"enabled": False}})
    rhythm = {"tick_interval_s": tick_interval_s, "round_interval_s": round_interval_s}
    leader = config.leader.model_copy(update={**rhythm, "return_wait_s": 0.0})
    config = config.model_copy(update={"leader": leader})
    settings = RuntimeSettings(config)
    settings.now = replace(settings.now, planner=planner)

    def open_term(term: Term) -> LeaderTerm:
        return LeaderTerm(context, term, settings, cluster="east", rng=np.random.default_rng(0))

    leading = Leadership(open_term, context)
    await coordination.start()
    await hand.start()
    await eventually(lambda: coordination.session.session_id and hand.session.session_id)
    context.cluster_state.open()
    context.cluster_state.loads.open()
    stat = await hand.create(znodes.EPOCH, b"")
    at_work = LeaderAtWork(
        context=context,
        hand=hand,
        leading=leading,
        explainer=Decisions(context, leading, "east"),
        registry=registry,
        settings=settings,
        term=Term(stat.version, coordination.session.session_id),
    )
    try:
        with capture_logs():  # It takes seconds to print a traceback with the values in it.
            if reports:
                await at_work.create_namespace(EIGHT)
                await at_work.report(*reports)
            yield at_work
    finally:
        await at_work.stop_leading()
        context.cluster_state.close()
        await coordination.close()
        await hand.close()


def _identity(started_at_ms: int) -> Identity:
    return Identity(
        broker=ME,
        urls=BrokerUrls(http_url=f"http://{ME}"),
        sidecar_url="http://127.0.0.1:7750",
        instance="me",
        started_at_ms=started_at_ms,
        version="1.0",
    )

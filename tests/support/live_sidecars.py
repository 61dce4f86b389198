"""Whole sidecars with their HTTP servers in one process, on real clocks, beside busy brokers."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry
from waiting import eventually

from loadmanager.adapters.clock import SystemClock
from loadmanager.admin.namespaces import Namespaces
from loadmanager.common.cluster_conditions import ClusterKey, conditions_of
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Context, make_identity
from loadmanager.config import Config
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace
from loadmanager.core.load import BundleStats, HostUsage, ResourceUsage
from loadmanager.ports.broker import BrokerStats
from loadmanager.ports.session import Coordination
from loadmanager.telemetry.metrics import Metrics
from loadmanager.wiring.application import Application, Sidecar
from loadmanager.wiring.sidecar import free_port, make_leader_line, make_server
from tests.testbed.in_process import InProcessBroker
from tests.testbed.memory import MemoryCoordination, MemoryService

NAMESPACE = Namespace("shop/orders")
BOUNDARIES = Boundaries.even(NAMESPACE, 8)
SETTINGS: Mapping[str, Any] = {
    "cluster": {"name": "east"},
    "zookeeper": {"chroot": "/lm"},
    "report": {"sample_interval_s": 0.3, "min_interval_s": 0.3, "max_interval_s": 2},
    "leader": {"tick_interval_s": 0.3, "round_interval_s": 0.6, "settle_s": 0.5},
    "shedding": {"strategy": "transfer", "grace_period_s": 2},
    "split": {"enabled": False},
}
_MSGS_AT_FULL_CPU = 1000.0
_Value = TypeVar("_Value")


class BusyBroker(InProcessBroker):
    """A broker whose bundles have the traffic that a test gives them, in messages a second."""

    def __init__(self, name: str, traffic: Mapping[BundleId, float]) -> None:
        super().__init__(broker=name)
        self._traffic = traffic

    @property
    def msgs_per_s(self) -> float:
        return sum(self._traffic.get(bundle, 0.0) for bundle in self.serving)

    async def stats(self) -> BrokerStats:
        stats = await super().stats()
        bundles = {
            bundle: dataclasses.replace(
                stats.bundles.get(bundle, BundleStats()),
                msgs_in_per_s=self._traffic.get(bundle, 0.0),
                bytes_in_per_s=1000.0 * self._traffic.get(bundle, 0.0),
            )
            for bundle in {**stats.bundles, **self.serving}
        }
        return dataclasses.replace(stats, bundles=bundles)


class BusyProbe:
    def __init__(self, broker: BusyBroker) -> None:
        self._broker = broker

    def sample(self, **_asked: object) -> HostUsage:
        used = 100.0 * self._broker.msgs_per_s / _MSGS_AT_FULL_CPU
        return HostUsage(
            window_s=1.0,
            cpu=ResourceUsage(2 + used, 100),
            memory=ResourceUsage(30, 100),
            bandwidth_in=ResourceUsage(used / 2, 100),
            bandwidth_out=ResourceUsage(1, 100),
        )


@dataclass
class LiveSidecar:
    name: str
    port: int
    application: Application
    context: Context
    key: ClusterKey
    broker: BusyBroker
    stopping: asyncio.Event
    task: "asyncio.Task[None]"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def leads(self) -> bool:
        return self.application.leading.leader_term is not None

    async def crash(self) -> None:
        """End it without a last word, its session at once."""
        coordination = self.context.coordination
        assert isinstance(coordination, MemoryCoordination)
        coordination.suspend()
        self.task.cancel()
        coordination.expire()
        await asyncio.wait({self.task})


async def start_sidecar(
    config: Config,
    coordination: Coordination,
    metrics: Metrics,
    broker: BusyBroker,
    rng: np.random.Generator,
) -> LiveSidecar:
    port, clock = config.sidecar.listen_port, SystemClock()
    context = Context(
        identity=make_identity(config, port, clock),
        coordination=coordination,
        cluster_state=ClusterState(coordination, clock, metrics),
        broker=broker,
        clock=clock,
        metrics=metrics,
    )
    key = ClusterKey(coordination, clock)
    line = make_leader_line(config, lambda: key.value, context.cluster_state.advertises)
    ready: asyncio.Future[Application] = asyncio.get_running_loop().create_future()
    stopping = asyncio.Event()

    async def live() -> None:
        async with asyncio.TaskGroup() as commands:
            application = Application(
                config,
                context,
                sample_host=BusyProbe(broker).sample,
                ask_leader=line.assign,
                commands=commands,
                rng=rng,
            )
            sidecar = Sidecar(
                context,
                make_server(config, context, application, line, lambda: key.value),
                application,
                line.close,
                key=key,
            )
            ready.set_result(application)
            await sidecar.run(
                stopping,
                host=config.sidecar.listen_host,
                port=port,
                conditions=conditions_of(config),
                leave_s=5.0,
            )

    task = asyncio.create_task(live())
    return LiveSidecar(config.broker.id, port, await ready, context, key, broker, stopping, task)


@dataclass
class LiveSidecars:
    service: MemoryService = field(default_factory=MemoryService)
    traffic: dict[BundleId, float] = field(default_factory=dict)
    living: list[LiveSidecar] = field(default_factory=list)

    async def start(self, name: str, **settings: Any) -> LiveSidecar:
        port = free_port("127.0.0.1")
        config = Config.model_validate(
            {
                **SETTINGS,
                "broker": {"id": name},
                "sidecar": {
                    "listen_host": "127.0.0.1",
                    "listen_port": port,
                    "advertised_url": f"http://127.0.0.1:{port}",
                },
                **settings,
            }
        )
        coordination = MemoryCoordination(self.service, timeout_s=6.0, chroot="/lm")
        one = await start_sidecar(
            config,
            coordination,
            Metrics(CollectorRegistry()),
            BusyBroker(name, self.traffic),
            np.random.default_rng(7),
        )
        self.living.append(one)
        return one

    async def stop(self, one: LiveSidecar) -> None:
        self.living.remove(one)
        one.stopping.set()
        await asyncio.wait_for(one.task, 60)

    async def crash(self, one: LiveSidecar) -> None:
        self.living.remove(one)
        await one.crash()

    @property
    def leader(self) -> LiveSidecar:
        return next(one for one in self.living if one.leads)

    async def ready(self) -> None:
        count = len(self.living)
        await eventually(
            lambda: (
                any(one.leads for one in self.living)
                and all(len(one.context.cluster_state.brokers) == count for one in self.living)
                and all(one.key.value for one in self.living)
            )
        )

    async def create_namespace(self) -> None:
        one = self.living[0]
        leading = one.application.leading
        await Namespaces(one.context, leading, "east").put(BOUNDARIES, {})
        for bundle in BOUNDARIES.bundles:
            await self.leader.application.leading.assign(bundle)
        await eventually(
            lambda: all(
                sum(bundle in each.broker.serving for each in self.living) == 1
                for bundle in BOUNDARIES.bundles
            )
        )


@asynccontextmanager
async def live_sidecars() -> AsyncIterator[LiveSidecars]:
    """Give a cluster without sidecars, and end at the end all that were started."""
    cluster = LiveSidecars()
    try:
        yield cluster
    finally:
        for one in list(cluster.living):
            await cluster.stop(one)


class LoopThread:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, _Value]) -> _Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def call(self, function: Callable[[], _Value]) -> _Value:
        async def called() -> _Value:
            return function()

        return self.run(called())


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield LoopThread(loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()

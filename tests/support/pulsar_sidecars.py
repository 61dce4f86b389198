"""Sidecars beside brokers of a fake Pulsar, all in one process, on real clocks."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fake_pulsar import FakeBroker, FakePulsar
from prometheus_client import CollectorRegistry
from waiting import eventually

from loadmanager.adapters.clock import SystemClock
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Context
from loadmanager.common.identity import Identity
from loadmanager.config import Config
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, HostUsage, ResourceUsage
from loadmanager.ports.lookup import LeaderInfo, Unavailable
from loadmanager.pulsar_sidecar.broker import PulsarBroker
from loadmanager.pulsar_sidecar.kind import BesidePulsar, make_pulsar_broker
from loadmanager.telemetry.metrics import Metrics
from loadmanager.wiring.application import Application
from loadmanager.wiring.lifecycle import Sidecar
from loadmanager.wiring.sidecar import conditions_of
from tests.testbed.faults.agent import NoServer
from tests.testbed.memory import MemoryCoordination, MemoryService

SETTINGS: Mapping[str, Any] = {
    "report": {"sample_interval_s": 0.1, "min_interval_s": 0.1, "max_interval_s": 1},
    "leader": {"tick_interval_s": 0.1, "round_interval_s": 0.2, "settle_s": 0.2},
    "shedding": {
        "strategy": "uniform",
        "grace_period_s": 2,
        "settings": {"min_msgs_per_s": 1, "min_bytes_per_s": 1, "max_share": 0.5},
    },
}


class BusyProbe:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    def sample(
        self,
        *,
        broker_process_id: int | None = None,
        broker_port: int = 0,
        neighbour_ports: Collection[int] = (),
    ) -> HostUsage:
        del broker_process_id, broker_port, neighbour_ports
        msgs = sum(one[0] + one[1] for one in self._broker.grows.values())
        return HostUsage(
            window_s=1.0,
            cpu=ResourceUsage(5 + msgs / 20, 100),
            memory=ResourceUsage(10, 100),
            bandwidth_in=ResourceUsage(1, 100),
            bandwidth_out=ResourceUsage(1, 100),
        )


class NoLine:
    async def assign(self, leader: LeaderInfo, bundle: BundleId) -> BrokerId:
        raise Unavailable(f"{leader.broker} was asked to place {bundle}")

    async def close(self) -> None:
        """See `LeaderLine`."""


@dataclass
class PulsarSidecar:
    """One of them; ``beside`` is its broker."""

    context: Context
    application: Application
    coordination: MemoryCoordination
    beside: FakeBroker
    stopping: asyncio.Event
    task: asyncio.Task[None]

    @property
    def leads(self) -> bool:
        return self.application.leading.leader_term is not None

    def crash(self) -> None:
        """End it without a last word, its session at once."""
        self.coordination.suspend()
        self.task.cancel()
        self.coordination.expire()


@dataclass
class PulsarSidecars:
    """A cluster of them; each leaves within ``leave_s``."""

    pulsar: FakePulsar
    leave_s: float = 10.0
    service: MemoryService = field(default_factory=MemoryService)
    living: list[PulsarSidecar] = field(default_factory=list)

    async def start(self, beside: FakeBroker, **settings: Any) -> PulsarSidecar:
        config = Config.model_validate(
            {
                "broker": {"id": beside.name, "kind": "pulsar"},
                "zookeeper": {"chroot": "/lm"},
                **SETTINGS,
                **settings,
            }
        )
        coordination = MemoryCoordination(self.service, timeout_s=6.0, chroot="/lm")
        broker = make_pulsar_broker(config)
        context = self._context(config, coordination, broker)
        ready: asyncio.Future[Application] = asyncio.get_running_loop().create_future()
        stopping = asyncio.Event()

        async def live() -> None:
            async with asyncio.TaskGroup() as commands:
                application = Application(
                    config,
                    context,
                    probe=BusyProbe(beside),
                    leader_line=NoLine(),
                    commands=commands,
                    rng=np.random.default_rng(7),
                    kind=BesidePulsar(broker, config.cluster.name),
                )
                ready.set_result(application)
                await self._run(application, config, context, broker, stopping)

        task = asyncio.create_task(live())
        one = PulsarSidecar(context, await ready, coordination, beside, stopping, task)
        self.living.append(one)
        return one

    def _context(
        self, config: Config, coordination: MemoryCoordination, broker: PulsarBroker
    ) -> Context:
        clock, metrics = SystemClock(), Metrics(CollectorRegistry())
        return Context(
            identity=Identity(
                broker=config.broker.id,
                urls=BrokerUrls(http_url=config.broker.http_url),
                sidecar_url=f"http://sidecar-{config.broker.id}",
                instance=f"{config.broker.id}/{len(self.living)}",
                started_at_ms=clock.wall_ms(),
                version="",
                host="here",
                process_id=1,
            ),
            coordination=coordination,
            cluster_state=ClusterState(coordination, clock, metrics),
            broker=broker,
            clock=clock,
            metrics=metrics,
        )

    async def _run(
        self,
        application: Application,
        config: Config,
        context: Context,
        broker: PulsarBroker,
        stopping: asyncio.Event,
    ) -> None:
        sidecar = Sidecar(
            context,
            NoServer(),
            application,
            broker.close,
        )
        await sidecar.run(
            stopping,
            host="127.0.0.1",
            port=7750,
            conditions=conditions_of(config),
            leave_s=self.leave_s,
        )

    async def stop(self, one: PulsarSidecar) -> None:
        self.living.remove(one)
        one.stopping.set()
        await asyncio.wait_for(one.task, 30)

    def crash(self, one: PulsarSidecar) -> None:
        self.living.remove(one)
        one.crash()

    @property
    def leader(self) -> PulsarSidecar | None:
        return next((one for one in self.living if one.leads), None)

    async def ready(self) -> None:
        count = len(self.living)
        await eventually(
            lambda: (
                self.leader is not None
                and all(len(one.context.cluster_state.brokers) == count for one in self.living)
            )
        )


@asynccontextmanager
async def pulsar_sidecars(pulsar: FakePulsar) -> AsyncIterator[PulsarSidecars]:
    """Give a cluster without sidecars, and end at the end all that were started."""
    cluster = PulsarSidecars(pulsar)
    try:
        yield cluster
    finally:
        for one in list(cluster.living):
            await cluster.stop(one)
        await asyncio.sleep(0.05)  # Connections that were closed end in the loop's next turns.

"""One simulated sidecar process: the real application on in-memory adapters."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np
from prometheus_client import CollectorRegistry

from loadmanager.common.cluster_conditions import Conditions
from loadmanager.common.cluster_state import READ_AHEAD, ClusterState
from loadmanager.common.context import Context, Identity, first_leaf
from loadmanager.config import Config
from loadmanager.core.ids import BrokerId, BundleId, TopicName
from loadmanager.core.load import BrokerUrls
from loadmanager.core.wire.records import LeaderRecord
from loadmanager.ports.lookup import Owner, Unavailable
from loadmanager.telemetry.metrics import Metrics
from loadmanager.wiring.application import Application, Sidecar
from tests.testbed.faults.host import BrokerLine, Host, ScriptedProbe
from tests.testbed.faults.service import TimedService
from tests.testbed.faults.session import ClientSession
from tests.testbed.faults.trace import PROCESS
from tests.testbed.faults.virtual_time import ProcessClock, SlowComputing
from tests.testbed.faults.wires import Gate, Losses

SESSION_S = 10.0
LINE_TIMEOUT_S = 2.0


def as_built(context: Context) -> Context:
    return context


@dataclass(slots=True)
class World:
    """The state that all sidecars of one run share; created inside a running virtual loop."""

    config: Config
    rng: Random
    service: TimedService = field(default_factory=TimedService)
    losses: Losses = field(default_factory=Losses)
    hosts: list[Host] = field(default_factory=list)
    agents: "list[Agent]" = field(default_factory=list)
    drift_fraction: float = 0.0
    """Largest drift of the monotonic clock of a process, as a fraction of its rate."""
    read_ahead: Callable[[], int] = lambda: READ_AHEAD
    """Returns the number of changed owned lists that a new sidecar reads without a lookup."""
    computes_for_s: Callable[[], float] = lambda: 0.0
    """Returns the duration of the next computation of a leader."""
    build: Callable[[Context], Context] = field(default=as_built)
    """Returns the context to use for a new sidecar; tests inject defects here."""

    @property
    def living(self) -> "list[Agent]":
        return [agent for agent in self.agents if agent.alive]

    def agent_at(self, url: str) -> "Agent | None":
        return next((agent for agent in self.living if agent.url == url), None)


class NoServer:
    """An HTTP server that accepts no connections: tests call the application directly."""

    def __init__(self) -> None:
        self.open = False

    async def start(self, host: str, port: int) -> int:
        del host
        self.open = True
        return port

    async def stop(self) -> None:
        self.open = False


class Agent:
    def __init__(self, world: World, host: Host, number: int) -> None:
        self._world = world
        self.host = host
        self.gate = Gate()
        self.url = f"http://{host.name.replace(':', '-')}-{number}:7750"
        self.line = BrokerLine(host, self.gate)
        self.coordination = ClientSession(
            world.service, self.gate, world.rng, world.losses, timeout_s=SESSION_S
        )
        self.clock = clock = ProcessClock(self.gate, world.rng, world.drift_fraction)
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry)
        self.cluster_state = ClusterState(
            self.coordination, clock, metrics, read_ahead=world.read_ahead()
        )
        identity = Identity(
            broker=host.name,
            urls=BrokerUrls(http_url=f"http://{host.name}"),
            sidecar_url=self.url,
            instance=f"{host.name}/{number}",
            started_at_ms=clock.wall_ms(),
            version="1.0",
            host=host.machine,
            process_id=number,
        )
        context = Context(
            identity=identity,
            coordination=self.coordination,
            cluster_state=self.cluster_state,
            broker=self.line,
            clock=clock,
            metrics=metrics,
            computing=SlowComputing(clock, world.computes_for_s),
        )
        self.context = world.build(context)
        self.server = NoServer()
        self.stop = asyncio.Event()
        self.failure: BaseException | None = None
        self.line_slow_s = 0.0
        self.line_broken = False
        self.questions = 0
        self.application: Application | None = None
        self.task = asyncio.ensure_future(self._live())
        self.task.set_name(identity.instance)

    @property
    def alive(self) -> bool:
        return not self.task.done()

    @property
    def app(self) -> Application:
        if self.application is None:
            raise RuntimeError(f"{self.url}: the process has not begun to run yet")
        return self.application

    @property
    def leads(self) -> bool:
        leader = self.cluster_state.leader
        return leader is not None and leader.instance == self.context.identity.instance

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    async def look_up(self, topic: TopicName) -> Owner:
        return await self.app.answering.find_owner(topic)

    async def kill(self) -> None:
        """Kill the process: it sends nothing more, and its session times out."""
        self.line.dead = True
        self.coordination.suspend()
        self.gate.open()
        self.clock.end()  # A killed process does not wait until its lease expires.
        self.task.cancel()
        await asyncio.wait({self.task})

    async def leave(self) -> None:
        self.stop.set()
        await asyncio.wait({self.task})

    async def _live(self) -> None:
        PROCESS.set(self.context.identity.instance)
        config = self._world.config
        rng = np.random.default_rng(self._world.rng.randrange(2**32))
        try:
            async with asyncio.TaskGroup() as commands:
                self.application = Application(
                    config,
                    self.context,
                    sample_host=ScriptedProbe(self.host).sample,
                    ask_leader=CallingLine(self._world, self).assign,
                    commands=commands,
                    rng=rng,
                )
                sidecar = Sidecar(self.context, self.server, self.application, self.line.close)
                await sidecar.run(
                    self.stop,
                    host="127.0.0.1",
                    port=7750,
                    conditions=Conditions(config.cluster.hash),
                    leave_s=10.0,
                )
        except* Exception as failed:  # noqa: BLE001 - the run reports whatever ended a process
            self.failure = first_leaf(failed)


@dataclass(slots=True)
class CallingLine:
    world: World
    caller: Agent

    async def assign(self, leader: LeaderRecord, bundle: BundleId) -> BrokerId:
        self.caller.questions += 1
        await asyncio.sleep(0.001 + self.caller.line_slow_s)
        callee = self.world.agent_at(leader.sidecar_url)
        if callee is None or self.caller.line_broken:
            raise Unavailable(f"the leader at {leader.sidecar_url} does not answer")
        try:
            async with asyncio.timeout(LINE_TIMEOUT_S):
                await callee.gate.passed()
                answer = await callee.app.answering.assign(bundle)
                await callee.gate.passed()
        except TimeoutError:
            raise Unavailable(f"the leader at {leader.sidecar_url} is slow") from None
        return answer

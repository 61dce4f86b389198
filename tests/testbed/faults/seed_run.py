"""Runs one seed: a cluster, random actions and faults, repair of all faults, and the outcome.

The command, its processes and tests all use `run_seed`. All random numbers derive from the seed,
so two runs of a seed on the same code are equal, in any process. Tests inject defects with
``build``, which receives the `Context` of each sidecar as it starts and returns the context to
use, for example with a coordination that omits the check of the epoch, or with a broker control
whose leases never expire.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import structlog

from loadmanager.common.cluster_state import READ_AHEAD
from loadmanager.common.context import Context
from loadmanager.config import Config
from tests.testbed.faults.agent import SESSION_S, as_built
from tests.testbed.faults.clients import Clients
from tests.testbed.faults.cluster import Cluster, make_config
from tests.testbed.faults.monitor import Monitor
from tests.testbed.faults.network_faults import NETWORK_FAULTS, end_outage, hurry, stop_servers
from tests.testbed.faults.operations import (
    FOREIGN_WRITES,
    MOST_BUNDLES,
    OPERATIONS,
    create_namespace,
    unmark_draining,
)
from tests.testbed.faults.process_faults import BROKER_FAULTS, PROCESS_FAULTS, repair_brokers, start
from tests.testbed.faults.scene import Action, Scene
from tests.testbed.faults.trace import Trace, listen
from tests.testbed.faults.violation import Invariant, Violation
from tests.testbed.faults.virtual_loop import START_S, VirtualTimeError
from tests.testbed.faults.virtual_time import run

STEPS: Final = 40
DRIFT_FRACTION: Final = 0.01
TICK_S: Final = SESSION_S / 2
"""The longest tick with which ZooKeeper grants such sessions: a session has two ticks or more."""
_FAILS: Final = 0.5
"""Probability that the follower of a client fails together with the client."""
VIRTUAL_LIMIT_S: Final = 3_600.0
CPU_LIMIT_S: Final = 60.0
ACTIONS: Final = (*PROCESS_FAULTS, *BROKER_FAULTS, *NETWORK_FAULTS, *FOREIGN_WRITES, *OPERATIONS)
"""All actions that a step may carry out."""

_FEW_BUNDLES: Final = {"max_bundles_per_namespace": 2 * MOST_BUNDLES}
"""Bundles of a broker that reports huge figures would be split until no topic falls in them."""

_PAUSES_S: Final = (0.0, 0.003, 0.01, 0.1, 0.5, 2.0, 2.0, 0.7 * SESSION_S)
_COMPUTES_FOR_S: Final = (0.0, 0.0, 0.0, 0.05, 0.5)
"""Longer than measured rounds, so that events occur during computations."""
_ONE_LULL_IN: Final = 16
_SIDECARS: Final = (2, 3, 3, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOutcome:
    """The outcome of one run.

    ``digest`` is that of the whole trace. ``violation`` describes the first violation, "" for
    none; ``invariant`` is the broken invariant, and ``last_lines`` are the end of the trace.
    """

    seed: int
    steps: int
    digest: str
    virtual_s: float
    real_s: float
    happened: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    longest_unserved_s: float = 0.0
    longest_unled_s: float = 0.0
    longest_asked_s: float = 0.0
    violation: str = ""
    invariant: str = ""
    last_lines: tuple[str, ...] = ()


def run_seed(
    seed: int,
    *,
    steps: int = STEPS,
    config: Config | None = None,
    actions: Sequence[Action] = ACTIONS,
    build: Callable[[Context], Context] = as_built,
) -> SeedOutcome:
    """Run one seed to its end or to the first violation, which is returned and not raised."""
    one = _SeedRun(seed, steps, actions)
    began_s = time.monotonic()
    found: Violation | None = None
    try:
        program = one.play(config or seeded_config(), build)
        run(program, limit_s=VIRTUAL_LIMIT_S, cpu_limit_s=CPU_LIMIT_S)
    except Violation as violation:
        found = violation
    except VirtualTimeError as error:
        found = Violation(Invariant.SETTLES, one.ended_at_s, "the run", str(error))
    finally:
        structlog.reset_defaults()
    return one.outcome(time.monotonic() - began_s, found)


def seeded_config(**sections: Mapping[str, Any]) -> Config:
    """Return the configuration of a run; ``sections`` override single keys."""
    return make_config(split=_FEW_BUNDLES, zookeeper={"tick_s": TICK_S}, **sections)


class _SeedRun:
    def __init__(self, seed: int, steps: int, actions: Sequence[Action]) -> None:
        self._seed = seed
        self._steps = steps
        self._actions = actions
        self._trace = Trace()
        self._steps_done = 0
        self._scene: Scene | None = None
        self._clients: Clients | None = None
        self.ended_at_s = START_S

    async def play(self, config: Config, build: Callable[[Context], Context]) -> None:
        """Carry out the run; raise the first violation at the step in which it was found."""
        rng = Random(self._seed)  # noqa: S311 - to be repeatable
        cluster = Cluster(config, Random(rng.randrange(2**32)))  # noqa: S311 - the same
        cluster.drift_fraction = DRIFT_FRACTION
        cluster.service.half_tick_s = TICK_S / 2
        cluster.service.fails = lambda: cluster.rng.random() < _FAILS
        # Owned lists of a few brokers are always read in advance; make some sidecars defer reads.
        cluster.computes_for_s = lambda: cluster.rng.choice(_COMPUTES_FOR_S)
        cluster.read_ahead = lambda: cluster.rng.choice((1, READ_AHEAD))
        cluster.build = build
        monitor = Monitor(cluster, self._trace)
        self._scene = scene = Scene(cluster, monitor, rng)
        self._clients = clients = Clients(scene)
        listen(self._trace.add_entry)
        background: list[asyncio.Task[None]] = []
        try:
            await self._open(scene)
            background += [
                asyncio.ensure_future(monitor.run()),
                asyncio.ensure_future(clients.run()),
            ]
            for _ in range(self._steps):
                await self._step(scene)
            await self._peace(scene, clients)
            monitor.raise_first()
            cluster.check()
        finally:
            self.ended_at_s = asyncio.get_running_loop().time()
            self._trace.close()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await cluster.close()

    def outcome(self, real_s: float, found: Violation | None) -> SeedOutcome:
        measured: dict[str, Any] = {}
        if self._scene is not None and self._clients is not None:
            monitor = self._scene.monitor
            measured = {
                "happened": dict(self._scene.counts),
                "counted": {
                    "lookups": self._clients.asked,
                    "answers": monitor.answers.answered,
                    "stale": monitor.answers.stale,
                    "loads": monitor.serving.loads,
                    "orders": monitor.orders.writes,
                    "locks": monitor.orders.locks,
                    "terms": len(self._scene.cluster.service.epochs),
                },
                "longest_unserved_s": monitor.availability.longest_s,
                "longest_unled_s": monitor.leaders.longest_s,
                "longest_asked_s": monitor.availability.longest_asked_s,
            }
        if found:
            measured |= {"violation": str(found), "invariant": found.invariant.value}
            measured["last_lines"] = self._trace.last_lines
        return SeedOutcome(
            seed=self._seed,
            steps=self._steps_done,
            digest=self._trace.digest,
            virtual_s=self.ended_at_s - START_S,
            real_s=real_s,
            **measured,
        )

    async def _open(self, scene: Scene) -> None:
        cluster = scene.cluster
        for _ in range(scene.rng.choice(_SIDECARS)):
            host = cluster.add_host()
            scene.monitor.follow_host(host)
            scene.start(host)
        await cluster.ready()
        await create_namespace(scene)
        await create_namespace(scene)

    async def _step(self, scene: Scene) -> None:
        """Carry out one action, and let some time pass; check everything after both."""
        weights = [action.weight for action in self._actions]
        (action,) = scene.rng.choices(self._actions, weights)
        if action.harms:
            scene.monitor.disturbed()
        what = await action.do(scene)
        self._steps_done += 1
        self._trace.add("step", f"{self._steps_done} {action.name}: {what or 'nothing to do'}")
        if what:
            scene.counts[action.name] += 1
        scene.monitor.look()
        scene.monitor.raise_first()
        await self._pause(scene)
        scene.monitor.look()
        scene.monitor.raise_first()

    async def _pause(self, scene: Scene) -> None:
        pause_s = scene.rng.choice(_PAUSES_S)
        if scene.rng.randrange(_ONE_LULL_IN) == 0:
            pause_s = scene.monitor.availability.within_s + 5.0
            scene.counts["lull"] += 1
        try:
            async with asyncio.timeout(pause_s):
                await scene.monitor.found.wait()
        except TimeoutError:
            return

    async def _peace(self, scene: Scene, clients: Clients) -> None:
        cluster = scene.cluster
        self._trace.add("peace", "")
        cluster.losses.lost = frozenset()
        end_outage(scene)
        await hurry(scene)
        stop_servers(scene)
        for agent in cluster.agents:
            if agent.alive:
                agent.coordination.freeze_at_next_commit = None
                agent.coordination.thaw()
                agent.coordination.reconnect()
        await repair_brokers(scene)
        await unmark_draining(scene)
        for _ in range(3):
            await asyncio.sleep(SESSION_S)
            await start(scene)
        await clients.all_answered()
        await cluster.settled_at_last(lambda: scene.monitor.bundles)

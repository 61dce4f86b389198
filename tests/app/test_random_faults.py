"""Three sidecars, and every fault there is, in random order; then peace, and all must be well."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from virtual_cluster import SESSION_S, Agent, Cluster, make_config, play, topic_in
from virtual_host import Host
from virtual_service import LossPlace

from loadmanager.adapters.broker.in_process import CommandName, Fault
from loadmanager.app.desk import Desk
from loadmanager.app.electing import Deposed
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.ports import CoordinationError, LookupRefused, Owner

SEEDS = range(int(os.environ.get("LOADMANAGER_FAULT_SEEDS", "12")))
STEPS = 25


class Chaos:
    """Does one random thing after another to a cluster, and asks for owners meanwhile."""

    def __init__(self, cluster: Cluster, boundaries: Boundaries, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self.bundles = boundaries.bundles
        self._topics = {b: topic_in(boundaries, b) for b in self.bundles}
        self._lookups: set[asyncio.Task[None]] = set()
        self.done: list[str] = []
        self._things: list[Callable[[], Awaitable[str]]] = [
            self.suspend,
            self.suspend,
            self.reconnect,
            self.freeze,
            self.thaw,
            self.kill,
            self.leave,
            self.start,
            self.start_beside_the_old_one,
            self.kill_broker,
            self.restart_broker,
            self.freeze_broker,
            self.thaw_broker,
            self.cut_broker,
            self.spoil_commands,
            self.spoil_commands,
            self.lose_writes,
            self.lose_writes,
            self.move_bundle,
            self.move_bundle,
        ]

    async def step(self) -> None:
        """Do one thing, look something up, and let some time pass."""
        thing = self._rng.choice(self._things)
        what = await thing()
        now_s = asyncio.get_running_loop().time()
        self.done.append(f"{now_s:.3f} {thing.__name__} {what}")
        self._ask()
        await asyncio.sleep(self._rng.choice([0.0, 0.003, 0.01, 0.1, 0.5, 2.0, SESSION_S * 0.7]))

    async def peace(self) -> None:
        """End all faults, and have one sidecar beside every broker."""
        cluster = self._cluster
        cluster.losses.lost = frozenset()
        for agent in cluster.agents:
            agent.gate.open()
            if agent.alive:
                agent.coordination.thaw()
                agent.coordination.reconnect()
        for host in cluster.hosts:
            host.cut = False
            host.thaw_broker()
            host.broker.heal()
            if host.dead:
                host.restart_broker()
        for _ in range(3):
            await asyncio.sleep(SESSION_S)
            for host in cluster.hosts:
                if not any(agent.alive and agent.host is host for agent in cluster.agents):
                    cluster.start(host)

    async def all_answered(self) -> None:
        """Return when every sidecar answered for every bundle."""
        for agent in self._cluster.living:
            for topic in self._topics.values():
                assert isinstance(await agent.look_up(topic), Owner)
        await asyncio.gather(*self._lookups)

    def _ask(self) -> None:
        bundle = self._rng.choice(self.bundles)
        if self._cluster.living:
            agent = self._rng.choice(self._cluster.living)
            task = asyncio.ensure_future(self._look_up(agent, bundle))
            self._lookups.add(task)

    async def _look_up(self, agent: Agent, bundle: BundleId) -> None:
        with contextlib.suppress(LookupRefused):
            await agent.look_up(self._topics[bundle])

    def _agent(self) -> Agent:
        return self._rng.choice(self._cluster.living or self._cluster.agents)

    def _host(self) -> Host:
        return self._rng.choice(self._cluster.hosts)

    # --- what may happen ---------------------------------------------------------------

    async def suspend(self) -> str:
        """Cut a sidecar off."""
        agent = self._agent()
        agent.coordination.suspend()
        return agent.url

    async def reconnect(self) -> str:
        """Let a sidecar connect again."""
        agent = self._agent()
        if agent.alive:
            agent.coordination.reconnect()
        return agent.url

    async def freeze(self) -> str:
        """Stop a sidecar's process."""
        agent = self._agent()
        agent.coordination.freeze()
        return agent.url

    async def thaw(self) -> str:
        """Let all stopped processes go on."""
        for agent in self._cluster.living:
            agent.coordination.thaw()
        return "all"

    async def kill(self) -> str:
        """End a sidecar at once."""
        agent = self._agent()
        if agent.alive:
            await agent.kill()
        return agent.url

    async def leave(self) -> str:
        """Ask a sidecar to end."""
        agent = self._agent()
        agent.stop.set()
        return agent.url

    async def start(self) -> str:
        """Start a sidecar where there is none."""
        host = self._host()
        if not any(agent.alive and agent.host is host for agent in self._cluster.agents):
            return self._cluster.start(host).url
        return "nothing"

    async def start_beside_the_old_one(self) -> str:
        """Start a sidecar, whoever is there."""
        return self._cluster.start(self._host()).url

    async def kill_broker(self) -> str:
        """End a broker at once."""
        host = self._host()
        host.kill_broker()
        return host.name

    async def restart_broker(self) -> str:
        """Replace a broker process by another."""
        host = self._host()
        host.restart_broker()
        return host.name

    async def freeze_broker(self) -> str:
        """Stop a broker's process."""
        host = self._host()
        host.freeze_broker()
        return host.name

    async def thaw_broker(self) -> str:
        """Let all brokers be as they should."""
        for host in self._cluster.hosts:
            host.cut = False
            host.thaw_broker()
            host.broker.heal()
        return "all"

    async def cut_broker(self) -> str:
        """Let a broker refuse connections."""
        host = self._host()
        host.cut = True
        return host.name

    async def spoil_commands(self) -> str:
        """Let some commands to a broker fail."""
        host = self._host()
        fault = self._rng.choice([Fault.LATE, Fault.LOST_ANSWER, Fault.REFUSED, Fault.GARBAGE])
        commands: list[CommandName] = ["stats", "renew_lease", "load", "unload"]
        command = self._rng.choice(commands)
        host.broker.inject(fault, command, times=self._rng.randrange(1, 4))
        return f"{host.name} {fault} {command}"

    async def lose_writes(self) -> str:
        """Lose some of the next writes, or their replies."""
        losses = self._cluster.losses
        losses.place = self._rng.choice(list(LossPlace))
        count = self._rng.randrange(1, 4)
        losses.lost = frozenset(losses.writes + self._rng.randrange(10) for _ in range(count))
        return f"{losses.place} {sorted(losses.lost)}"

    async def move_bundle(self) -> str:
        """Have the leader decide on a move, as a round would."""
        bundle, target = self._rng.choice(self.bundles), self._host().name
        for agent in self._cluster.living:
            desk = agent.app.leading._desk if agent.application else None
            if desk is not None and target in agent.picture.brokers:
                task = asyncio.ensure_future(self._order(desk, bundle, target))
                self._lookups.add(task)
        return f"{bundle} to {target}"

    async def _order(self, desk: Desk, bundle: BundleId, target: BrokerId) -> None:
        with contextlib.suppress(CoordinationError, Deposed):
            await desk._order({bundle: target})


@pytest.mark.parametrize("seed", SEEDS)
def test_no_fault_makes_two_brokers_serve_and_peace_mends_all(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        rng = Random(seed)  # noqa: S311 - to be repeatable
        chaos = Chaos(cluster, await cluster.make_namespace(6), rng)
        try:
            for _ in range(STEPS):
                await chaos.step()
                cluster.check()
            await chaos.peace()
            await chaos.all_answered()
            await cluster.settled(chaos.bundles)
        except AssertionError as error:
            error.add_note("\n".join(["what was done:", *chaos.done, "", *map(str, cluster.told)]))
            raise

    play(tell, seed=seed, config=make_config())

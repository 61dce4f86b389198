"""Three sidecars, and every fault there is, in random order; then peace, and all must be well."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from loadmanager.adapters.broker.in_process import CommandName, Fault
from loadmanager.app.desk import Desk
from loadmanager.app.electing import Deposed
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, TopicName
from loadmanager.core.orders import SplitOrder
from loadmanager.core.wire import decode_boundaries
from loadmanager.faults.agent import SESSION_S, Agent
from loadmanager.faults.cluster import NAMESPACE, Cluster, make_config, play, topic_in
from loadmanager.faults.host import Host
from loadmanager.faults.wires import LossPlace
from loadmanager.ports import CoordinationError, LookupRefused, Owner

SEEDS = range(int(os.environ.get("LOADMANAGER_FAULT_SEEDS", "8")))
STEPS = 40


class Chaos:
    """Does one random thing after another to a cluster, and asks for owners meanwhile."""

    def __init__(self, cluster: Cluster, boundaries: Boundaries, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._topics = {bundle: topic_in(boundaries, bundle) for bundle in boundaries.bundles}
        self._lookups: set[asyncio.Task[None]] = set()
        self.done: list[str] = []
        # Twice as much is mended as is broken, or nothing would be left to break.
        self._things: list[tuple[int, Callable[[], Awaitable[str]]]] = [
            (2, self.suspend),
            (5, self.reconnect),
            (1, self.freeze),
            (3, self.thaw),
            (1, self.kill),
            (1, self.leave),
            (4, self.start),
            (1, self.start_beside_the_old_one),
            (1, self.kill_broker),
            (1, self.restart_broker),
            (1, self.freeze_broker),
            (1, self.cut_broker),
            (5, self.mend_brokers),
            (2, self.spoil_commands),
            (3, self.lose_writes),
            (10, self.move_bundle),
            (2, self.split_bundle),
        ]

    @property
    def bundles(self) -> tuple[BundleId, ...]:
        """The namespace's bundles as they stand now."""
        path = znodes.local_policies(NAMESPACE)
        node = self._cluster.service.dump()[path]
        return decode_boundaries(path, NAMESPACE, node.data, node.stat.version).bundles

    async def step(self) -> None:
        """Do one thing, look something up, and let some time pass."""
        weights, things = zip(*self._things, strict=True)
        (thing,) = self._rng.choices(things, weights)
        what = await thing()
        now_s = asyncio.get_running_loop().time()
        self.done.append(f"{now_s:.3f} {thing.__name__} {what}")
        self._ask()
        await asyncio.sleep(
            self._rng.choice([0.0, 0.003, 0.01, 0.1, 0.5, 2.0, 2.0, SESSION_S * 0.7])
        )

    async def peace(self) -> None:
        """End all faults, and have one sidecar beside every broker."""
        cluster = self._cluster
        cluster.losses.lost = frozenset()
        for agent in cluster.agents:
            agent.gate.open()
            if agent.alive:
                agent.coordination.thaw()
                agent.coordination.reconnect()
        await self.mend_brokers()
        for _ in range(3):
            await asyncio.sleep(SESSION_S)
            await self.start()

    async def all_answered(self) -> None:
        """Return when every sidecar answered for every bundle."""
        for agent in self._cluster.living:
            for topic in self._topics.values():
                assert isinstance(await agent.look_up(topic), Owner)
        await asyncio.gather(*self._lookups)

    def _ask(self) -> None:
        topic = self._rng.choice(list(self._topics.values()))
        if self._cluster.living:
            agent = self._rng.choice(self._cluster.living)
            task = asyncio.ensure_future(self._look_up(agent, topic))
            self._lookups.add(task)

    async def _look_up(self, agent: Agent, topic: TopicName) -> None:
        with contextlib.suppress(LookupRefused):
            await agent.look_up(topic)

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
        """Let all sidecars connect again."""
        for agent in self._cluster.living:
            agent.coordination.reconnect()
        return "all"

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
        """Start a sidecar wherever there is none."""
        alone = [h for h in self._cluster.hosts if h not in {a.host for a in self._cluster.living}]
        return " ".join(self._cluster.start(host).url for host in alone)

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

    async def mend_brokers(self) -> str:
        """Let all brokers be as they should."""
        for host in self._cluster.hosts:
            host.cut = False
            host.thaw_broker()
            host.broker.heal()
            if host.dead:
                host.restart_broker()
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
            desk = agent.app.leading.desk if agent.application else None
            if desk is not None and target in agent.picture.brokers:
                task = asyncio.ensure_future(self._order(desk, bundle, target))
                self._lookups.add(task)
        return f"{bundle} to {target}"

    async def split_bundle(self) -> str:
        """Have the leader order a bundle to be cut in two."""
        bundle = self._rng.choice(self.bundles)
        for agent in self._cluster.living:
            desk = agent.app.leading.desk if agent.application else None
            if desk is not None:
                self._lookups.add(asyncio.ensure_future(self._order_split(desk, bundle)))
        return bundle

    async def _order_split(self, desk: Desk, bundle: BundleId) -> None:
        with contextlib.suppress(CoordinationError, Deposed, LookupRefused):
            await desk.order_split(bundle, SplitOrder("range_equally_divide"))

    async def _order(self, desk: Desk, bundle: BundleId, target: BrokerId) -> None:
        with contextlib.suppress(CoordinationError, Deposed):
            await desk.order({bundle: target})


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
            await cluster.settled_at_last(lambda: chaos.bundles)
        except AssertionError as error:
            error.add_note("\n".join(["what was done:", *chaos.done, "", *map(str, cluster.told)]))
            raise

    play(tell, seed=seed, config=make_config())

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from loadmanager.core.ids import BundleId, Namespace
from loadmanager.leader.election import Deposed
from loadmanager.leader.term import LeaderTerm
from loadmanager.ports.broker import BrokerError
from loadmanager.ports.coordination import CoordinationError
from loadmanager.ports.lookup import LookupRefused
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import Cluster
from tests.testbed.faults.host import Host
from tests.testbed.faults.monitor import Monitor
from tests.testbed.faults.service import Snapshot

REFUSALS = (CoordinationError, Deposed, LookupRefused, BrokerError)
"""Errors that clients must expect during faults."""


@dataclass(slots=True)
class Scene:
    """The cluster, its monitor, and the random numbers of one run.

    ``counts`` is the number of times that each action had an effect.
    """

    cluster: Cluster
    monitor: Monitor
    rng: Random
    counts: Counter[str] = field(default_factory=Counter)
    snapshot: Snapshot | None = None
    """The last copy of the nodes of the ensemble."""
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    def any_agent(self) -> Agent:
        return self.rng.choice(self.cluster.living or self.cluster.agents)

    def any_host(self) -> Host:
        return self.rng.choice(self.cluster.hosts)

    def any_bundle(self) -> BundleId | None:
        bundles = self.monitor.bundles
        return self.rng.choice(bundles) if bundles else None

    def any_namespace(self) -> Namespace | None:
        namespaces = self.monitor.namespaces
        return self.rng.choice(namespaces) if namespaces else None

    def terms(self) -> list[tuple[Agent, LeaderTerm]]:
        found = []
        for agent in self.cluster.living:
            leader_term = agent.app.leading.leader_term if agent.application else None
            if leader_term is not None:
                found.append((agent, leader_term))
        return found

    def start(self, host: Host) -> Agent:
        agent = self.cluster.start(host)
        self.monitor.follow_agent(agent)
        return agent

    def begin(self, asked: Coroutine[Any, Any, object]) -> None:
        """Send a request in the background; its failure is accepted."""
        task = asyncio.ensure_future(_accept_refusal(asked))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


Do = Callable[[Scene], Awaitable[str]]
"""Carries out an action, and returns its subject; "" if it had no effect."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action that a step may carry out, chosen with a probability proportional to ``weight``.

    If it ``harms``, it injects a fault, and the times without service count from then on.
    """

    name: str
    weight: int
    do: Do
    harms: bool = False


async def _accept_refusal(asked: Coroutine[Any, Any, object]) -> None:
    try:
        await asked
    except REFUSALS:
        return

"""A balancer of fake brokers, and a log that keeps what it says."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fake_pulsar import FakePulsar

from loadmanager.core.bundle_task import BundleTask, TaskState
from loadmanager.core.ids import BundleId
from loadmanager.core.move_limits import MoveBudget, MoveLimits
from loadmanager.pulsar.answers import ClusterReader
from loadmanager.pulsar.balancing import Balancer
from loadmanager.pulsar.client import PulsarAdmin
from loadmanager.pulsar.observation import Observation, Rules
from loadmanager.pulsar.state import PulsarBalancer, State


@dataclass
class Told:
    seen: list[Observation] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    tasks: list[BundleTask] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    after_round: Callable[[], object] = lambda: None

    def round(self, seen: Observation, held: str) -> None:
        self.seen.append(seen)
        self.held.append(held)
        self.after_round()

    def task(self, task: BundleTask) -> None:
        self.tasks.append(task)

    def event(self, what: str) -> None:
        self.events.append(what)

    @property
    def ended(self) -> dict[BundleId, TaskState]:
        return {task.bundle: task.state for task in self.tasks if task.state.ended}


def balancer_of(pulsar: FakePulsar, admin: PulsarAdmin, state: State, **more: Any) -> Balancer:
    values = {
        "rules": Rules(move_partial=False),
        "budget": MoveBudget(MoveLimits()),
        "interval_s": 0.2,
        "settle_s": 0.0,
        "log": Told(),
        **more,
    }
    return Balancer(
        reader=ClusterReader(admin, (pulsar.url,)),
        pulsar_balancer=PulsarBalancer(state),
        stopping=asyncio.Event(),
        **values,
    )


async def balanced(balancer: Balancer, rounds: int | None = None) -> Told:
    assert isinstance(balancer.log, Told)
    await balancer.run(await balancer.reader.read(), rounds, take_over=False)
    return balancer.log

"""Hundreds of sidecars with real sessions of one real ZooKeeper, in a few processes.

Each sidecar has an address of its own on the loopback device, and is the real application with
its HTTP server; its broker is in the same process.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from coordination_worlds import connected

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace
from loadmanager.core.wire.policies import encode_boundaries
from loadmanager.reference_broker.changes import ServingInterval, overlaps

NAMESPACE: Final = Namespace("acme/orders")
CLIENTS: Final = 32
"""How many lookups wait at once, in all, where nothing else is said."""

LOOK_EVERY_S: Final = 0.1
_LONGEST_LINE_BYTES: Final = 2**28


@dataclass
class Group:
    names: Sequence[str]
    process: asyncio.subprocess.Process

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def ask(self, do: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        line = await self.process.stdout.readline()
        assert line, f"the process of {self.names[0]} and others ended: {self.process.returncode}"
        return json.loads(line)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@dataclass(frozen=True, slots=True)
class Use:
    at_s: float
    asked: Mapping[str, int]
    """Requests of each sidecar to ZooKeeper."""

    cpu_s: Mapping[str, float]
    """Of the process of each sidecar."""

    all_cpu_s: float
    memory_bytes: Mapping[str, int]
    """Of the process of each sidecar, without what it shares with others."""

    successors: Sequence[str]


@dataclass
class Swarm:
    zookeeper: str
    config: Mapping[str, Any]
    log_folder: Path
    chroot: str = field(default_factory=lambda: f"/swarm-{uuid4().hex}")
    started: int = 0
    groups: list[Group] = field(default_factory=list)
    boundaries: Boundaries | None = None

    @property
    def living(self) -> list[Group]:
        return [group for group in self.groups if group.alive]

    @property
    def sidecars(self) -> int:
        return sum(len(group.names) for group in self.living)

    async def add(self, sidecars: int) -> Group:
        network = f"127.{os.getpid() % 200 + 20}"
        number, self.started = self.started, self.started + sidecars
        each = range(number, number + sidecars)
        names = [f"{network}.{one // 200}.{one % 200 + 1}:8080" for one in each]
        config = {
            "cluster": {"name": "swarm"},
            "zookeeper": {"hosts": self.zookeeper, "chroot": self.chroot},
            **self.config,
        }
        with (self.log_folder / f"swarm{number}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                Path(__file__).with_name("swarm_process.py"),
                json.dumps({"config": config}),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=_LONGEST_LINE_BYTES,
            )
        group = Group(names, process)
        self.groups.append(group)
        await group.ask("start", names=names)
        return group

    async def ask_all(self, do: str, **arguments: Any) -> list[Any]:
        return list(await asyncio.gather(*(one.ask(do, **arguments) for one in self.living)))

    async def use(self) -> Use:
        answers = await self.ask_all("use")
        return Use(
            at_s=float(answers[0]["at_s"]),
            asked={name: sum(n.values()) for one in answers for name, n in one["asked"].items()},
            cpu_s={name: one["cpu_s"] for one in answers for name in one["asked"]},
            all_cpu_s=sum(one["cpu_s"] for one in answers),
            memory_bytes={name: one["memory_bytes"] for one in answers for name in one["asked"]},
            successors=answers[0]["successors"],
        )

    async def until(
        self, condition: Callable[[Sequence[Mapping[str, Any]]], object], within_s: float
    ) -> Sequence[Mapping[str, Any]]:
        deadline_s = asyncio.get_running_loop().time() + within_s
        while not condition(states := await self.ask_all("state")):
            assert asyncio.get_running_loop().time() < deadline_s, f"{within_s} s: {states}"
            await asyncio.sleep(LOOK_EVERY_S)
        return states

    async def ready(self, within_s: float = 120.0) -> None:
        count = self.sidecars
        await self.until(
            lambda states: (
                sum(one["ready"] for one in states) == count
                and all(one["brokers"] == count for one in states)
                and leader_in(states)
            ),
            within_s,
        )

    async def all_served(self, within_s: float) -> float:
        """Return when so many bundles were served as there are, on the monotonic clock."""
        assert self.boundaries is not None
        count = len(self.boundaries.bundles)
        states = await self.until(
            lambda states: sum(one["serving"] for one in states) == count, within_s
        )
        return max(float(one["at_s"]) for one in states)

    async def create_namespace(self, bundles: int) -> None:
        self.boundaries = Boundaries.even(NAMESPACE, bundles)
        hand = ZooKeeperCoordination(ZooKeeperOptions(hosts=self.zookeeper, chroot=self.chroot))
        await connected(hand)
        await hand.ensure(znodes.local_policies(NAMESPACE))
        await hand.set(znodes.local_policies(NAMESPACE), encode_boundaries(self.boundaries))
        await hand.close()

    async def draw_topics(self) -> None:
        assert self.boundaries is not None
        living = self.living
        for part, group in enumerate(living):
            await group.ask(
                "draw_topics",
                namespace=NAMESPACE,
                bundles=len(self.boundaries.bundles),
                part=part,
                of=len(living),
            )

    async def look_up(self, clients: int = CLIENTS) -> list[Mapping[str, Any]]:
        return await self.ask_all("look_up", clients=max(1, clients // len(self.living)))

    async def check(self) -> None:
        assert self.boundaries is not None
        answers = await self.ask_all("served")
        served = [one for each in answers for held in each["now"].values() for one in held]
        assert sorted(served) == sorted(self.boundaries.bundles)
        spells = [ServingInterval(**values) for each in answers for values in each["intervals"]]
        assert overlaps(spells) == []


def leader_in(states: Sequence[Mapping[str, Any]]) -> str:
    return next((name for one in states for name in one["leading"]), "")


@asynccontextmanager
async def swarm(
    zookeeper: str, log_folder: Path, **config: Mapping[str, Any]
) -> AsyncIterator[Swarm]:
    """Yield a swarm without sidecars, and kill at the end what lives of it."""
    made = Swarm(zookeeper, config, log_folder)
    try:
        yield made
    finally:
        await asyncio.gather(*(group.kill() for group in made.living))

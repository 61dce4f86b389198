"""The hosts of a cluster under faults: a broker and its sidecar each, and where they run."""

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Self

from zookeeper_proxy import ZooKeeperProxy

from loadmanager.core.ids import BrokerId
from loadmanager.demo.children import Child

LOOPBACK = "127.0.0.1"
BUILDS = Path(__file__).parents[1] / "faults" / "builds"
SESSION_S = 3.0
TICK_S = 0.3
"""ZooKeeper's. It ends sessions at whole ticks, so up to one after their timeout."""

MARGIN_S = 1.0
"""For all that the service has to do: place, take locks, load."""

WITHIN_S = SESSION_S + TICK_S + MARGIN_S
"""Within this time of a fault every bundle is served again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a host runs. ``enter`` begins the command line of its processes.

    ``address`` is its own, ``zookeeper`` the one under which it reaches ZooKeeper. What
    its broker and its sidecar write goes into folders of theirs, if they are given.
    """

    address: str = LOOPBACK
    zookeeper: str = LOOPBACK
    enter: tuple[str, ...] = ()
    sidecar_environment: Mapping[str, str] = field(default_factory=dict)
    broker_environment: Mapping[str, str] = field(default_factory=dict)
    broker_folder: Path | None = None
    sidecar_folder: Path | None = None


@dataclass(slots=True)
class Life:
    """One process of a broker. ``dead_at_s`` is when it was dead for sure, if it was killed."""

    record: Path
    child: Child
    dead_at_s: float | None = None


@dataclass(slots=True)
class Host:
    """A broker and its sidecar. ``number`` counts from 1; ``hosts`` are its ZooKeeper's."""

    number: int
    broker: BrokerId
    sidecar_url: str
    hosts: str
    place: Place
    proxy: ZooKeeperProxy | None = None
    sidecar: Child | None = None
    lives: list[Life] = field(default_factory=list)

    @classmethod
    def at(
        cls,
        place: Place,
        number: int,
        ports: tuple[int, int],
        *,
        hosts: str,
        proxy: ZooKeeperProxy | None,
    ) -> Self:
        broker, sidecar = (f"{place.address}:{port}" for port in ports)
        return cls(number, BrokerId(broker), f"http://{sidecar}", hosts, place, proxy)

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def _sidecar(self) -> Child:
        assert self.sidecar is not None
        return self.sidecar

    async def kill(self, *, sidecar: bool = False, broker: bool = False) -> None:
        victims = [*[self._sidecar] * sidecar, *[self.life.child] * broker]
        for child in victims:
            child.send(signal.SIGKILL)
        await asyncio.gather(*(child.process.wait() for child in victims))
        if broker:
            self.life.dead_at_s = monotonic()

    def send(self, number: signal.Signals, *, sidecar: bool = False, broker: bool = False) -> None:
        for child in [*[self._sidecar] * sidecar, *[self.life.child] * broker]:
            os.killpg(child.process.pid, number)


def sidecar_settings(host: Host) -> Mapping[str, Mapping[str, Any]]:
    """Return a sidecar's configuration: quick, and never at rest, so that faults hit hand-overs."""
    listen_host, _, port = host.sidecar_url.removeprefix("http://").rpartition(":")
    return {
        "broker": {"id": host.broker, "control_timeout_s": 0.5},
        "sidecar": {"listen_host": listen_host, "listen_port": int(port), "health_port": 0},
        "security": {"anonymous": "admin"},
        "cluster": {"name": "faults"},
        "zookeeper": {
            "hosts": host.hosts,
            "session_timeout_s": SESSION_S,
            # As operators are told to: a lease counts from what ZooKeeper's leader heard, up to
            # half a tick late, so a thawed sidecar would wait for a second with the usual 2 s.
            "tick_s": TICK_S,
        },
        "host": {"scope": "process", "cores": 0.1},
        "report": {"sample_interval_s": 0.5, "min_interval_s": 0.5, "max_interval_s": 2.0},
        "leader": {"round_interval_s": 2.0, "tick_interval_s": 0.5, "settle_s": 1.0},
        "shedding": {"strategy": "ThresholdShedder", "grace_period_s": 2.0},
        "shedding.settings": {"threshold": 0.05, "history": 0.2, "min_bytes_per_s": 0.0},
        "lookup": {"wait_s": 1.0},
        "log": {"format": "console"},
    }


def build(name: str) -> Mapping[str, str]:
    """Return the environment of a process that is changed by a ``sitecustomize`` of the tests."""
    others = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{BUILDS / name}{os.pathsep}{others}".rstrip(os.pathsep)}

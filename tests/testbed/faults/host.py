import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from loadmanager.adapters.broker.contract import StatsAnswer, parsed_stats
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import HostUsage, ResourceUsage
from loadmanager.ports.broker import BrokerRefused, BrokerStats, BrokerUnreachable
from loadmanager.reference_broker.changes import Change, ServingInterval
from tests.testbed.faults.virtual_time import DriftingClock
from tests.testbed.faults.wires import Gate, sent
from tests.testbed.in_process import InProcessBroker

T = TypeVar("T")
CONTROL_TIMEOUT_S = 0.5
LATENCY_S = 0.002


class Host:
    """A broker, whose clock differs after each restart, and the load of its host.

    ``watchers`` are called at each change of the bundles that the broker serves. ``machine`` is
    the host name that a newly started sidecar reports.
    """

    def __init__(self, broker: BrokerId, rng: Random, *, drift_fraction: float = 0.0) -> None:
        self.name = broker
        self.machine = broker.partition(":")[0]
        self.gate = Gate()
        self.rng = rng
        self.cut = False
        self.dead = False
        self.cpu_fraction = 0.1
        self.figures: Mapping[str, object] = {}
        """False values in the statistics of every bundle, by field."""
        self.window: object = None
        """False value of the window of these statistics."""
        self.claimed = False
        """Whether a foreign client holds the lease: the broker then refuses its agent."""
        self.life = 0
        self.watchers: list[Callable[[Host, Change], None]] = []
        self._drift_fraction = drift_fraction
        self._clocks: dict[str, DriftingClock] = {}
        self._clock = self._new_clock()
        self.broker = InProcessBroker(self._clock_s, broker=broker, on_change=self._report)
        self._clocks[self.broker.incarnation] = self._clock

    def kill_broker(self) -> None:
        self.life += 1
        self.dead = True
        self.broker.kill()

    def restart_broker(self) -> None:
        """Replace the broker process; the new one has another clock."""
        self.life += 1
        self.broker.kill()
        self._clock = self._new_clock()
        self.broker.restart()
        self._clocks[self.broker.incarnation] = self._clock
        self.dead = self.claimed = False

    async def claim_broker(self, agent_epoch: int) -> None:
        """Take the lease for a foreign client; raises as `BrokerControl.renew_lease`."""
        await self.broker.renew_lease(agent_epoch=agent_epoch, until_s=None, incarnation=None)
        self.claimed = True

    async def stats(self) -> BrokerStats:
        stats = await self.broker.stats()
        if not self.figures and self.window is None:
            return stats
        answer = json.loads(StatsAnswer.of(stats).to_json())
        for figures in answer["bundles"].values():
            figures.update(self.figures)
        if self.window is not None:
            answer["windowSeconds"] = self.window
        try:
            return parsed_stats(json.dumps(answer).encode(), f"{self.name}: stats")
        except MalformedContent as error:
            raise BrokerRefused(str(error)) from None

    def freeze_broker(self) -> None:
        self.gate.close()

    def thaw_broker(self) -> None:
        self.gate.open()

    def intervals(self) -> list[ServingInterval]:
        """Return the serving intervals of the broker, on the clock of the event loop."""
        found = []
        for interval in self.broker.intervals():
            clock = self._clocks[interval.incarnation]
            start_s, end_s = clock.loop_s(interval.start_s), clock.loop_s(interval.end_s)
            found.append(replace(interval, start_s=start_s, end_s=end_s))
        return found

    @property
    def obeys(self) -> bool:
        spoilt = self.figures or self.window is not None or self.broker.faulty
        return not (self.dead or self.cut or self.gate.shut or self.claimed or spoilt)

    @property
    def serving(self) -> Mapping[BundleId, int]:
        return self.broker.serving

    def _clock_s(self) -> float:
        return self._clock.monotonic_s()

    def _new_clock(self) -> DriftingClock:
        rate = 1.0 + self.rng.uniform(-self._drift_fraction, self._drift_fraction)
        return DriftingClock(self.rng.uniform(-500.0, 5000.0), rate)

    def _report(self, change: Change) -> None:
        for watcher in self.watchers:
            watcher(self, change)


class BrokerLine:
    """The `BrokerControl` of one sidecar process: its commands with latency and timeouts.

    A command that was sent is executed even if the sidecar ends, unless the broker is killed
    first. A frozen broker executes it when it resumes.
    """

    health: Any
    stats: Any
    topics: Any
    renew_lease: Any
    load: Any
    unload: Any

    def __init__(self, host: Host, own_gate: Gate) -> None:
        self._host = host
        self._own_gate = own_gate
        self.dead = False

    def __getattr__(self, command: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        does = self._host.stats if command == "stats" else getattr(self._host.broker, command)
        return lambda *given, **named: self._asked(lambda: does(*given, **named))

    async def close(self) -> None:
        """See `BrokerControl`."""

    async def _asked(self, command: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._own_gate.passed()
        if self.dead or self._host.cut:
            raise BrokerUnreachable(f"{self._host.name}: connection refused")
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT_S):
                answer = await sent(self._done(command))
        except TimeoutError:
            raise BrokerUnreachable(f"{self._host.name}: no answer in time") from None
        await self._own_gate.passed()
        return answer

    async def _done(self, command: Callable[[], Coroutine[Any, Any, T]]) -> T:
        life = self._host.life
        await asyncio.sleep(self._host.rng.random() * LATENCY_S)
        await self._host.gate.passed()
        if life != self._host.life or self._host.cut:
            raise BrokerUnreachable(f"{self._host.name}: connection reset")
        answer = await command()
        await asyncio.sleep(self._host.rng.random() * LATENCY_S)
        await self._host.gate.passed()
        return answer


class ScriptedProbe:
    def __init__(self, host: Host) -> None:
        self._host = host

    def sample(self, **_asked: object) -> HostUsage:
        return HostUsage(
            window_s=1.0,
            cpu=ResourceUsage(400 * self._host.cpu_fraction, 400.0),
            memory=ResourceUsage(100.0, 1000.0),
            bandwidth_in=ResourceUsage(10.0, 1000.0),
            bandwidth_out=ResourceUsage(10.0, 1000.0),
        )

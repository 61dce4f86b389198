"""A broker for tests of the application: the port on the same state machine, with faults."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, TypeVar

from loadmanager.adapters.broker.contract import LeaseRequest, LoadRequest
from loadmanager.core.hashing import DEFAULT_HASH, HashName
from loadmanager.core.ids import BundleId, TopicName
from loadmanager.core.rates import Rates
from loadmanager.ports.broker import (
    BrokerError,
    BrokerRefused,
    BrokerState,
    BrokerStats,
    BrokerUnreachable,
)
from loadmanager.reference_broker.changes import (
    Accepted,
    Change,
    NoLease,
    ServingInterval,
    TopicNotServed,
    intervals_of,
)
from loadmanager.reference_broker.memory_broker import MemoryBroker

CommandName = Literal["health", "stats", "topics", "renew_lease", "load", "unload"]
_T = TypeVar("_T")


class Fault(StrEnum):
    # Nothing is done: BrokerUnreachable.
    UNREACHABLE = "unreachable"
    # The command is carried out, but never answered: BrokerUnreachable.
    LOST_ANSWER = "lost_answer"
    # BrokerUnreachable now; carried out by the same process at `heal`, as after a long delay.
    LATE = "late"
    # No answer until `heal`; without effect if the caller gives up before.
    HANG = "hang"
    # The command has no effect: BrokerRefused.
    REFUSED = "refused"
    # The command is carried out, but its answer cannot be parsed: BrokerRefused.
    GARBAGE = "garbage"


@dataclass(slots=True)
class _Injected:
    fault: Fault
    commands: tuple[CommandName, ...]
    left: int | None


class InProcessBroker:
    """The in-memory broker without HTTP, as a `BrokerControl`.

    An expired lease is noticed at the next call, with the time at which it expired. So a test only
    has to advance its clock.

    Args:
        clock_s: the broker's monotonic clock.
        broker: ``host:port``, for `intervals`.
        hash_name, window_s: as for `MemoryBroker`.
        process_id: the one in `stats`.
        on_change: called at once with each change of the served bundles.
    """

    def __init__(
        self,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        broker: str = "broker:8080",
        hash_name: HashName = DEFAULT_HASH,
        window_s: float = 2.0,
        process_id: int | None = None,
        on_change: Callable[[Change], None] | None = None,
    ) -> None:
        self._clock_s = clock_s
        self._on_change = on_change
        self._name = broker
        self._hash_name: HashName = hash_name
        self._window_s = window_s
        self._process_id = process_id
        self._lives = 0
        self._past: list[ServingInterval] = []
        self._changes: list[Change] = []
        self._faults: list[_Injected] = []
        self._late: list[Callable[[], object]] = []
        self._healed = asyncio.Event()
        self._broker: MemoryBroker | None = None
        self.commands: list[CommandName] = []
        """All received commands in order, including refused ones."""
        self.restart()

    async def health(self, timeout_s: float) -> None:
        del timeout_s
        await self._command("health", lambda _process: None)

    async def stats(self) -> BrokerStats:
        stats = await self._command("stats", MemoryBroker.stats)
        return replace(stats, process_id=self._process_id)

    async def topics(self, bundle: BundleId) -> Mapping[TopicName, Rates]:
        return await self._command("topics", lambda process: process.topics(bundle))

    async def renew_lease(
        self, *, agent_epoch: int, until_s: float | None, incarnation: str | None
    ) -> BrokerState:
        LeaseRequest(agent_epoch=agent_epoch, until_seconds=until_s, incarnation=incarnation)
        return await self._command(
            "renew_lease",
            lambda process: process.renew_lease(
                agent_epoch=agent_epoch, until_s=until_s, incarnation=incarnation
            ),
        )

    async def load(self, bundle: BundleId, *, agent_epoch: int, fencing_token: int) -> None:
        grant = LoadRequest(agent_epoch=agent_epoch, fencing_token=fencing_token)
        await self._command("load", lambda process: process.load(bundle, **vars(grant)))

    async def unload(
        self, bundle: BundleId, *, agent_epoch: int, fencing_token: int, next_owner_url: str = ""
    ) -> None:
        grant = LoadRequest(agent_epoch=agent_epoch, fencing_token=fencing_token)
        await self._command("unload", lambda process: process.begin_unload(bundle, **vars(grant)))
        await self.process.unload(bundle, **vars(grant), next_owner_url=next_owner_url)

    async def close(self) -> None:
        """See `BrokerControl.close`."""

    def inject(self, fault: Fault, *commands: CommandName, times: int | None = None) -> None:
        """Make ``commands`` (all, if none is named) fail, ``times`` times or until `heal`."""
        self._faults.append(_Injected(fault, commands, times))

    def heal(self) -> None:
        """End all faults: hanging commands continue, late ones are carried out without an answer.

        Late commands to a process that has ended since are lost.
        """
        self._faults.clear()
        self._healed.set()
        self._healed = asyncio.Event()
        late, self._late = self._late, []
        for do in late:
            try:
                do()
            except BrokerError:
                continue

    def kill(self) -> None:
        self._past += intervals_of(self._changes, died_at_s=self._clock_s())
        self._changes = []
        self._late = []
        self._broker = None

    def restart(self) -> None:
        """Start a new process, which serves no bundles and has seen no epoch or token."""
        self.kill()
        self._lives += 1
        self._broker = MemoryBroker(
            broker=self._name,
            incarnation=self.incarnation,
            clock_s=self._clock_s,
            record=self._record,
            hash_name=self._hash_name,
            window_s=self._window_s,
        )

    @property
    def process(self) -> MemoryBroker:
        """The current process, regardless of faults; raises BrokerUnreachable."""
        if self._broker is None:
            raise BrokerUnreachable(f"{self._name}: the broker is dead")
        return self._broker

    @property
    def faulty(self) -> bool:
        return bool(self._faults)

    @property
    def incarnation(self) -> str:
        """The incarnation of the current or last process, regardless of faults."""
        return f"{self._name}#{self._lives}"

    @property
    def serving(self) -> Mapping[BundleId, int]:
        """The bundles that it serves now, with tokens, regardless of faults."""
        return {} if self._broker is None else self._broker.state().serving

    def intervals(self) -> list[ServingInterval]:
        """Return the intervals in which it served bundles, up to now, over all its processes."""
        if self._broker is not None:
            self._broker.state()
        return [*self._past, *intervals_of(self._changes, died_at_s=self._clock_s())]

    def publish(self, topic: TopicName, *, payload_bytes: int = 100) -> Accepted | None:
        """Publish one message; return None if it was refused. Raises BrokerUnreachable."""
        process = self.process
        with suppress(NoLease, TopicNotServed):
            ticket = process.begin_publish(topic)
            return process.finish_publish(ticket, producer="producer", payload_bytes=payload_bytes)
        return None

    def _record(self, change: Change) -> None:
        self._changes.append(change)
        if self._on_change is not None:
            self._on_change(change)

    async def _command(self, name: CommandName, do: Callable[[MemoryBroker], _T]) -> _T:
        self.commands.append(name)
        fault = self._next_fault(name)
        if fault is Fault.HANG:
            asked = self._broker
            await self._healed.wait()
            if self._broker is not asked:
                raise BrokerUnreachable(f"{self._name}: {name}: its process ended")
        elif fault is Fault.LATE:
            self._late.append(lambda: do(self.process))
        if fault in {Fault.UNREACHABLE, Fault.LATE}:
            raise BrokerUnreachable(f"{self._name}: {name}: no answer ({fault})")
        if fault is Fault.REFUSED:
            raise BrokerRefused(f"{self._name}: {name}: status 500 ({fault})")
        done = do(self.process)
        if fault is Fault.LOST_ANSWER:
            raise BrokerUnreachable(f"{self._name}: {name}: no answer ({fault})")
        if fault is Fault.GARBAGE:
            raise BrokerRefused(f"{self._name}: {name}: the answer is no JSON ({fault})")
        return done

    def _next_fault(self, name: CommandName) -> Fault | None:
        for injected in self._faults:
            if injected.commands and name not in injected.commands:
                continue
            if injected.left is not None:
                injected.left -= 1
                if injected.left == 0:
                    self._faults.remove(injected)
            return injected.fault
        return None

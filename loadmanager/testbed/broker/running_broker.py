"""The running in-memory broker: its state machine with a clock, and commands that wait.

Both HTTP and the in-process broker of tests use this class.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadmanager.core.hashing import DEFAULT_HASH, HashName
from loadmanager.core.ids import BundleId, TopicName
from loadmanager.core.rates import Rates
from loadmanager.ports import BrokerState, BrokerStats
from loadmanager.testbed.broker.changes import Change
from loadmanager.testbed.broker.memory_broker import MemoryBroker
from loadmanager.testbed.broker.outcomes import Accepted, PublishRefused
from loadmanager.testbed.broker.serving_set import Ticket
from loadmanager.testbed.broker.traffic import Clients


@dataclass(frozen=True, slots=True)
class Grant:
    """A served bundle and its fencing token."""

    bundle: BundleId
    fencing_token: int


class RunningBroker:
    """One incarnation of the in-memory broker. Belongs to one event loop.

    ``clock_s`` is its monotonic clock: `time.monotonic`, or a test's own. The other
    arguments are those of `MemoryBroker`.
    """

    def __init__(
        self,
        *,
        broker: str,
        incarnation: str,
        clock_s: Callable[[], float],
        record: Callable[[Change], None],
        hash_name: HashName = DEFAULT_HASH,
        window_s: float = 2.0,
    ) -> None:
        self._clock_s = clock_s
        self._record = record
        self._changed = asyncio.Event()
        self._next_owner_urls: dict[BundleId, str] = {}
        self._machine = MemoryBroker(
            broker=broker,
            incarnation=incarnation,
            hash_name=hash_name,
            window_s=window_s,
            record=self._on_change,
            now_s=clock_s(),
        )

    def state(self) -> BrokerState:
        """Return the bundles served now."""
        return self._machine.state(self._clock_s())

    def stats(self) -> BrokerStats:
        """Return the traffic of each bundle served now."""
        return self._machine.stats(self._clock_s())

    def topics(self, bundle: BundleId) -> Mapping[TopicName, Rates]:
        """See `MemoryBroker.topics`."""
        return self._machine.topics(bundle, self._clock_s())

    def renew_lease(
        self, *, agent_epoch: int, until_s: float | None, incarnation: str | None
    ) -> BrokerState:
        """See `MemoryBroker.renew_lease`."""
        return self._machine.renew_lease(
            agent_epoch=agent_epoch,
            until_s=until_s,
            incarnation=incarnation,
            now_s=self._clock_s(),
        )

    def load(self, bundle: BundleId, *, agent_epoch: int, fencing_token: int) -> None:
        """See `MemoryBroker.load`."""
        self._machine.load(
            bundle, agent_epoch=agent_epoch, fencing_token=fencing_token, now_s=self._clock_s()
        )

    def begin_unload(self, bundle: BundleId, *, agent_epoch: int, fencing_token: int) -> None:
        """See `MemoryBroker.begin_unload`."""
        self._machine.begin_unload(
            bundle, agent_epoch=agent_epoch, fencing_token=fencing_token, now_s=self._clock_s()
        )

    async def unload(
        self, bundle: BundleId, *, agent_epoch: int, fencing_token: int, next_owner_url: str = ""
    ) -> None:
        """End this grant of ``bundle``; return when no request under it is in service any more."""
        self._next_owner_urls[bundle] = next_owner_url
        try:
            self.begin_unload(bundle, agent_epoch=agent_epoch, fencing_token=fencing_token)
            while self._machine.serves(bundle, up_to_token=fencing_token):
                await self._changed.wait()
        finally:
            self._next_owner_urls.pop(bundle, None)

    def next_owner_url(self, bundle: BundleId) -> str:
        """Return the URL of the next owner of a bundle that is being unloaded, "" if unknown."""
        return self._next_owner_urls.get(bundle, "")

    def begin_publish(self, topic: TopicName, messages: int = 1) -> Ticket | PublishRefused:
        """See `MemoryBroker.begin_publish`."""
        return self._machine.begin_publish(topic, self._clock_s(), messages)

    def finish_publish(
        self, ticket: Ticket, *, producer: str | None, payload_bytes: int
    ) -> Accepted | PublishRefused:
        """See `MemoryBroker.finish_publish`."""
        return self._machine.finish_publish(
            ticket, producer=producer, payload_bytes=payload_bytes, now_s=self._clock_s()
        )

    def abandon(self, ticket: Ticket) -> None:
        """See `MemoryBroker.abandon`."""
        self._machine.abandon(ticket, self._clock_s())

    def grant(self, topic: TopicName) -> Grant | None:
        """Return the bundle that serves ``topic`` now, after a check of the leases."""
        self._machine.expire(self._clock_s())
        return self.last_grant(topic)

    def last_grant(self, topic: TopicName) -> Grant | None:
        """Return as `grant`, as of the last command, for calls during a change."""
        served = self._machine.holding(topic)
        return None if served is None else Grant(served.bundle, served.fencing_token)

    def count_out(self, topic: TopicName, messages: int, payload_bytes: int) -> None:
        """Count messages that were sent to a consumer of ``topic``."""
        served = self._machine.holding(topic)
        if served is not None:
            served.traffic.add_out(
                topic=topic, messages=messages, payload_bytes=payload_bytes, now_s=self._clock_s()
            )

    def count_clients(self, topic: TopicName, clients: Clients) -> None:
        """Record the clients that are connected to ``topic`` now."""
        served = self._machine.holding(topic)
        if served is not None:
            served.traffic.connected(topic, clients)

    def stop(self) -> None:
        """Stop serving all bundles, and refuse all further commands."""
        self._machine.stop(self._clock_s())

    async def watch_leases(self) -> None:
        """End each lease when it expires, without a request. Runs until cancelled.

        It sleeps until the earliest expiry or the next change: an idle broker wakes up once per
        renewal. The clock must run at the rate of the event loop's.
        """
        while True:
            self._machine.expire(self._clock_s())
            due_s = self._machine.next_expiry_s
            left_s = None if due_s is None else max(0.0, due_s - self._clock_s())
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _on_change(self, change: Change) -> None:
        """Wake all waiting tasks, even if recording fails; each then checks its condition."""
        self._changed.set()
        self._changed = asyncio.Event()
        self._record(change)

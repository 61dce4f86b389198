"""The in-memory broker: leases, epochs, tokens, served bundles, and commands that wait.

Each change is passed to ``record``: before it takes effect if it begins serving, and after if it
ends serving. So a record that is cut off at any time never shows less serving than there was.
A lease belongs to the agent epoch that requested it: with one for all, an agent that has just
replaced another would extend bundles whose locks its predecessor held.
"""

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loadmanager.core.hashing import DEFAULT_HASH, HashName, lies_in, position
from loadmanager.core.ids import BundleId, Namespace, TopicName, namespace_of
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import BYTES_IN, MSGS_IN, Rates
from loadmanager.ports.broker import BrokerState, BrokerStats, StaleAgent
from loadmanager.reference_broker.changes import (
    Accepted,
    BundleLoaded,
    Change,
    EndReason,
    LeaseGranted,
    LeaseLost,
    NoLease,
    NotNow,
    NotServed,
    ServingEnded,
    StaleToken,
    Started,
    Stopped,
    TopicNotServed,
    UnloadBegun,
)

# More slots would follow changes of load more closely; with ten the error is at most a tenth.
SLOTS = 10


def _zeros() -> list[int]:
    return [0, 0, 0, 0]


@dataclass(slots=True)
class _Slot:
    """Messages and bytes of one part of the window, in the order of `Rates.row`."""

    index: int
    total: list[int] = field(default_factory=_zeros)
    topics: dict[TopicName, list[int]] = field(default_factory=lambda: defaultdict(_zeros))


class BundleTraffic:
    """Rates over the last ``window_s``; the first message after a load is no burst."""

    def __init__(self, window_s: float, since_s: float) -> None:
        self._window_s = window_s
        self._slot_s = window_s / SLOTS
        self._since_s = since_s
        self._slots: deque[_Slot] = deque()
        self._topics: set[TopicName] = set()
        # Ordered by last activity, so that old entries are removed from the front.
        self._producers: dict[str, float] = {}

    def add(self, *, topic: TopicName, producer: str, payload_bytes: int, now_s: float) -> None:
        self._forget_old(now_s)
        index = self._index(now_s)
        if not self._slots or self._slots[-1].index != index:
            self._slots.append(_Slot(index))
        slot = self._slots[-1]
        self._topics.add(topic)
        for count in (slot.total, slot.topics[topic]):
            count[MSGS_IN] += 1
            count[BYTES_IN] += payload_bytes
        self._producers.pop(producer, None)
        self._producers[producer] = now_s

    def stats(self, now_s: float) -> BundleStats:
        self._forget_old(now_s)
        return BundleStats(
            *self._rates((slot.total for slot in self._slots), now_s).row(),
            topics=len(self._topics),
            producers=len(self._producers),
        )

    def topics(self, now_s: float) -> Mapping[TopicName, Rates]:
        """Return the rates of each topic as of ``now_s``; those of idle topics are zero."""
        self._forget_old(now_s)
        counts: dict[TopicName, list[Sequence[int]]] = {topic: [] for topic in self._topics}
        for slot in self._slots:
            for topic, count in slot.topics.items():
                counts[topic].append(count)
        return {topic: self._rates(found, now_s) for topic, found in counts.items()}

    def _rates(self, counts: Iterable[Sequence[int]], now_s: float) -> Rates:
        oldest_s = (self._index(now_s) - SLOTS + 1) * self._slot_s
        covered_s = max(now_s - max(oldest_s, self._since_s), self._slot_s)
        return Rates(*(sum(column) / covered_s for column in zip(_zeros(), *counts, strict=True)))

    def _index(self, now_s: float) -> int:
        return int(now_s / self._slot_s)

    def _forget_old(self, now_s: float) -> None:
        oldest = self._index(now_s) - SLOTS + 1
        while self._slots and self._slots[0].index < oldest:
            self._slots.popleft()
        while self._producers:
            producer = next(iter(self._producers))
            if self._producers[producer] > now_s - self._window_s:
                return
            del self._producers[producer]


@dataclass(slots=True, eq=False)
class Served:
    """One bundle from its load to its end; a ``closing`` one ends with the last begun request."""

    bundle: BundleId
    fencing_token: int
    agent_epoch: int
    start_s: float
    traffic: BundleTraffic
    in_service: int = 0
    closing: bool = False

    def ended(self, *, end_s: float, at_s: float, why: EndReason) -> ServingEnded:
        """Return the change that it was served up to ``end_s``, as noticed at ``at_s``."""
        return ServingEnded(
            at_s=at_s,
            bundle=self.bundle,
            fencing_token=self.fencing_token,
            agent_epoch=self.agent_epoch,
            start_s=self.start_s,
            end_s=end_s,
            why=why,
        )


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request in service, from `MemoryBroker.begin_publish` to its end."""

    topic: TopicName
    served: Served


class ServingSet:
    """Bundles by name and namespace. During a split a topic is in that of the newest token."""

    def __init__(self, hash_name: HashName) -> None:
        self._hash_name: HashName = hash_name
        self._served: dict[BundleId, Served] = {}
        self._by_namespace: dict[Namespace, dict[BundleId, Served]] = {}

    def __iter__(self) -> Iterator[Served]:
        """Yield the bundles, including closing ones; some may be removed during the iteration."""
        return iter([*self._served.values()])

    def __contains__(self, served: Served) -> bool:
        """Return whether ``served`` itself is in the set, not only a bundle of that name."""
        return self._served.get(served.bundle) is served

    def get(self, bundle: BundleId) -> Served | None:
        return self._served.get(bundle)

    def add(self, served: Served) -> None:
        self._served[served.bundle] = served
        self._by_namespace.setdefault(namespace_of(served.bundle), {})[served.bundle] = served

    def remove(self, served: Served) -> None:
        del self._served[served.bundle]
        namespace = namespace_of(served.bundle)
        del self._by_namespace[namespace][served.bundle]
        if not self._by_namespace[namespace]:
            del self._by_namespace[namespace]

    def find(self, topic: TopicName) -> Served | None:
        """Return the bundle that accepts new requests for ``topic``, if there is one."""
        at = position(topic, self._hash_name)
        candidates = self._by_namespace.get(topic.namespace, {}).values()
        holding = [one for one in candidates if not one.closing and lies_in(at, one.bundle)]
        return max(holding, key=lambda one: one.fencing_token, default=None)


class FencingTokens:
    """The lowest token with which each bundle may still be loaded."""

    def __init__(self) -> None:
        self._least: dict[BundleId, int] = {}

    def take(self, bundle: BundleId, token: int) -> None:
        """Accept ``token`` for ``bundle``, and no lower one from now on."""
        least = self._least.get(bundle, 0)
        if token < least:
            raise StaleToken(f"{bundle}: fencing token {token} is over; expected {least} or more")
        self._least[bundle] = token

    def end(self, bundle: BundleId, token: int) -> None:
        """Accept neither ``token`` nor a lower one for ``bundle`` any more."""
        self._least[bundle] = max(self._least.get(bundle, 0), token + 1)


class MemoryBroker:
    """One incarnation of the in-memory broker. Belongs to one event loop."""

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
        self.incarnation = incarnation
        self._clock_s = clock_s
        self._window_s = window_s
        self._listen = record
        self._serving = ServingSet(hash_name)
        self._leases: dict[int, float] = {}
        self._newest_epoch = 0
        self._tokens = FencingTokens()
        self._stopped = False
        self._changed = asyncio.Event()
        self._record(Started(at_s=clock_s(), broker=broker, incarnation=incarnation))

    @property
    def next_expiry_s(self) -> float | None:
        """The time at which the first lease expires unless renewed; None without a lease."""
        return min(self._leases.values(), default=None)

    def state(self) -> BrokerState:
        """Return the bundles served now, without those of expired leases."""
        now_s = self.expire()
        serving = {served.bundle: served.fencing_token for served in self._serving}
        return BrokerState(incarnation=self.incarnation, clock_s=now_s, serving=serving)

    def stats(self) -> BrokerStats:
        now_s = self.expire()
        bundles = {served.bundle: served.traffic.stats(now_s) for served in self._serving}
        return BrokerStats(window_s=self._window_s, bundles=bundles)

    def topics(self, bundle: BundleId) -> Mapping[TopicName, Rates]:
        """Return the topics of ``bundle`` that had a message since it was loaded."""
        now_s = self.expire()
        served = self._serving.get(bundle)
        if served is None:
            raise NotServed(f"{bundle} is not served here")
        return served.traffic.topics(now_s)

    def serves(self, bundle: BundleId, up_to_token: float = math.inf) -> bool:
        """Return whether ``bundle`` is served, or has requests in service, under such a token."""
        served = self._serving.get(bundle)
        return served is not None and served.fencing_token <= up_to_token

    def renew_lease(
        self, *, agent_epoch: int, until_s: float | None, incarnation: str | None
    ) -> BrokerState:
        """Extend a lease, never shorten it; a time on another process's clock has no effect."""
        now_s = self._accept(agent_epoch)
        end_s = max(now_s, self._leases.get(agent_epoch, now_s))
        ours = incarnation == self.incarnation
        if ours and until_s is not None and until_s > end_s:
            self._record(LeaseGranted(at_s=now_s, agent_epoch=agent_epoch, until_s=until_s))
            self._leases[agent_epoch] = until_s
        return self.state()

    def load(self, bundle: BundleId, *, agent_epoch: int, fencing_token: int) -> None:
        """Serve ``bundle`` under this token for as long as this epoch's lease is valid."""
        now_s = self._accept(agent_epoch)
        self._tokens.take(bundle, fencing_token)
        if agent_epoch not in self._leases:
            raise NotNow(f"agent epoch {agent_epoch} has no valid lease; renew it before loading")
        loaded = BundleLoaded(
            at_s=now_s, bundle=bundle, fencing_token=fencing_token, agent_epoch=agent_epoch
        )
        served = self._serving.get(bundle)
        if served is None:
            self._record(loaded)
            traffic = BundleTraffic(self._window_s, now_s)
            self._serving.add(Served(bundle, fencing_token, agent_epoch, now_s, traffic))
        elif served.closing:
            raise NotNow(f"{bundle} is still being unloaded; load it when that is done")
        elif (served.agent_epoch, served.fencing_token) != (agent_epoch, fencing_token):
            self._record(served.ended(end_s=now_s, at_s=now_s, why=EndReason.REGRANTED))
            self._record(loaded)
            served.agent_epoch, served.fencing_token = agent_epoch, fencing_token
            served.start_s = now_s

    def begin_unload(self, bundle: BundleId, *, agent_epoch: int, fencing_token: int) -> None:
        """Accept no new requests for ``bundle``; the unload has ended when `serves` is False.

        The token is over even if nothing is loaded: a load with it may still be under way.
        """
        now_s = self._accept(agent_epoch)
        served = self._serving.get(bundle)
        if served is not None and served.fencing_token > fencing_token:
            raise StaleToken(
                f"{bundle}: fencing token {fencing_token} is older than "
                f"{served.fencing_token}, which it is served under"
            )
        self._tokens.end(bundle, fencing_token)
        if served is None or served.closing:
            return
        served.closing = True
        self._record(UnloadBegun(at_s=now_s, bundle=bundle, fencing_token=served.fencing_token))
        self._end_if_drained(served, now_s)

    async def unload(
        self, bundle: BundleId, *, agent_epoch: int, fencing_token: int, next_owner_url: str = ""
    ) -> None:
        """End this grant of ``bundle``; return when no request under it is in service any more."""
        del next_owner_url  # clients over HTTP look it up
        self.begin_unload(bundle, agent_epoch=agent_epoch, fencing_token=fencing_token)
        while self.serves(bundle, up_to_token=fencing_token):
            await self._changed.wait()

    def begin_publish(self, topic: TopicName) -> Ticket:
        """Begin to serve a request: pass the ticket to `finish_publish` or `abandon`."""
        self.expire()
        served = self._serving.find(topic)
        if served is None:
            raise self._refusal(topic)
        served.in_service += 1
        return Ticket(topic, served)

    def finish_publish(self, ticket: Ticket, *, producer: str, payload_bytes: int) -> Accepted:
        """Accept a message if its bundle is served at this very time."""
        now_s = self.expire()
        served = ticket.served
        if served not in self._serving:
            raise self._refusal(ticket.topic)
        served.traffic.add(
            topic=ticket.topic, producer=producer, payload_bytes=payload_bytes, now_s=now_s
        )
        self._leave(served, now_s)
        return Accepted(bundle=served.bundle, fencing_token=served.fencing_token, clock_s=now_s)

    def abandon(self, ticket: Ticket) -> None:
        now_s = self.expire()
        if ticket.served in self._serving:
            self._leave(ticket.served, now_s)

    def expire(self) -> float:
        """End what expired leases covered, whether it can be recorded or not; return the time."""
        now_s = self._clock_s()
        for agent_epoch, until_s in [*self._leases.items()]:
            if until_s <= now_s:
                del self._leases[agent_epoch]
                ended = [one for one in self._serving if one.agent_epoch == agent_epoch]
                for served in ended:
                    self._serving.remove(served)
                self._record(LeaseLost(at_s=now_s, agent_epoch=agent_epoch, until_s=until_s))
                for served in ended:
                    end = served.ended(end_s=until_s, at_s=now_s, why=EndReason.LEASE_LOST)
                    self._record(end)
        return now_s

    async def watch_leases(self) -> None:
        """End each lease when it expires, without a request. Runs until cancelled."""
        while True:
            self.expire()
            due_s = self.next_expiry_s
            left_s = None if due_s is None else max(0.0, due_s - self._clock_s())
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def stop(self) -> None:
        """Stop serving all bundles, and refuse all further commands."""
        now_s = self.expire()
        self._stopped = True
        self._leases.clear()
        ended = [*self._serving]
        for served in ended:
            self._serving.remove(served)
        for served in ended:
            self._record(served.ended(end_s=now_s, at_s=now_s, why=EndReason.STOPPED))
        self._record(Stopped(at_s=now_s))

    def _record(self, change: Change) -> None:
        """Wake all waiting tasks, even if recording fails; each then checks its condition."""
        self._changed.set()
        self._changed = asyncio.Event()
        self._listen(change)

    def _accept(self, agent_epoch: int) -> float:
        """Accept a command of this agent, and return the time."""
        now_s = self.expire()
        if self._stopped:
            raise NotNow("the broker is stopping and takes no command")
        if agent_epoch < self._newest_epoch:
            raise StaleAgent(
                f"agent epoch {agent_epoch} is older than {self._newest_epoch}, "
                "which commands this broker now"
            )
        self._newest_epoch = agent_epoch
        return now_s

    def _refusal(self, topic: TopicName) -> NoLease | TopicNotServed:
        if not self._leases:
            return NoLease("the broker has no valid lease")
        return TopicNotServed(f"{topic} is not served here; look its owner up again")

    def _leave(self, served: Served, now_s: float) -> None:
        served.in_service -= 1
        if served.closing:
            self._end_if_drained(served, now_s)

    def _end_if_drained(self, served: Served, now_s: float) -> None:
        if not served.in_service:
            self._serving.remove(served)
            self._record(served.ended(end_s=now_s, at_s=now_s, why=EndReason.UNLOADED))

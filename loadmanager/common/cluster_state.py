"""What this sidecar knows of the cluster: registrations, the leader, loads, owners, boundaries.

Only the leader and its likely successors need loads, so only they watch them.

An owned list may be stale: that costs a client one more hop, never a second owner, because only
the lock in ZooKeeper decides which broker serves. Each change of a list is reported to every
sidecar, and most do not need it. So a list is read at once only while it is followed here: by the
leader all, by a waiting lookup that of the planned owner, and by a broker that is to take a bundle
that of the broker that has it. Else it is read when a lookup or request needs it; few lists are
read at once, others one a second of those left unread for a while. A changed list that was not
read names no owner.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from loadmanager.common.watching import Subscriptions, WatchedFolder, readable
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, Namespace, parse_broker, parse_bundle
from loadmanager.core.leadership import Contender, successors
from loadmanager.core.load import LoadReport, Registration, with_registration
from loadmanager.core.orders import OwnedList, decode_owned
from loadmanager.core.wire.policies import decode_boundaries
from loadmanager.core.wire.records import LeaderRecord, decode_leader
from loadmanager.core.wire.reports import decode_loads, decode_registration
from loadmanager.ports.coordination import Connection, CoordinationError, Node, SessionState, Watch
from loadmanager.ports.host import Clock
from loadmanager.ports.lookup import Missing, NamespaceUnknown, Unavailable
from loadmanager.ports.session import Coordination
from loadmanager.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class KnownLoads:
    """A broker's last report, and when this sidecar's monotonic clock saw its loads change."""

    report: LoadReport
    seen_at_s: float
    mzxid: int


@dataclass(eq=False)
class ClusterLoads:
    coordination: Coordination
    clock: Clock
    metrics: Metrics
    registered: Callable[[BrokerId], Registration | None]
    changed: Callable[[], None]

    def __post_init__(self) -> None:
        self._folder: WatchedFolder[KnownLoads] | None = None
        self.reports: dict[BrokerId, KnownLoads] = {}

    def open(self) -> None:
        if self._folder is not None:
            return
        self._folder = WatchedFolder(
            self.coordination,
            znodes.LOADS,
            decode=self._read,
            changed=lambda name, _before, _after: self._broker_changed(BrokerId(name)),
            malformed=lambda: self.metrics.malformed("loads"),
            completed=self.changed,
        )
        self._folder.open()

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()
        self._folder = None
        self.reports.clear()

    @property
    def complete(self) -> bool:
        """Whether the loads of every broker were read since `open`."""
        return self._folder is not None and self._folder.complete

    def registration_changed(self, broker: BrokerId) -> None:
        known = self._folder.values.get(broker) if self._folder else None
        registration = self.registered(broker)
        if known is None or registration is None:
            self.reports.pop(broker, None)
        else:
            report = with_registration(known.report, registration)
            self.reports[broker] = KnownLoads(report, known.seen_at_s, known.mzxid)

    def _broker_changed(self, broker: BrokerId) -> None:
        self.registration_changed(broker)
        self.changed()

    def _read(self, name: str, node: Node) -> KnownLoads:
        broker = parse_broker(name)
        before = self._folder.values.get(broker) if self._folder else None
        if before and before.mzxid == node.stat.mzxid:
            return before
        report = decode_loads(znodes.loads(broker), node.data, Registration(broker=broker))
        return KnownLoads(report, self.clock.monotonic_s(), node.stat.mzxid)


_OWNS_NOTHING: Final = OwnedList({})

READ_AHEAD: Final = 16
"""Up to how many brokers lists that are not followed here are read at once: so many in as many
seconds."""

UNREAD_FOR_S: Final = 30.0
"""How long a list is left unread where there are more. A list that changed changes again soon: a
move changes it three times, and in a cold start each broker's list changes again and again."""

_READS_PER_S: Final = 1.0
_READ_WITHIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Holding:
    """The broker that lists a bundle; ``serving`` is False until it has loaded the bundle."""

    broker: BrokerId
    fencing_token: int
    serving: bool = True


class ClusterOwners:
    """The owned lists joined; ``answers_changed`` is called when an answer's owner may differ."""

    def __init__(
        self,
        coordination: Coordination,
        clock: Clock,
        metrics: Metrics,
        *,
        answers_changed: Callable[[], None],
        completed: Callable[[], None],
        read_ahead: int,
    ) -> None:
        self._clock = clock
        self._answers_changed = answers_changed
        self._read_ahead = read_ahead
        self._reads_left: float = read_ahead
        self._counted_at_s = -math.inf
        self._followers: Counter[BrokerId | None] = Counter()
        self._needs: list[Callable[[BrokerId], object]] = []
        self._unread_since_s: dict[BrokerId, float] = {}
        self.holdings: dict[BundleId, Holding] = {}
        self.changes = Subscriptions()
        self._lists = WatchedFolder(
            coordination,
            znodes.OWNED,
            decode=self._read_list,
            changed=self._list_changed,
            malformed=lambda: metrics.malformed("owned"),
            completed=completed,
            postpone=self._postpones,
        )
        self.open, self.close = self._lists.open, self._lists.close

    @property
    def complete(self) -> bool:
        """Whether the existing lists are known, and each was read or left unread for now."""
        return self._lists.complete

    def listing(self, bundle: BundleId) -> tuple[BrokerId, ...]:
        lists = self._lists.values.items()
        return tuple(BrokerId(name) for name, one in lists if bundle in one.tokens)

    @property
    def all_read(self) -> bool:
        """Whether no new or changed list is left unread, as far as reported."""
        return not self._lists.postponed

    @property
    def is_small(self) -> bool:
        """Whether there are so few lists that they are read at once."""
        return len(self._lists.names) <= self._read_ahead

    def is_read(self, broker: BrokerId) -> bool:
        return broker not in self._lists.postponed

    def read_list(self, broker: BrokerId) -> None:
        self._lists.read(broker)

    def read_all(self) -> None:
        for name in tuple(self._lists.postponed):
            self._lists.read(name)

    async def until_read(self, within_s: float, broker: BrokerId | None = None) -> bool:
        """Read the list of ``broker``, or all, if changed; return whether that was in time."""
        if broker is None:
            self.read_all()
            return await self.changes.until(lambda: self.all_read, self._clock, within_s)
        self.read_list(broker)
        return await self.changes.until(lambda: self.is_read(broker), self._clock, within_s)

    async def require_read(self, broker: BrokerId | None = None) -> None:
        """Read changed lists: that of ``broker``, or all. Raises `Unavailable`: not read now."""
        if not await self.until_read(_READ_WITHIN_S, broker):
            raise Unavailable("the lists of owned bundles cannot be read now")

    def read_next(self) -> None:
        """Read the list that has been left unread longest, if it is time for one."""
        while (first := next(iter(self._unread_since_s), None)) and self.is_read(first):
            del self._unread_since_s[first]
        if first is None:
            return
        unread_s = self._clock.monotonic_s() - self._unread_since_s[first]
        if self._has_turn() if self.is_small else unread_s >= UNREAD_FOR_S:
            self._lists.read(first)

    @contextmanager
    def followed(self, broker: BrokerId | None = None) -> Iterator[None]:
        """Have the list of ``broker``, or all, read, and further changes at once, meanwhile."""
        self._followers[broker] += 1
        if broker is None:
            self.read_all()
        else:
            self.read_list(broker)
        try:
            yield
        finally:
            self._followers[broker] -= 1
            if not self._followers[broker]:
                del self._followers[broker]

    def follow_while(self, needed: Callable[[BrokerId], object]) -> None:
        """Read further changes of a broker's list at once whenever ``needed(broker)`` is true."""
        self._needs.append(needed)

    def _postpones(self, name: str) -> bool:
        broker = BrokerId(name)
        if self._followers[None] or self._followers[broker]:
            return False
        if any(needed(broker) for needed in self._needs) or (self.is_small and self._has_turn()):
            return False
        self._unread_since_s.pop(broker, None)  # To the end, because it changed last.
        self._unread_since_s[broker] = self._clock.monotonic_s()
        self._answers_changed()
        return True

    def _has_turn(self) -> bool:
        now_s = self._clock.monotonic_s()
        saved = (now_s - self._counted_at_s) * _READS_PER_S
        self._reads_left = min(self._reads_left + saved, self._read_ahead)
        self._counted_at_s = now_s
        if self._reads_left < 1:
            return False
        self._reads_left -= 1
        return True

    def _read_list(self, name: str, node: Node) -> OwnedList:
        path = f"{znodes.OWNED}/{parse_broker(name)}"
        owned, former = decode_owned(path, node.data, node.stat.mzxid), self._lists.values.get(name)
        if former is None:
            return owned
        # What did not change is kept as the same objects, which `holdings` refers to as well.
        tokens = {
            one: token for one, token in former.tokens.items() if owned.tokens.get(one) == token
        }
        tokens.update((one, token) for one, token in owned.tokens.items() if one not in tokens)
        return OwnedList(MappingProxyType(tokens), owned.loading)

    def _list_changed(self, name: str, before: OwnedList | None, after: OwnedList | None) -> None:
        broker = BrokerId(name)
        former, now = before or _OWNS_NOTHING, after or _OWNS_NOTHING
        for bundle in [bundle for bundle in former.tokens if bundle not in now.tokens]:
            holding = self.holdings.get(bundle)
            if holding and holding.broker == broker:
                del self.holdings[bundle]
                claims = [
                    Holding(BrokerId(name), listed.tokens[bundle], bundle not in listed.loading)
                    for name, listed in self._lists.values.items()
                    if bundle in listed.tokens
                ]
                if claims:
                    self.holdings[bundle] = max(claims, key=lambda claim: claim.fencing_token)
        for bundle, token in now.tokens.items():
            loading = bundle in now.loading
            if former.tokens.get(bundle) == token and loading == (bundle in former.loading):
                continue  # As most entries of a long list: nothing changed for it.
            holding = self.holdings.get(bundle)
            # Two lists may briefly contain a bundle; the later lock determines the owner.
            if holding is None or holding.broker == broker or holding.fencing_token < token:
                self.holdings[bundle] = Holding(broker, token, not loading)
        self._answers_changed()
        self.changes.notify()


@dataclass(frozen=True, slots=True)
class KnownBroker:
    """A registered broker; ``registered_as`` is the czxid of the registration."""

    registration: Registration
    registered_as: int


class OwnerView(Protocol):
    @property
    def brokers(self) -> Collection[BrokerId]: ...

    @property
    def owners(self) -> Mapping[BundleId, Holding]: ...

    @property
    def owner_changes(self) -> Subscriptions: ...

    def listed_owner(self, bundle: BundleId) -> BrokerId | None: ...


class ClusterState:
    def __init__(
        self,
        coordination: Coordination,
        clock: Clock,
        metrics: Metrics,
        *,
        read_ahead: int = READ_AHEAD,
    ) -> None:
        self._coordination = coordination
        self._clock = clock
        self._metrics = metrics
        self.changes = Subscriptions()
        self.version = 0
        self.connected_at_s = clock.monotonic_s()
        """When this sidecar's connection was established, or when it last broke."""
        self.leader: LeaderRecord | None = None
        self.incumbent: Contender | None = None
        self._leader_read = False
        self._boundaries: dict[Namespace, Boundaries] = {}
        self._boundary_watches: dict[Namespace, Watch] = {}
        self._boundaries_mzxid: dict[Namespace, int] = {}
        self._first_reads: dict[Namespace, asyncio.Future[Boundaries | None]] = {}
        self._watches: list[Watch] = []
        self._brokers = WatchedFolder(
            coordination,
            znodes.BROKERS,
            decode=self._read_registration,
            changed=self._broker_changed,
            malformed=lambda: metrics.malformed("registration"),
            completed=self.changes.notify,
        )
        # Names were parsed on reading.
        self.brokers: Mapping[BrokerId, KnownBroker] = self._brokers.values  # type: ignore[assignment]
        self.loads = ClusterLoads(
            coordination,
            clock,
            metrics,
            registered=self._registration,
            changed=self.changes.notify,
        )
        self.lists = ClusterOwners(
            coordination,
            clock,
            metrics,
            answers_changed=self._answers_changed,
            completed=self.changes.notify,
            read_ahead=read_ahead,
        )
        self.lists.changes.subscribe(self.changes.notify)
        self.owner_changes = self.lists.changes
        self.owners: Mapping[BundleId, Holding] = self.lists.holdings

    def open(self) -> None:
        self._brokers.open()
        self.lists.open()
        self._watches.append(self._coordination.watch(znodes.LEADER, self.leader_read))
        self._watches.append(self._coordination.on_session(self._session_changed))

    def close(self) -> None:
        self._brokers.close()
        self.lists.close()
        self.loads.close()
        for watch in (*self._watches, *self._boundary_watches.values()):
            watch.close()
        for reading in self._first_reads.values():
            reading.cancel()

    @property
    def complete(self) -> bool:
        return self._brokers.complete and self.lists.complete and self._leader_read

    @property
    def current(self) -> bool:
        """Whether the state is complete and watches can still change it."""
        return self.complete and self._coordination.session.connection is Connection.CONNECTED

    def advertises(self, sidecar_url: str) -> bool:
        return any(
            known.registration.sidecar_url.rstrip("/") == sidecar_url
            for known in self.brokers.values()
        )

    @property
    def successors(self) -> frozenset[BrokerId]:
        leader = self.leader.broker if self.leader else None
        return successors({one: known.registered_as for one, known in self.brokers.items()}, leader)

    def listed_owner(self, bundle: BundleId) -> BrokerId | None:
        holding = self.owners.get(bundle)
        return holding.broker if holding else None

    def live_owner(self, bundle: BundleId) -> Holding | None:
        """Return the owner of ``bundle`` if that broker is registered, and its list is read."""
        holding = self.owners.get(bundle)
        if holding is None or holding.broker not in self._brokers.values:
            return None
        return holding if self.lists.is_read(holding.broker) else None

    def serving_owner(self, bundle: BundleId) -> Holding | None:
        holding = self.live_owner(bundle)
        return holding if holding and holding.serving else None

    @property
    def namespaces(self) -> int:
        return len(self._boundaries)

    def known_boundaries(self, namespace: Namespace) -> Boundaries | None:
        return self._boundaries.get(namespace)

    async def boundaries(self, namespace: Namespace) -> Boundaries | None:
        """Return the namespace's bundles, None if it does not exist; the first call reads them."""
        if namespace in self._boundaries:
            return self._boundaries[namespace]
        # Many lookups come before the first read is answered, and to decode ten thousand
        # bundles for each of them would take longer than all else.
        reading = self._first_reads.get(namespace)
        if reading is None:
            reading = asyncio.ensure_future(self.reread_boundaries(namespace))
            self._first_reads[namespace] = reading
            reading.add_done_callback(lambda done: self._first_read(namespace, done))
        return await asyncio.shield(reading)

    def _first_read(self, namespace: Namespace, done: asyncio.Future[Boundaries | None]) -> None:
        self._first_reads.pop(namespace, None)
        if not done.cancelled():
            done.exception()  # Who asked may have gone away, and the error is no bug.

    async def reread_boundaries(self, namespace: Namespace) -> Boundaries | None:
        path = znodes.local_policies(namespace)
        node = await self._coordination.get(path)
        if node is None:
            return None
        try:
            boundaries = decode_boundaries(path, namespace, node.data, node.stat.version)
        except MalformedContent:
            self._metrics.malformed("boundaries")
            raise
        known = self._boundaries.get(namespace)
        if known is None or known.version < boundaries.version:
            self._boundaries[namespace] = boundaries
            self._boundaries_mzxid[namespace] = node.stat.mzxid
            self._answers_changed()
        if namespace not in self._boundary_watches:
            self._boundary_watches[namespace] = self._coordination.watch(
                path, lambda node: self._boundaries_changed(namespace, node)
            )
        return self._boundaries.get(namespace)

    def _registration(self, broker: BrokerId) -> Registration | None:
        known = self.brokers.get(broker)
        return known.registration if known else None

    def _read_registration(self, name: str, node: Node) -> KnownBroker:
        broker = parse_broker(name)
        path = znodes.registration(broker)
        registration = decode_registration(path, node.data)
        if registration.broker != broker:
            what = f"broker {registration.broker!r}"
            raise MalformedContent(path, what, f"the node's own name {broker!r}")
        return KnownBroker(registration, node.stat.czxid)

    def _broker_changed(
        self, name: str, before: KnownBroker | None, after: KnownBroker | None
    ) -> None:
        self.loads.registration_changed(BrokerId(name))
        if before is None or after is None or _address(before) != _address(after):
            self._answers_changed()
        self.changes.notify()

    def leader_read(self, node: Node | None) -> None:
        self._leader_read = True
        self.leader, self.incumbent = None, None
        if node is not None:
            session_id = node.stat.ephemeral_owner
            self.incumbent = Contender(None, "", session_id)
            with readable(znodes.LEADER, self._metrics, "leader"):
                self.leader = leader = decode_leader(znodes.LEADER, node.data)
                self.incumbent = Contender(leader.broker, leader.instance, session_id)
        self._answers_changed()
        self.changes.notify()

    def _boundaries_changed(self, namespace: Namespace, node: Node | None) -> None:
        path = znodes.local_policies(namespace)
        if node is None:
            self._boundaries.pop(namespace, None)
            self._boundaries_mzxid.pop(namespace, None)
            self._boundary_watches.pop(namespace).close()
        elif self._boundaries_mzxid.get(namespace) == node.stat.mzxid:
            return  # As it was read before it was watched.
        else:
            found = None
            with readable(path, self._metrics, "boundaries"):
                found = decode_boundaries(path, namespace, node.data, node.stat.version)
            if found is None:
                return  # The former ones stay: without any, no topic would find its owner.
            self._boundaries[namespace] = found
            self._boundaries_mzxid[namespace] = node.stat.mzxid
        self._answers_changed()
        self.changes.notify()

    def _session_changed(self, _state: SessionState) -> None:
        self.connected_at_s = self._clock.monotonic_s()
        self.changes.notify()

    def _answers_changed(self) -> None:
        self.version += 1


def _address(known: KnownBroker) -> tuple[object, ...]:
    registration = known.registration
    return registration.urls, registration.advertised_listeners, registration.sidecar_url


_RANGES_NAMED: Final = 8


async def boundaries_of(cluster_state: ClusterState, namespace: Namespace) -> Boundaries:
    """Raises `NamespaceUnknown`, and `Unavailable`: its bundles cannot be read now."""
    try:
        boundaries = await cluster_state.boundaries(namespace)
    except (CoordinationError, MalformedContent) as error:
        raise Unavailable(f"the bundles of {namespace} cannot be read: {error}") from error
    if boundaries is None:
        raise NamespaceUnknown(f"namespace {namespace} does not exist")
    return boundaries


def bundle_in(boundaries: Boundaries, range_text: str) -> BundleId:
    """Raises `Missing`: there is no such bundle, or ``range_text`` is no range."""
    try:
        bundle = parse_bundle(f"{boundaries.namespace}/{range_text.lower()}")
    except InvalidName as error:
        raise Missing(str(error)) from error
    if bundle not in boundaries:
        known = boundaries.bundles
        ranges = ", ".join(one.rpartition("/")[2] for one in known[:_RANGES_NAMED])
        more = ", ..." if len(known) > _RANGES_NAMED else ""
        raise Missing(
            f"bundle range {range_text} not found in {boundaries.namespace}; it has {ranges}{more}"
        )
    return bundle


def check_cluster(cluster: str, ours: str) -> None:
    if cluster != ours:
        raise Missing(f"cluster {cluster} does not exist here; this one is {ours}")

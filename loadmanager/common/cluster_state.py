import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from loadmanager.common.cluster_loads import ClusterLoads
from loadmanager.common.cluster_owners import READ_AHEAD, ClusterOwners, Holding
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.common.watched_folder import WatchedFolder
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, Namespace, parse_broker
from loadmanager.core.leadership import Incumbent, successors
from loadmanager.core.load import Registration
from loadmanager.core.wire.policies import decode_boundaries
from loadmanager.core.wire.records import decode_leader
from loadmanager.core.wire.registrations import decode_registration
from loadmanager.ports.coordination import Connection, Coordination, Node, SessionState, Watch
from loadmanager.ports.host import Clock
from loadmanager.ports.lookup import LeaderInfo
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()


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
        self.leader: LeaderInfo | None = None
        self.incumbent: Incumbent | None = None
        self._leader_read = False
        self._boundaries: dict[Namespace, Boundaries] = {}
        self._boundary_watches: dict[Namespace, Watch] = {}
        self._boundaries_mzxid: dict[Namespace, int] = {}
        self._first_reads: dict[Namespace, asyncio.Future[Boundaries | None]] = {}
        self._watches: list[Watch] = []
        self._brokers = WatchedFolder(
            coordination,
            znodes.BROKERS,
            read=self._read_registration,
            changed=self._broker_changed,
            malformed=lambda: metrics.malformed("registration"),
            completed=self.changes.notify,
        )
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
        self._holdings = self.lists.holdings  # The leader looks into it for each bundle, and often.

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

    @property
    def brokers(self) -> Mapping[BrokerId, KnownBroker]:
        return self._brokers.values  # type: ignore[return-value]  # names were parsed on reading

    def advertises(self, sidecar_url: str) -> bool:
        return any(
            known.registration.sidecar_url.rstrip("/") == sidecar_url
            for known in self.brokers.values()
        )

    @property
    def successors(self) -> frozenset[BrokerId]:
        leader = self.leader.broker if self.leader else None
        return successors({one: known.registered_as for one, known in self.brokers.items()}, leader)

    @property
    def owners(self) -> Mapping[BundleId, Holding]:
        return self.lists.holdings

    @property
    def owner_changes(self) -> Subscriptions:
        return self.lists.changes

    def listed_owner(self, bundle: BundleId) -> BrokerId | None:
        holding = self._holdings.get(bundle)
        return holding.broker if holding else None

    def live_owner(self, bundle: BundleId) -> Holding | None:
        """Return the owner of ``bundle`` if that broker is registered, and its list is read."""
        holding = self.owners.get(bundle)
        if holding is None or holding.broker not in self._brokers.values:
            return None
        return holding if self.lists.is_read(holding.broker) else None

    def serving_owner(self, bundle: BundleId) -> Holding | None:
        """Return the owner of ``bundle`` if that broker is registered and serves it."""
        holding = self.live_owner(bundle)
        return holding if holding and holding.serving else None

    @property
    def namespaces(self) -> int:
        return len(self._boundaries)

    def known_boundaries(self, namespace: Namespace) -> Boundaries | None:
        return self._boundaries.get(namespace)

    async def boundaries(self, namespace: Namespace) -> Boundaries | None:
        """Return the namespace's bundles, None if it does not exist.

        The first call reads and watches; later ones return what the watch reported. Raises
        `CoordinationError`: they have not been read and cannot be read now.
        """
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
        """Read the namespace's bundles from ZooKeeper again; raises as `boundaries`."""
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
            try:
                record = decode_leader(znodes.LEADER, node.data)
            except MalformedContent as error:
                log.warning("znode.content.refused", path=znodes.LEADER, error=str(error))
                self._metrics.malformed("leader")
                self.incumbent = Incumbent(None, "", session_id)
            else:
                self.incumbent = Incumbent(record.broker, record.instance, session_id)
                self.leader = LeaderInfo(
                    broker=record.broker,
                    service_url=record.service_url,
                    sidecar_url=record.sidecar_url,
                    instance=record.instance,
                    epoch=record.epoch,
                )
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
            try:
                self._boundaries[namespace] = decode_boundaries(
                    path, namespace, node.data, node.stat.version
                )
                self._boundaries_mzxid[namespace] = node.stat.mzxid
            except MalformedContent as error:
                # The former boundaries stay: without any, no topic would find its owner.
                log.warning("znode.content.refused", path=path, error=str(error))
                self._metrics.malformed("boundaries")
                return
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

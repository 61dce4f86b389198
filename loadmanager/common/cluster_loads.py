"""The brokers' loads, while this sidecar watches them.

Only the leader and its likely successors need loads, so they are watched only from `open` to
`close`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadmanager.common.watched_folder import WatchedFolder
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, parse_broker
from loadmanager.core.load import BrokerUrls, LoadReport, Registration, with_registration
from loadmanager.core.wire.reports import decode_loads
from loadmanager.ports.coordination import Coordination, Node
from loadmanager.ports.host import Clock
from loadmanager.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class KnownLoads:
    """A broker's last report, and when this sidecar saw the loads in it change.

    ``seen_at_s`` is on this sidecar's monotonic clock, so that the age of a report does not
    depend on any wall clock. ``mzxid`` is that of the loads.
    """

    report: LoadReport
    seen_at_s: float
    mzxid: int


class ClusterLoads:
    """The loads of all brokers, each with the broker's current registration.

    ``registered`` returns a broker's registration; ``changed`` is called after each change.
    """

    def __init__(
        self,
        coordination: Coordination,
        clock: Clock,
        metrics: Metrics,
        *,
        registered: Callable[[BrokerId], Registration | None],
        changed: Callable[[], None],
    ) -> None:
        self._coordination = coordination
        self._clock = clock
        self._metrics = metrics
        self._registered = registered
        self._changed = changed
        self._folder: WatchedFolder[KnownLoads] | None = None
        self._reports: dict[BrokerId, KnownLoads] = {}

    def open(self) -> None:
        if self._folder is not None:
            return
        self._folder = WatchedFolder(
            self._coordination,
            znodes.LOADS,
            read=self._read,
            changed=lambda name, _before, _after: self._broker_changed(BrokerId(name)),
            malformed=lambda: self._metrics.malformed("loads"),
            completed=self._changed,
        )
        self._folder.open()

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()
        self._folder = None
        self._reports.clear()

    @property
    def complete(self) -> bool:
        """Whether the loads of every broker were read since `open`."""
        return self._folder is not None and self._folder.complete

    @property
    def reports(self) -> Mapping[BrokerId, KnownLoads]:
        return self._reports

    def registration_changed(self, broker: BrokerId) -> None:
        """Join a broker's loads with its current registration."""
        known = self._folder.values.get(broker) if self._folder else None
        registration = self._registered(broker)
        if known is None or registration is None:
            self._reports.pop(broker, None)
        else:
            report = with_registration(known.report, registration)
            self._reports[broker] = KnownLoads(report, known.seen_at_s, known.mzxid)

    def _broker_changed(self, broker: BrokerId) -> None:
        self.registration_changed(broker)
        self._changed()

    def _read(self, name: str, node: Node) -> KnownLoads:
        broker = parse_broker(name)
        before = self._folder.values.get(broker) if self._folder else None
        if before and before.mzxid == node.stat.mzxid:
            return before
        report = decode_loads(znodes.loads(broker), node.data, _unregistered(broker))
        return KnownLoads(report, self._clock.monotonic_s(), node.stat.mzxid)


def _unregistered(broker: BrokerId) -> Registration:
    return Registration(
        broker=broker, urls=BrokerUrls(http_url=""), sidecar_url="", started_at_ms=0
    )

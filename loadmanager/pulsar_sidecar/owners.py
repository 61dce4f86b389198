from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from loadmanager.common.cluster_owners import Holding
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.ports.host import Clock

FOUND_FOR_S: Final = 5.0
"""The longest time for which an owner found by a move overrides a list that differs."""


class _Found(NamedTuple):
    broker: BrokerId | None
    listed: Holding | None
    until_s: float


class ObservedOwners:
    """The owners as seen by the task controller of one term.

    An owner that a move found overrides the lists until they change for that bundle, which takes
    about a second. A bundle that its broker lists but never reported is left out: it stays where
    it is (`PulsarBroker.stays`), or its load is not known yet.
    """

    def __init__(self, cluster_state: ClusterState, clock: Clock) -> None:
        self._cluster_state = cluster_state
        self._clock = clock
        self._found: dict[BundleId, _Found] = {}
        self._owners: Mapping[BundleId, Holding] = {}
        self._current = False
        self.owner_changes = Subscriptions()
        cluster_state.changes.subscribe(self._changed)

    def close(self) -> None:
        self._cluster_state.changes.unsubscribe(self._changed)

    @property
    def brokers(self) -> Collection[BrokerId]:
        return self._cluster_state.brokers

    @property
    def owners(self) -> Mapping[BundleId, Holding]:
        if not self._current:
            self._owners, self._current = self._merged(), True
        return self._owners

    def listed_owner(self, bundle: BundleId) -> BrokerId | None:
        holding = self.owners.get(bundle)
        return holding.broker if holding else None

    def found(self, owners: Mapping[BundleId, BrokerId | None]) -> None:
        until_s = self._clock.monotonic_s() + FOUND_FOR_S
        for bundle, broker in owners.items():
            listed = self._cluster_state.owners.get(bundle)
            if (listed.broker if listed else None) != broker:
                self._found[bundle] = _Found(broker, listed, until_s)
        self._changed()

    def _changed(self) -> None:
        self._current = False
        self.owner_changes.notify()

    def _merged(self) -> Mapping[BundleId, Holding]:
        listed, now_s = self._cluster_state.owners, self._clock.monotonic_s()
        seen = {bundle: at for bundle, at in listed.items() if self._moves(bundle, at)}
        for bundle, one in list(self._found.items()):
            if listed.get(bundle) != one.listed or one.until_s <= now_s:
                del self._found[bundle]
            elif one.broker is None:
                seen.pop(bundle, None)
            else:
                seen[bundle] = Holding(one.broker, one.listed.fencing_token if one.listed else 0)
        return seen

    def _moves(self, bundle: BundleId, at: Holding) -> bool:
        known = self._cluster_state.loads.reports.get(at.broker)
        if known is not None and bundle in known.report.bundles:
            return True
        # It has just moved: its new broker reports it within seconds.
        older = known is None or known.mzxid < at.fencing_token
        return older and bundle in self._owners

"""Which broker serves each bundle that may move, as listed, and as moves found it since."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from loadmanager.common.cluster_owners import Holding
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.ports import Clock

FOUND_FOR_S: Final = 5.0
"""How long what a move found counts, at most, while the lists still say otherwise."""


class _Found(NamedTuple):
    broker: BrokerId | None
    listed: Holding | None
    until_s: float


class ObservedOwners:
    """The owners that the task controller of one term sees.

    Where a move has looked, its word counts until the lists change for that bundle: they follow a
    second later. What its broker lists and never reported is a bundle that stays where it is
    (`PulsarBroker.stays`), or one whose load is not known yet: it is left out.
    """

    def __init__(self, picture: ClusterState, clock: Clock) -> None:
        self._picture = picture
        self._clock = clock
        self._found: dict[BundleId, _Found] = {}
        self._owners: Mapping[BundleId, Holding] = {}
        self._current = False
        self.owner_changes = Subscriptions()
        picture.changes.subscribe(self._changed)

    def close(self) -> None:
        """Stop looking."""
        self._picture.changes.unsubscribe(self._changed)

    @property
    def brokers(self) -> Collection[BrokerId]:
        """The registered brokers."""
        return self._picture.brokers

    @property
    def owners(self) -> Mapping[BundleId, Holding]:
        """Which broker serves each bundle that may move."""
        if not self._current:
            self._owners, self._current = self._look(), True
        return self._owners

    def listed_owner(self, bundle: BundleId) -> BrokerId | None:
        """Return the broker that serves ``bundle``."""
        holding = self.owners.get(bundle)
        return holding.broker if holding else None

    def found(self, owners: Mapping[BundleId, BrokerId | None]) -> None:
        """Note which brokers serve bundles now, None for none."""
        until_s = self._clock.monotonic_s() + FOUND_FOR_S
        for bundle, broker in owners.items():
            listed = self._picture.owners.get(bundle)
            if (listed.broker if listed else None) != broker:
                self._found[bundle] = _Found(broker, listed, until_s)
        self._changed()

    def _changed(self) -> None:
        self._current = False
        self.owner_changes.notify()

    def _look(self) -> Mapping[BundleId, Holding]:
        listed, now_s = self._picture.owners, self._clock.monotonic_s()
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
        known = self._picture.loads.reports.get(at.broker)
        if known is not None and bundle in known.report.bundles:
            return True
        # It has just moved: its new broker reports it within seconds.
        older = known is None or known.mzxid < at.fencing_token
        return older and bundle in self._owners

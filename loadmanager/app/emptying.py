"""Emptying draining brokers: which of their bundles go next, a few at a time.

A draining broker gives everything away and takes nothing. Only a few of its bundles are
under way at any moment, so that clients reconnect in small groups; each leaves when it
has a place to go to, and one that has none stays where it is served.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from loadmanager.app.order_book import OrderBook
from loadmanager.app.parts import Parts
from loadmanager.app.tuning import Tuning
from loadmanager.core.ids import BrokerId, BundleId, belongs_to_a_broker

_TRY_AGAIN_S = 2.0


class Emptying:
    """The bundles on their way out of draining brokers, for one term."""

    def __init__(self, parts: Parts, book: OrderBook, tuning: Tuning) -> None:
        self._parts = parts
        self._book = book
        self._tuning = tuning
        self._under_way: dict[BundleId, BrokerId] = {}
        self._refused_until_s: dict[BundleId, float] = {}

    def due(self) -> Mapping[BundleId, BrokerId]:
        """Return what is to leave draining brokers now, each with the broker it leaves."""
        draining = self._draining()
        if not draining or not self._parts.picture.current:
            self._under_way.clear()
            self._refused_until_s.clear()
            return {}
        self._forget_arrived(draining)
        most = max(self._tuning.now.planner.settings.in_flight_per_broker, 1)
        left = {broker: most - count for broker, count in self._leaving(draining).items()}
        found: dict[BundleId, BrokerId] = {}
        for bundle, broker in self._staying(draining):
            if left[broker] > 0 and self._may_try(bundle):
                found[bundle] = broker
                left[broker] -= 1
        return found

    def ordered(self, bundles: Mapping[BundleId, BrokerId]) -> None:
        """Count these, each with the broker it leaves, as under way until they arrive."""
        self._under_way.update(bundles)

    def refused(self, bundles: Iterable[BundleId]) -> None:
        """Leave these alone for a moment: nobody can take them now."""
        again_s = self._parts.clock.monotonic_s() + _TRY_AGAIN_S
        self._refused_until_s.update(dict.fromkeys(bundles, again_s))

    def _draining(self) -> set[BrokerId]:
        brokers = self._parts.picture.brokers
        return {broker for broker, known in brokers.items() if known.registration.draining}

    def _staying(self, draining: Collection[BrokerId]) -> Iterator[tuple[BundleId, BrokerId]]:
        """Yield what draining brokers should own as ordered, or own without an order."""
        assigned = self._book.assigned
        for bundle, planned in assigned.items():
            if planned in draining and not belongs_to_a_broker(bundle):
                yield bundle, planned
        for bundle, holding in self._parts.picture.owners.items():
            ordered = bundle in assigned or belongs_to_a_broker(bundle)
            if holding.broker in draining and not ordered:
                yield bundle, holding.broker

    def _leaving(self, draining: Collection[BrokerId]) -> Counter[BrokerId]:
        """Count what is under way out of each draining broker, whoever ordered it."""
        under_way = dict(self._under_way)
        owners = self._parts.picture.owners
        for bundle, planned in self._book.assigned.items():
            holding = owners.get(bundle)
            if holding is not None and holding.broker in draining and planned != holding.broker:
                under_way[bundle] = holding.broker
        counts = Counter(dict.fromkeys(draining, 0))
        counts.update(broker for broker in under_way.values() if broker in draining)
        return counts

    def _forget_arrived(self, draining: Collection[BrokerId]) -> None:
        owners, assigned = self._parts.picture.owners, self._book.assigned
        for bundle, source in list(self._under_way.items()):
            holding, planned = owners.get(bundle), assigned.get(bundle)
            arrived = holding is not None and holding.broker == planned
            if arrived or planned is None or source not in draining:
                del self._under_way[bundle]

    def _may_try(self, bundle: BundleId) -> bool:
        return self._refused_until_s.get(bundle, 0.0) <= self._parts.clock.monotonic_s()

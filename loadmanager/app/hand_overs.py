"""Following ordered bundles to their new owners, and finding those that got lost on the way."""

from collections.abc import Iterable, Mapping

import structlog

from loadmanager.app.chronicle import Chronicle
from loadmanager.app.order_book import OrderBook
from loadmanager.app.order_chunks import Rider
from loadmanager.app.parts import Parts
from loadmanager.app.tuning import Tuning
from loadmanager.core.ids import BrokerId, BundleId

log = structlog.get_logger()

_LOST_AFTER_S = 15.0
_LOST_AFTER_ROUNDS = 0.25


class HandOvers:
    """What is under way in one term, as the leader sees it."""

    def __init__(self, parts: Parts, book: OrderBook, tuning: Tuning, chronicle: Chronicle) -> None:
        self._tuning = tuning
        self._parts = parts
        self.book = book
        self._chronicle = chronicle
        self._ordered_at_s: dict[BundleId, float] = {}
        self._astray_since_s: dict[BundleId, float] = {}

    async def order(self, moves: Mapping[BundleId, BrokerId], rider: Rider | None = None) -> None:
        """Order bundles to brokers, and time them; raises as `OrderBook.assign`."""
        await self.book.assign(moves, rider)
        self._chronicle.ordered(moves)
        self._ordered(moves)

    def _ordered(self, bundles: Iterable[BundleId]) -> None:
        now_s = self._parts.clock.monotonic_s()
        self._ordered_at_s.update(dict.fromkeys(bundles, now_s))
        self.observe()

    def observe(self) -> None:
        """Take note of what has arrived, and of what should have."""
        now_s, metrics = self._parts.clock.monotonic_s(), self._parts.metrics
        astray = {bundle: planned for bundle, _, planned in self.book.in_flight()}
        for bundle, ordered_at_s in list(self._ordered_at_s.items()):
            if bundle not in astray:
                del self._ordered_at_s[bundle]
                metrics.hand_over_duration_seconds.observe(now_s - ordered_at_s)
        metrics.moves_in_flight.set(len(self._ordered_at_s))
        self._astray_since_s = {
            bundle: self._astray_since_s.get(bundle, now_s) for bundle in astray
        }

    async def repeat_lost(self) -> Mapping[BundleId, BrokerId]:
        """Repeat the orders for what has not arrived for too long, and return them.

        A broker whose orders were deleted or spoilt by hand waits for ever for what
        nobody writes again, unless its orders are repeated. Raises as `OrderBook.assign`.
        """
        now_s = self._parts.clock.monotonic_s()
        round_s = self._tuning.now.rhythm.round_interval_s
        lost_after_s = min(_LOST_AFTER_S, _LOST_AFTER_ROUNDS * round_s)
        late = [b for b, s in self._astray_since_s.items() if now_s - s >= lost_after_s]
        planned, brokers = self.book.assigned, self._parts.picture.brokers
        lost = {b: planned[b] for b in late if b in planned and planned[b] in brokers}
        for bundle, broker in lost.items():
            self._astray_since_s[bundle] = now_s
            log.warning("bundle.order.repeated", bundle=bundle, target=broker)
        if lost:
            await self.book.assign(lost)
        return lost

"""The leader's part in merging: the order for both halves, and what becomes of them."""

from collections.abc import Iterable, Mapping

import structlog

from loadmanager.app.order_book import OrderBook
from loadmanager.app.parts import Parts
from loadmanager.core.averages import Average, BundleAverages, Rates
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, range_of
from loadmanager.core.orders import SplitOrder
from loadmanager.core.splitting import Merge, merges_in, whole_ordered
from loadmanager.ports import Conflict, MergeRefused

log = structlog.get_logger()

_GIVE_UP_S = 60.0


class MergeDesk:
    """Orders merges and takes back those that nobody can carry out, for one term."""

    def __init__(self, parts: Parts, book: OrderBook) -> None:
        self._parts = parts
        self._book = book
        self._seen_at_s: dict[BundleId, float] = {}

    def owners(self, both: Merge) -> dict[BundleId, BrokerId]:
        """Return who owns each half, with which nothing is under way.

        Raises:
            MergeRefused: nobody owns one of them.
            Conflict: one is being split or merged, or is on its way to another broker.
        """
        owners: dict[BundleId, BrokerId] = {}
        for half in both.halves:
            order = self._book.splits.get(half)
            if order is not None:
                raise Conflict(f"{half} is ordered to {order.algorithm} already; wait for that")
            holding = self._parts.picture.live_owner(half)
            planned = self._book.assigned.get(half)
            owner = holding.broker if holding else None
            if planned not in {None, owner}:
                raise Conflict(f"{half} is on its way to {planned}; wait until it is there")
            if owner is None:
                raise MergeRefused(f"nobody owns {half} now; look one of its topics up first")
            owners[half] = owner
        return owners

    async def order(self, both: Merge, target: BrokerId) -> None:
        """Order both to ``target``, to be merged there; raises as `OrderBook.change`."""
        await self._book.change(dict.fromkeys(both.halves, target), splits=both.orders())
        self._seen_at_s[both.whole] = self._parts.clock.monotonic_s()
        log.info("bundle.merge.ordered", bundle=both.whole, halves=both.halves, target=target)

    async def tend(self) -> None:
        """Take back orders whose halves were parted, or that nobody carried out in time.

        Raises as `OrderBook.change`.
        """
        now_s = self._parts.clock.monotonic_s()
        halves = merge_orders(self._book.splits)
        whole_of = {half: both.whole for both in merges_in(halves) for half in both.halves}
        self._seen_at_s = {
            whole: self._seen_at_s.get(whole, now_s) for whole in set(whole_of.values())
        }
        assigned = self._book.assigned
        at: dict[BundleId, set[BrokerId | None]] = {}
        for half, whole in whole_of.items():
            at.setdefault(whole, set()).add(assigned.get(half))
        over = [
            half
            for half in halves
            if half not in whole_of
            or len(at[whole_of[half]]) > 1
            or now_s - self._seen_at_s[whole_of[half]] > _GIVE_UP_S
        ]
        if over:
            await self._book.change(splits=dict.fromkeys(over))
            log.warning("bundle.merge.abandoned", halves=over)

    def whole_of(self, half: BundleId, boundaries: Boundaries) -> BundleId | None:
        """Return the bundle that ``half``, which is none any more, was merged into.

        That is the one around it, if it was ordered or somebody has its lock: the
        boundaries alone may be those of another namespace of the same name.
        """
        whole = merged_by_order(half, self._book.splits, boundaries)
        if whole is not None:
            return whole
        around = boundaries.at(range_of(half)[0])
        low, high = range_of(around)
        wider = low <= range_of(half)[0] and range_of(half)[1] <= high
        return around if wider and self._parts.picture.live_owner(around) else None

    def places(self, merged: Mapping[BundleId, BundleId]) -> dict[BundleId, BrokerId]:
        """Return where wholes are that the book does not have: with their lock, else as ordered."""
        places: dict[BundleId, BrokerId] = {}
        for half, whole in merged.items():
            holding = self._parts.picture.live_owner(whole)
            if whole not in self._book.assigned:
                places[whole] = holding.broker if holding else self._book.assigned[half]
        return places


def merge_orders(orders: Mapping[BundleId, SplitOrder]) -> dict[BundleId, SplitOrder]:
    """Return those that are orders to merge."""
    return {b: order for b, order in orders.items() if whole_ordered(b, order) is not None}


def merged_by_order(
    half: BundleId, orders: Mapping[BundleId, SplitOrder], boundaries: Boundaries
) -> BundleId | None:
    """Return the bundle among ``boundaries`` that ``half`` was ordered to be merged into."""
    order = orders.get(half)
    whole = whole_ordered(half, order) if order else None
    return whole if whole in boundaries.bundles else None


def summed(halves: Iterable[BundleAverages]) -> BundleAverages:
    """Return what the whole of these is supposed to have, until it is measured."""
    first, *others = halves
    for other in others:
        first = BundleAverages(
            _added(first.short, other.short),
            _added(first.long, other.long),
            first.topics + other.topics,
        )
    return first


def _added(one: Average, other: Average) -> Average:
    # One sample, so that the first real one counts for half.
    rows = zip(one.rates.row(), other.rates.row(), strict=True)
    samples = min(one.samples, other.samples, 1)
    return Average(one.max_samples, samples, Rates(*(a + b for a, b in rows)))

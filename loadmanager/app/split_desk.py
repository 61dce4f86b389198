"""The leader's part in splitting: which bundles, and what becomes of their parts."""

from collections.abc import Iterable, Mapping

import structlog

from loadmanager.app.chronicle import Chronicle
from loadmanager.app.merge_desk import MergeDesk, merge_orders, summed
from loadmanager.app.order_book import OrderBook
from loadmanager.app.parts import Parts
from loadmanager.app.splitting import parts_of
from loadmanager.app.tuning import SplitPolicy, Tuning
from loadmanager.core.averages import Average, BundleAverages, Rates
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of, range_of
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Reason, Refusal
from loadmanager.core.splitting import find_splits
from loadmanager.core.tally import LoadTally
from loadmanager.ports import SplitRefused, TooLarge

log = structlog.get_logger()

_GIVE_UP_S = 60.0
_REST_S = 600.0


class SplitDesk:
    """Orders splits and enters their outcome in the book, for one term."""

    def __init__(
        self,
        parts: Parts,
        book: OrderBook,
        tally: LoadTally,
        tuning: Tuning,
        chronicle: Chronicle,
    ) -> None:
        self._parts = parts
        self._book = book
        self._tally = tally
        self._tuning = tuning
        self._chronicle = chronicle
        self.merges = MergeDesk(parts, book)
        self._ordered_at_s: dict[BundleId, float] = {}
        self._resting_until_s: dict[BundleId, float] = {}
        # Not their versions: those of a namespace that is made again begin at 0 again.
        self._checked: dict[Namespace, Boundaries] = {}
        self._settled: dict[Namespace, frozenset[BundleId]] = {}

    @property
    def _policy(self) -> SplitPolicy:
        return self._tuning.now.split_policy

    @property
    def rests_s(self) -> Mapping[BundleId, float]:
        """Until when bundles that could not be cut are left whole, on this leader's clock."""
        now_s = self._parts.clock.monotonic_s()
        return {b: until_s for b, until_s in self._resting_until_s.items() if until_s > now_s}

    def inherit(self, rests_s: Mapping[BundleId, float]) -> None:
        """Leave whole what the former leader gave up cutting, for as long as it would have."""
        latest_s = self._parts.clock.monotonic_s() + _REST_S
        self._resting_until_s = {b: min(until_s, latest_s) for b, until_s in rests_s.items()}

    def is_current(self, namespace: Namespace) -> bool:
        """Say whether the book was compared with the boundaries of ``namespace`` as known now."""
        known = self._parts.picture.known_boundaries(namespace)
        return known is not None and self._checked.get(namespace) == known

    async def adopt(self) -> tuple[tuple[BundleId, ...], ...]:
        """Replace what was cut by its parts, in the book; return the parts of each whole.

        The parts stay where the whole was: that is where their locks are. What was merged
        is replaced by its whole.

        Raises:
            CoordinationError: boundaries cannot be read, or the orders not be written.
        """
        gone: dict[BundleId, tuple[BundleId, ...]] = {}
        merged: dict[BundleId, BundleId] = {}
        for namespace, bundles in self._changed_namespaces().items():
            boundaries = await self._boundaries(namespace)
            if boundaries is None:
                continue
            whole = set(boundaries.bundles)
            for bundle in sorted(bundles - whole):
                around = self.merges.whole_of(bundle, boundaries)
                if around is not None:
                    merged[bundle] = around
                    continue
                try:
                    gone[bundle] = parts_of(bundle, boundaries)
                except LoadManagerError as error:
                    log.warning("bundle.range.unknown", bundle=bundle, error=str(error))
            self._checked[namespace] = boundaries
            # What an order brings back that was decided before the cut is looked at again;
            # what cannot be told, only when the boundaries change.
            self._settled[namespace] = frozenset(whole | (bundles - gone.keys() - merged.keys()))
        if not gone and not merged:
            return ()
        placed = self.merges.places(merged)
        for bundle, parts in gone.items():
            broker = self._book.assigned[bundle]
            placed |= {part: broker for part in parts if part not in self._book.assigned}
        self._share_averages(gone)
        self._sum_averages(merged)
        await self._book.change(placed, gone=(*gone, *merged))
        self._parts.metrics.bundles_split(len(gone))
        for bundle, parts in gone.items():
            self._ordered_at_s.pop(bundle, None)
            log.info("bundle.split.adopted", bundle=bundle, parts=parts)
            self._chronicle.cut("split", bundle, parts)
        for one in sorted(set(merged.values())):
            log.info("bundle.merge.adopted", bundle=one)
            halves = sorted(half for half, into in merged.items() if into == one)
            self._chronicle.cut("merge", one, halves)
        return tuple(gone.values())

    async def look(self) -> tuple[Refusal, ...]:
        """Order what has grown too large to be cut, and return why other bundles stay whole.

        Raises:
            CoordinationError: boundaries cannot be read, or the orders not be written.
        """
        await self._give_up_old()
        if not self._policy.enabled:
            return ()
        reports = {
            broker: known.report.bundles
            for broker, known in self._parts.picture.loads.reports.items()
        }
        averages = self._tally.averages()

        def long_rates(bundle: BundleId) -> Rates | None:
            known = averages.get(bundle)
            return known.long.rates if known else None

        counts = await self._bundle_counts(b for bundles in reports.values() for b in bundles)
        found = find_splits(self._policy.rules, reports, long_rates, counts)
        due = [split.bundle for split in found.chosen if self._may_split(split.bundle)]
        order = SplitOrder(self._policy.algorithm)
        for bundle in due[: self._policy.most_per_round]:
            try:
                await self.order(bundle, order)
            except TooLarge:
                self._rest(bundle)  # The book has told; the others go on.
        late = [
            Refusal(bundle, Reason.ROUND_BUDGET) for bundle in due[self._policy.most_per_round :]
        ]
        return (*found.refusals, *late)

    async def order(self, bundle: BundleId, order: SplitOrder) -> None:
        """Order one bundle to be cut, by whoever owns it; raises as `OrderBook.assign`.

        Raises:
            SplitRefused: it is about to be merged with another.
        """
        if bundle in merge_orders(self._book.splits):
            raise SplitRefused(f"{bundle} is being merged with its neighbour")
        self._ordered_at_s[bundle] = self._parts.clock.monotonic_s()
        owned: dict[BundleId, BrokerId] = {}
        holding = self._parts.picture.live_owner(bundle)
        if bundle not in self._book.assigned and holding is not None:
            owned[bundle] = holding.broker
        await self._book.change(owned, splits={bundle: order})
        log.info("bundle.split.ordered", bundle=bundle, algorithm=order.algorithm)

    def _may_split(self, bundle: BundleId) -> bool:
        """Say whether nothing else is under way with it, and it may be tried (again)."""
        holding = self._parts.picture.owners.get(bundle)
        settled = holding is not None and holding.broker == self._book.assigned.get(bundle)
        rested = self._parts.clock.monotonic_s() >= self._resting_until_s.get(bundle, 0.0)
        return settled and rested and bundle not in self._book.splits

    async def _give_up_old(self) -> None:
        """Take back orders that nobody could carry out, so that the bundle can move again."""
        now_s = self._parts.clock.monotonic_s()
        for bundle in sorted(self._book.splits.keys() - merge_orders(self._book.splits).keys()):
            self._ordered_at_s.setdefault(bundle, now_s)
        late = [b for b, at_s in self._ordered_at_s.items() if now_s - at_s > _GIVE_UP_S]
        for bundle in late:
            self._rest(bundle)
            if bundle in self._book.splits:
                await self._book.change(splits={bundle: None})
                log.warning("bundle.split.abandoned", bundle=bundle, after_s=_GIVE_UP_S)

    def _rest(self, bundle: BundleId) -> None:
        del self._ordered_at_s[bundle]
        self._resting_until_s[bundle] = self._parts.clock.monotonic_s() + _REST_S

    def _changed_namespaces(self) -> dict[Namespace, set[BundleId]]:
        """Return the bundles in the book of every namespace whose boundaries are new to us."""
        bundles: dict[Namespace, set[BundleId]] = {}
        for bundle in self._book.assigned:
            namespace = namespace_of(bundle)
            if not self.is_current(namespace) or bundle not in self._settled[namespace]:
                bundles.setdefault(namespace, set()).add(bundle)
        return bundles

    async def _bundle_counts(self, bundles: Iterable[BundleId]) -> dict[Namespace, int]:
        counts: dict[Namespace, int] = {}
        for namespace in {namespace_of(bundle) for bundle in bundles}:
            boundaries = await self._boundaries(namespace)
            if boundaries is not None:
                counts[namespace] = len(boundaries.bundles)
        return counts

    async def _boundaries(self, namespace: Namespace) -> Boundaries | None:
        try:
            return await self._parts.picture.boundaries(namespace)
        except MalformedContent as error:
            log.warning("znode.content.refused", path=error.where, error=str(error))
            return None

    def _share_averages(self, gone: Mapping[BundleId, tuple[BundleId, ...]]) -> None:
        """Give each part its share of the whole's traffic, by width, until it is measured."""
        known = self._tally.averages()
        for whole, parts in gone.items():
            averages = known.get(whole)
            if averages is not None:
                width = _width(whole)
                self._tally.seed({part: _scaled(averages, _width(part) / width) for part in parts})

    def _sum_averages(self, merged: Mapping[BundleId, BundleId]) -> None:
        known = self._tally.averages()
        halves: dict[BundleId, list[BundleAverages]] = {}
        for half, whole in merged.items():
            if half in known:
                halves.setdefault(whole, []).append(known[half])
        self._tally.seed({whole: summed(averages) for whole, averages in halves.items()})


def _width(bundle: BundleId) -> int:
    lower, upper = range_of(bundle)
    return upper - lower


def _scaled(averages: BundleAverages, fraction: float) -> BundleAverages:
    return BundleAverages(
        _scaled_average(averages.short, fraction),
        _scaled_average(averages.long, fraction),
        round(averages.topics * fraction),
    )


def _scaled_average(average: Average, fraction: float) -> Average:
    rates = average.rates
    return Average(
        average.max_samples,
        # One sample, so that the first real one counts for half.
        min(average.samples, 1),
        Rates(
            rates.msgs_in_per_s * fraction,
            rates.msgs_out_per_s * fraction,
            rates.bytes_in_per_s * fraction,
            rates.bytes_out_per_s * fraction,
        ),
    )

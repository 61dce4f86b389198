"""Splits and merges bundles of this broker as ordered by the leader.

Boundaries, the locks of what is made and of what goes change in one commit, so at no
moment does a lookup find a range without an owner or with two. Where to split is found
here, because only the broker knows its topics. The two bundles of a merge are unloaded
first, so that no request of theirs is in service any more; lookups wait meanwhile, as they
do while a bundle moves.
"""

from functools import partial

import structlog

from loadmanager.agent.ownership import OwnershipWorker, RangeChange
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.config.strategies import split_limits_of
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.ids import BundleId, namespace_of, range_of
from loadmanager.core.orders import SplitOrder
from loadmanager.core.ownership import Phase
from loadmanager.core.splitting.cutting import CannotSplit, split
from loadmanager.core.splitting.merging import CannotMerge, Merge, merge, merges_in, whole_ordered
from loadmanager.core.splitting.positions import SPLIT_ALGORITHMS, NoPositions, SplitAsk, TopicLoad
from loadmanager.core.wire.policies import decode_boundaries, encode_boundaries
from loadmanager.ports.broker import BrokerError
from loadmanager.ports.coordination import CoordinationError, SetData

log = structlog.get_logger()

_LOOK_S = 0.5
_TRY_AGAIN_S = 10.0
_STOP_WITHIN_S = 5.0


class Splitter:
    def __init__(
        self, context: Context, ownerships: OwnershipWorker, settings: RuntimeSettings
    ) -> None:
        self._context = context
        self._ownerships = ownerships
        self._settings = settings
        self._not_before_s: dict[BundleId, float] = {}

    async def run(self) -> None:
        while True:
            orders = self._ownerships.orders
            ordered = orders.splits if orders else {}
            merges = {both.whole: partial(self._merge, both) for both in merges_in(ordered)}
            splits = {
                bundle: partial(self._split, bundle, order)
                for bundle, order in ordered.items()
                if whole_ordered(bundle, order) is None
            }
            ways = {**merges, **splits}
            self._not_before_s = {b: at_s for b, at_s in self._not_before_s.items() if b in ways}
            for whole, begin in ways.items():
                if self._context.clock.monotonic_s() >= self._not_before_s.get(whole, 0.0):
                    await begin()
            await self._context.clock.sleep(_LOOK_S)

    def _wait(self, whole: BundleId) -> None:
        self._not_before_s[whole] = self._context.clock.monotonic_s() + _TRY_AGAIN_S

    async def _split(self, bundle: BundleId, order: SplitOrder) -> None:
        if self._ownerships.records.phase(bundle) is not Phase.OWNED:
            return
        self._wait(bundle)
        try:
            before, data = await self._boundaries(bundle)
            if bundle not in before:
                return  # It was made already.
            after = split(before, bundle, await self._cuts(bundle, order))
            write = _write(before, after, data)
        except (BrokerError, CoordinationError, CannotSplit, NoPositions, MalformedContent) as why:
            log.warning("bundle.split.refused", bundle=bundle, why=str(why))
            return
        parts = tuple(part for part in after.bundles if part not in before)
        self._ownerships.begin_split(RangeChange((bundle,), parts, write))

    def _can_merge(self, both: Merge) -> bool:
        """Return whether both are served, and the whole is not still stopping after a split."""
        own = self._ownerships
        served = all(own.serves(half) for half in both.halves)
        free = own.records.phase(both.whole) is Phase.FREE
        return served and free and both.whole not in own.range_changes.merges

    async def _merge(self, both: Merge) -> None:
        if not self._can_merge(both):
            return
        self._wait(both.whole)
        try:
            before, data = await self._boundaries(both.lower)
            write = _write(before, merge(before, both), data)
        except (CoordinationError, CannotMerge, MalformedContent) as why:
            log.warning("bundle.merge.refused", bundle=both.whole, why=str(why))
            return
        if self._can_merge(both):
            log.info("bundle.merge.begun", bundle=both.whole, halves=both.halves)
            until_s = self._context.clock.monotonic_s() + _STOP_WITHIN_S
            self._ownerships.begin_merge(RangeChange(both.halves, (both.whole,), write, until_s))

    async def _boundaries(self, bundle: BundleId) -> tuple[Boundaries, bytes]:
        """Return the boundaries and what their node holds. Raises `MalformedContent`."""
        namespace = namespace_of(bundle)
        path = znodes.local_policies(namespace)
        node = await self._context.coordination.get(path)
        if node is None:
            raise MalformedContent(path, "it is missing", "a namespace that exists")
        return decode_boundaries(path, namespace, node.data, node.stat.version), node.data

    async def _cuts(self, bundle: BundleId, order: SplitOrder) -> tuple[int, ...]:
        algorithm = SPLIT_ALGORITHMS.get(order.algorithm)
        if algorithm is None:
            known = ", ".join(sorted(SPLIT_ALGORITHMS))
            raise CannotSplit(bundle, f"algorithm {order.algorithm!r}", f"one of {known}")
        lower, upper = range_of(bundle)
        traffic = await self._context.broker.topics(bundle)
        topics = [
            TopicLoad(self._context.topic_hash.position(topic), load.msgs_per_s, load.bytes_per_s)
            for topic, load in traffic.items()
        ]
        config = self._settings.now.config
        limits = split_limits_of(config.split, config.planner)
        cuts = algorithm(SplitAsk(lower, upper, topics, order.positions), limits)
        if not cuts:
            raise CannotSplit(
                bundle,
                f"{order.algorithm} finds no place among {len(topics)} topics",
                "two topics or more that can be separated",
            )
        return cuts


def _write(before: Boundaries, after: Boundaries, data: bytes) -> SetData:
    path = znodes.local_policies(before.namespace)
    return SetData(path, encode_boundaries(after, data), before.version)


def parts_of(whole: BundleId, boundaries: Boundaries) -> tuple[BundleId, ...]:
    """Raises `LoadManagerError`: ``whole`` is a bundle still, or they do not tile its range."""
    lower, upper = range_of(whole)
    inside = [b for b in boundaries.bundles if lower <= range_of(b)[0] and range_of(b)[1] <= upper]
    tiled = bool(inside) and range_of(inside[0])[0] == lower and range_of(inside[-1])[1] == upper
    if not tiled or inside == [whole]:
        raise LoadManagerError(f"{whole} is not a bundle that was cut; boundaries {boundaries}")
    return tuple(inside)

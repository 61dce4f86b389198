"""Cutting bundles of this broker where the leader ordered it.

Boundaries, the locks of the parts and that of the whole change in one commit, so at no
moment does a lookup find a range without an owner or with two. Where to cut is found
here, because only the broker knows its topics.
"""

import structlog

from loadmanager.app.merging import Merger
from loadmanager.app.owning import Ownerships
from loadmanager.app.parts import Parts
from loadmanager.app.range_changes import RangeChange
from loadmanager.app.tuning import Tuning
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.ids import BundleId, namespace_of, range_of
from loadmanager.core.orders import SplitOrder
from loadmanager.core.ownership import Phase
from loadmanager.core.splitting import (
    SPLIT_ALGORITHMS,
    CannotSplit,
    NoPositions,
    SplitAsk,
    TopicLoad,
    split,
    whole_ordered,
)
from loadmanager.core.wire import decode_boundaries, encode_boundaries
from loadmanager.ports import BrokerError, CoordinationError, SetData

log = structlog.get_logger()

_LOOK_S = 0.5
_TRY_AGAIN_S = 10.0


class Splitter:
    """Carries out the split orders of this agent."""

    def __init__(self, parts: Parts, ownerships: Ownerships, tuning: Tuning) -> None:
        self._parts = parts
        self._ownerships = ownerships
        self._tuning = tuning
        self._merger = Merger(parts, ownerships)
        self._not_before_s: dict[BundleId, float] = {}

    async def run(self) -> None:
        """Cut and merge what is ordered to be, until cancelled."""
        while True:
            orders = self._ownerships.orders
            ordered = orders.splits if orders else {}
            await self._merger.look(ordered)
            splits = {b: o for b, o in ordered.items() if whole_ordered(b, o) is None}
            self._not_before_s = {
                bundle: at_s for bundle, at_s in self._not_before_s.items() if bundle in splits
            }
            for bundle, order in splits.items():
                if self._is_due(bundle):
                    self._not_before_s[bundle] = self._parts.clock.monotonic_s() + _TRY_AGAIN_S
                    await self._try(bundle, order)
            await self._parts.clock.sleep(_LOOK_S)

    def _is_due(self, bundle: BundleId) -> bool:
        owned = self._ownerships.records.phase(bundle) is Phase.OWNED
        due_s = self._not_before_s.get(bundle, 0.0)
        return owned and self._parts.clock.monotonic_s() >= due_s

    async def _try(self, bundle: BundleId, order: SplitOrder) -> None:
        try:
            change = await self._change(bundle, order)
        except (BrokerError, CoordinationError, CannotSplit, NoPositions, MalformedContent) as why:
            log.warning("bundle.split.refused", bundle=bundle, why=str(why))
            return
        if change is not None:
            self._ownerships.begin_split(change)

    async def _change(self, bundle: BundleId, order: SplitOrder) -> RangeChange | None:
        """Return the split, None if the boundaries show that it was made already."""
        namespace = namespace_of(bundle)
        path = znodes.local_policies(namespace)
        node = await self._parts.coordination.get(path)
        if node is None:
            raise CannotSplit(bundle, f"{path} is missing", "a namespace that exists")
        before = decode_boundaries(path, namespace, node.data, node.stat.version)
        if bundle not in before.bundles:
            return None
        after = split(before, bundle, await self._cuts(bundle, order))
        content = encode_boundaries(after, node.data)
        parts = tuple(part for part in after.bundles if part not in set(before.bundles))
        return RangeChange((bundle,), parts, SetData(path, content, node.stat.version))

    async def _cuts(self, bundle: BundleId, order: SplitOrder) -> tuple[int, ...]:
        algorithm = SPLIT_ALGORITHMS.get(order.algorithm)
        if algorithm is None:
            known = ", ".join(sorted(SPLIT_ALGORITHMS))
            raise CannotSplit(bundle, f"algorithm {order.algorithm!r}", f"one of {known}")
        lower, upper = range_of(bundle)
        traffic = await self._parts.broker.topics(bundle)
        topics = [
            TopicLoad(self._parts.topic_hash.position(topic), load.msgs_per_s, load.bytes_per_s)
            for topic, load in traffic.items()
        ]
        cuts = algorithm(
            SplitAsk(lower, upper, topics, order.positions), self._tuning.now.split_limits
        )
        if not cuts:
            raise CannotSplit(
                bundle,
                f"{order.algorithm} finds no place among {len(topics)} topics",
                "two topics or more that can be told apart",
            )
        return cuts


def parts_of(whole: BundleId, boundaries: Boundaries) -> tuple[BundleId, ...]:
    """Return the bundles that a bundle no longer among ``boundaries`` was cut into.

    Raises:
        LoadManagerError: it is still among them, or they do not tile its range.
    """
    lower, upper = range_of(whole)
    inside = [b for b in boundaries.bundles if lower <= range_of(b)[0] and range_of(b)[1] <= upper]
    tiled = bool(inside) and range_of(inside[0])[0] == lower and range_of(inside[-1])[1] == upper
    if not tiled or inside == [whole]:
        raise LoadManagerError(f"{whole} is not a bundle that was cut; boundaries {boundaries}")
    return tuple(inside)

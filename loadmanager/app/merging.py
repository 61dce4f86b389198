"""Making one bundle of two neighbours of this broker where the leader ordered it.

The two are unloaded first, so that no request of theirs is in service any more; then
boundaries, the locks of both and that of the whole change in one commit, as in a split.
Lookups wait meanwhile, as they do while a bundle moves.
"""

from collections.abc import Mapping

import structlog

from loadmanager.app.owning import Ownerships
from loadmanager.app.parts import Parts
from loadmanager.app.range_changes import RangeChange
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId, namespace_of
from loadmanager.core.orders import SplitOrder
from loadmanager.core.ownership import Phase
from loadmanager.core.splitting import CannotMerge, Merge, merge, merges_in
from loadmanager.core.wire import decode_boundaries, encode_boundaries
from loadmanager.ports import CoordinationError, SetData

log = structlog.get_logger()

_TRY_AGAIN_S = 10.0
_STOP_WITHIN_S = 5.0


class Merger:
    """Carries out the merge orders of this agent."""

    def __init__(self, parts: Parts, ownerships: Ownerships) -> None:
        self._parts = parts
        self._ownerships = ownerships
        self._not_before_s: dict[BundleId, float] = {}

    async def look(self, orders: Mapping[BundleId, SplitOrder]) -> None:
        """Begin the merges that are ordered and can be made now."""
        ordered = merges_in(orders)
        now_s = self._parts.clock.monotonic_s()
        self._not_before_s = {
            both.whole: self._not_before_s.get(both.whole, now_s) for both in ordered
        }
        for both in ordered:
            if self._is_due(both):
                self._not_before_s[both.whole] = now_s + _TRY_AGAIN_S
                await self._try(both)

    def _is_due(self, both: Merge) -> bool:
        own = self._ownerships
        served = all(own.serves(half) for half in both.halves)
        # The whole may still be stopping, if it was cut into these a moment ago.
        free = own.records.phase(both.whole) is Phase.FREE and (
            both.whole not in own.range_changes.merges
        )
        return served and free and self._parts.clock.monotonic_s() >= self._not_before_s[both.whole]

    async def _try(self, both: Merge) -> None:
        try:
            boundaries = await self._boundaries(both)
        except (CoordinationError, CannotMerge, MalformedContent) as why:
            log.warning("bundle.merge.refused", bundle=both.whole, why=str(why))
            return
        until_s = self._parts.clock.monotonic_s() + _STOP_WITHIN_S
        if all(self._ownerships.serves(half) for half in both.halves):
            log.info("bundle.merge.begun", bundle=both.whole, halves=both.halves)
            change = RangeChange(both.halves, (both.whole,), boundaries, until_s)
            self._ownerships.begin_merge(change)

    async def _boundaries(self, both: Merge) -> SetData:
        namespace = namespace_of(both.lower)
        path = znodes.local_policies(namespace)
        node = await self._parts.coordination.get(path)
        if node is None:
            raise CannotMerge(f"{path} is missing; expected a namespace that exists")
        before = decode_boundaries(path, namespace, node.data, node.stat.version)
        content = encode_boundaries(merge(before, both), node.data)
        return SetData(path, content, node.stat.version)

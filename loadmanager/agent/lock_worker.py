"""Takes and drops locks, and replaces ranges, during one membership.

`LockCommits` writes and returns the result of each lock; its consequences for the
bundles are applied here.
"""

from collections.abc import Sequence
from typing import Final

from loadmanager.agent.lock_batches import LockBatch, LockBatches
from loadmanager.agent.lock_commits import LockCommits, LockOutcomes, LockResult
from loadmanager.agent.owned_list import OwnedList
from loadmanager.agent.ownership_worker import OwnershipWorker
from loadmanager.agent.range_changes import RangeChange
from loadmanager.agent.registration import Membership
from loadmanager.common.context import Context
from loadmanager.common.oversized import REST_S
from loadmanager.core.ids import BundleId
from loadmanager.core.orders import Orders
from loadmanager.core.ownership import Phase
from loadmanager.core.splitting.merging import merges_in
from loadmanager.ports.coordination import TooLarge

_IDLE_S: Final = 5.0
_GATHER_S: Final = 0.01


class LockWorker:
    def __init__(
        self, context: Context, ownerships: OwnershipWorker, membership: Membership
    ) -> None:
        self._clock = context.clock
        self._oversized = context.oversized
        self._ownerships = ownerships
        self._list = OwnedList(context, ownerships.records, membership)
        self._commits = LockCommits(context, self._list, self._orders, membership)
        self._batches = LockBatches()

    async def run(self) -> None:
        """Raises `SessionLost`: the owned list is gone or another's: so is the session."""
        own = self._ownerships
        while True:
            batch = self._next_batch()
            merge, split = self._ready_merge(), next(iter(own.range_changes.splits.values()), None)
            if merge is not None and not own.doubting:
                await self._merge(merge)
            elif batch.takes or batch.drops:
                pause_s = self._list.pause_s()
                if pause_s > 0 and not self._batches.is_full(batch):
                    await self._clock.sleep(pause_s)
                    batch = self._next_batch()
                self._apply(await self._commits.change(batch.takes, batch.drops))
            elif split is not None and not own.doubting:
                await self._split(split)
            elif own.records.loading.keys() != self._list.loading:
                await self._write_list()
            else:
                await own.lock_work.wait(_IDLE_S)

    def _orders(self) -> Orders | None:
        return None if self._ownerships.doubting else self._ownerships.orders

    def _next_batch(self) -> LockBatch:
        own = self._ownerships
        kept = own.range_changes.stopping()
        batch = self._batches.next(
            own.takes,
            (bundle for bundle in own.drops if bundle not in kept),
            self._clock.monotonic_s(),
            may_take=not own.doubting,
        )
        for bundle in batch.refused:
            own.lock_refused(bundle)
        return batch

    def _ready_merge(self) -> RangeChange | None:
        own = self._ownerships
        ordered = merges_in(own.orders.splits) if own.orders else ()
        return own.range_changes.ready_merge(own.records.phase, ordered, self._clock.monotonic_s())

    def _apply(self, found: LockOutcomes) -> None:
        own = self._ownerships
        for bundle in found.of(LockResult.HELD_BY_ANOTHER, LockResult.NOT_A_BUNDLE):
            own.lock_refused(bundle)
        if found.error is not None:
            takes, drops = LockResult.TAKE_TOO_LARGE, LockResult.DROP_TOO_LARGE
            self._too_large(found.of(takes), found.of(drops), found.error)
            return
        taken, dropped = found.of(LockResult.TAKEN), found.of(LockResult.DROPPED)
        own.locks_dropped(dropped)
        own.locks_taken(dict.fromkeys(taken, found.token))
        self._batches.done(taken, dropped)

    def _too_large(
        self, takes: Sequence[BundleId], drops: Sequence[BundleId], error: TooLarge
    ) -> None:
        alone = self._batches.too_large(takes, drops, self._clock.monotonic_s())
        if alone is not None:
            self._oversized.refused("locks", alone, error)
            if alone in takes:
                self._ownerships.lock_refused(alone)

    async def _write_list(self) -> None:
        """Publish the served bundles to lookups: the only write that nothing waits for.

        A commit of locks includes it; it is written alone only if there is none.
        """
        own = self._ownerships
        gather_s = _GATHER_S if own.records.loading else 0.0
        await self._clock.sleep(max(self._list.pause_s(), gather_s))
        batch = self._next_batch()
        if batch.takes or batch.drops:
            return  # Their commit includes it.
        try:
            await self._list.commit()
        except TooLarge as error:
            self._oversized.refused("locks", self._list.path, error)
            await own.lock_work.wait(REST_S)

    async def _split(self, change: RangeChange) -> None:
        own = self._ownerships
        own.range_changes.end(change)
        if own.records.phase(change.whole) is Phase.OWNED:
            token = await self._commits.replace(change)
            if token is not None:
                own.was_split(change, token)

    async def _merge(self, change: RangeChange) -> None:
        own = self._ownerships
        own.merging(change)
        token = await self._commits.replace(change)
        if token is not None:
            own.was_merged(change, token)
        else:
            own.not_merged(change)

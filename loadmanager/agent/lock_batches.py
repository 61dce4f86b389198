"""Selects the locks to take and drop in one commit.

Each commit rewrites the owned list, so larger batches reduce that cost. They grow while there is
enough work, and shrink if a commit exceeds ZooKeeper's limit. A lock that does not fit even
alone is refused: its bundle must go to another broker.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from loadmanager.agent.ownership_records import Ownership
from loadmanager.common.oversized import REST_S
from loadmanager.core.ids import BundleId
from loadmanager.core.ownership import Phase

_BATCH: Final = 64
_LARGEST_BATCH: Final = 512


@dataclass(frozen=True, slots=True)
class LockBatch:
    """``refused`` are not to be taken now."""

    takes: Sequence[BundleId]
    drops: Sequence[BundleId]
    refused: Sequence[BundleId]


class LockBatches:
    def __init__(self) -> None:
        self._size = _BATCH
        self._drops_first = False
        # Takes that did not fit, tried after all others.
        self._unfit: dict[BundleId, None] = {}
        self._takes_rest_until_s = self._drops_rest_until_s = -math.inf

    def next(
        self,
        takes: Mapping[BundleId, Ownership],
        drops: Iterable[BundleId],
        now_s: float,
        *,
        may_take: bool,
    ) -> LockBatch:
        if now_s < self._takes_rest_until_s:
            some, refused = [], list(takes)
        else:
            fit = islice((one for one in takes if one not in self._unfit), self._size)
            some = list(fit) or [one for one in self._unfit if one in takes][: self._size]
            refused = [one for one in some if takes[one].phase is Phase.ABANDONING]
        resting = now_s < self._drops_rest_until_s
        dropped = [] if resting else list(islice(drops, self._size))
        postponed = not may_take or (dropped and self._drops_first)
        taken = [] if postponed else [one for one in some if one not in refused]
        return LockBatch(taken, dropped, refused)

    def is_full(self, batch: LockBatch) -> bool:
        return self._fills(batch.takes, batch.drops)

    def done(self, taken: Collection[BundleId], dropped: Collection[BundleId]) -> None:
        """Grow the next batch, if there was enough work."""
        for bundle in taken:
            self._unfit.pop(bundle, None)
        if dropped:
            self._unfit.clear()
            self._takes_rest_until_s = -math.inf
        if self._fills(taken, dropped):
            self._size = min(2 * self._size, _LARGEST_BATCH)
        self._drops_first = False

    def too_large(
        self, takes: Sequence[BundleId], drops: Sequence[BundleId], now_s: float
    ) -> BundleId | None:
        """Shrink the batches; return the bundle of a lock that does not fit by itself.

        In that case no lock is taken (or dropped, respectively) for a while.
        """
        count = len(takes) + len(drops)
        if takes and drops:
            self._drops_first = True  # They make the list smaller.
        elif count > 1:
            self._size = max(1, count // 2)
        elif drops:
            self._drops_rest_until_s = now_s + REST_S
            return drops[0]
        else:
            self._unfit.pop(takes[0], None)
            self._unfit[takes[0]] = None
            self._takes_rest_until_s = now_s + REST_S
            return takes[0]
        return None

    def _fills(self, takes: Collection[BundleId], drops: Collection[BundleId]) -> bool:
        return max(len(takes), len(drops)) >= self._size

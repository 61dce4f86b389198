"""Which locks are taken and dropped in one commit.

Each commit rewrites the owned list, so larger batches cost less of it. They grow while
there is work for them, and shrink where a commit is more than ZooKeeper takes at once. A
lock that does not fit by itself is refused: its bundle is for another broker.
"""

import math
from collections.abc import Iterable
from itertools import islice
from typing import Final

from loadmanager.app.oversized import REST_S, Oversized
from loadmanager.app.owning import Ownerships
from loadmanager.core.ids import BundleId
from loadmanager.core.ownership import Phase
from loadmanager.ports import Clock, TooLarge

_BATCH: Final = 64
_LARGEST_BATCH: Final = 512


class LockBatches:
    """The queues of one membership's lock keeper, in pieces that can be written."""

    def __init__(self, ownerships: Ownerships, clock: Clock, oversized: Oversized) -> None:
        self._ownerships = ownerships
        self._clock = clock
        self._oversized = oversized
        self._size = _BATCH
        self._drops_first = False
        # Takes that did not fit: tried after all others.
        self._unfit: dict[BundleId, None] = {}
        self._takes_rest_until_s = self._drops_rest_until_s = -math.inf

    def next(self) -> tuple[list[BundleId], list[BundleId]]:
        """Return which locks to take and which to drop next."""
        now_s = self._clock.monotonic_s()
        if now_s < self._takes_rest_until_s:
            self._refuse(list(self._ownerships.takes))
        takes, drops = self._takes(), self._drops()
        if now_s < self._drops_rest_until_s:
            drops = []
        return ([] if drops and self._drops_first else takes), drops

    def full(self, takes: list[BundleId], drops: list[BundleId]) -> bool:
        """Say whether no more would be written together if there were more."""
        return max(len(takes), len(drops)) >= self._size

    def done(self, takes: list[BundleId], drops: list[BundleId]) -> None:
        """Take more together next time, if there were enough."""
        for bundle in takes:
            self._unfit.pop(bundle, None)
        if drops:
            self._unfit.clear()
            self._takes_rest_until_s = -math.inf
        if self.full(takes, drops):
            self._size = min(2 * self._size, _LARGEST_BATCH)
        self._drops_first = False

    def too_large(self, takes: list[BundleId], drops: list[BundleId], error: TooLarge) -> None:
        """Try less together; refuse a lock that does not fit by itself, for a while."""
        if takes and drops:
            self._drops_first = True  # They make the list smaller.
        elif len(takes) + len(drops) > 1:
            self._size = max(1, (len(takes) + len(drops)) // 2)
        else:
            (bundle,) = takes or drops
            self._oversized.refused("locks", bundle, error)
            rest_until_s = self._clock.monotonic_s() + REST_S
            if drops:
                self._drops_rest_until_s = rest_until_s
                return
            self._unfit.pop(bundle, None)
            self._unfit[bundle] = None
            self._takes_rest_until_s = rest_until_s
            self._refuse([bundle])

    def _takes(self) -> list[BundleId]:
        own = self._ownerships
        fit = islice((one for one in own.takes if one not in self._unfit), self._size)
        takes = list(fit) or [one for one in self._unfit if one in own.takes][: self._size]
        self._refuse(one for one in takes if own.phases.get(one) is Phase.ABANDONING)
        return [] if own.doubting else [bundle for bundle in takes if bundle in own.takes]

    def _drops(self) -> list[BundleId]:
        waiting = self._ownerships.joints.waiting()
        drops = (one for one in self._ownerships.drops if one not in waiting)
        return list(islice(drops, self._size))

    def _refuse(self, bundles: Iterable[BundleId]) -> None:
        for bundle in bundles:
            self._ownerships.lock_refused(bundle)

"""The splits and merges under way on one broker.

A split is made in one commit. The two bundles of a merge are first recalled as any other bundle.
Once the broker serves neither, their locks are dropped in the commit that creates the merged
bundle; if that fails, they are dropped as usual, and taken again because the orders still name
them. So both bundles are served again after any failure.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from loadmanager.core.ids import BundleId
from loadmanager.core.ownership import Phase
from loadmanager.core.splitting.merging import Merge
from loadmanager.ports.coordination import SetData

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RangeChange:
    """A bundle to be replaced by its parts, or two by one, with the write of the boundaries.

    A bundle of a merge that has stopped waits for the other until ``until_s`` on this
    agent's clock.
    """

    gone: tuple[BundleId, ...]
    made: tuple[BundleId, ...]
    boundaries: SetData
    until_s: float = math.inf

    @property
    def is_merge(self) -> bool:
        return len(self.gone) > 1

    @property
    def whole(self) -> BundleId:
        return self.made[0] if self.is_merge else self.gone[0]


class RangeChanges:
    def __init__(self) -> None:
        self.splits: dict[BundleId, RangeChange] = {}
        self.merges: dict[BundleId, RangeChange] = {}

    def begin(self, change: RangeChange) -> None:
        (self.merges if change.is_merge else self.splits)[change.whole] = change

    def end(self, change: RangeChange) -> None:
        (self.merges if change.is_merge else self.splits).pop(change.whole, None)

    def give_up_merges(self) -> None:
        """Remove the merges: the broker is gone, or everything is being released."""
        self.merges.clear()

    def clear(self) -> None:
        self.splits.clear()
        self.merges.clear()

    def ready_merge(
        self, phase: Callable[[BundleId], Phase], ordered: Collection[Merge], now_s: float
    ) -> RangeChange | None:
        """Return a merge whose bundles are both unloaded; remove those that will never be made."""
        wanted = {merge.halves for merge in ordered}
        for change in tuple(self.merges.values()):
            phases = [phase(half) for half in change.gone]
            stopped = phases.count(Phase.DROPPING)
            stopping = phases.count(Phase.RELEASING)
            late = now_s > change.until_s and stopping > 0
            free = phase(change.whole) is Phase.FREE
            if change.gone not in wanted or stopped + stopping < len(phases) or late or not free:
                self.end(change)
                log.warning("bundle.merge.given_up", bundle=change.whole, phases=phases)
            elif not stopping:
                return change
        return None

    def stopping(self) -> set[BundleId]:
        """Return the bundles of merges, whose locks are not to be dropped by themselves."""
        return {half for change in self.merges.values() for half in change.gone}

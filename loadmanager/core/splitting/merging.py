"""Merges two adjacent bundles, and encodes the order for it.

The order is written as two split orders, one for each half, each with the far bound of the
merged bundle. So it is kept, passed on to the next leader and withdrawn in the same way as any
split order, and an agent or leader of a version without merges refuses the unknown algorithm, or
gives up the order, without any change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.ids import BundleId, bundle_id, namespace_of, range_of
from loadmanager.core.load import BundleStats
from loadmanager.core.orders import SplitOrder
from loadmanager.core.splitting.finder import SplitRules, excess_of

MERGE_WITH_NEXT: Final = "merge_with_next"
MERGE_WITH_FORMER: Final = "merge_with_former"


class CannotMerge(LoadManagerError, ValueError):
    pass


@dataclass(frozen=True, slots=True)
class Merge:
    lower: BundleId
    upper: BundleId

    @property
    def halves(self) -> tuple[BundleId, BundleId]:
        return self.lower, self.upper

    @property
    def whole(self) -> BundleId:
        return bundle_id(namespace_of(self.lower), range_of(self.lower)[0], range_of(self.upper)[1])

    def orders(self) -> dict[BundleId, SplitOrder]:
        low, high = range_of(self.whole)
        return {
            self.lower: SplitOrder(MERGE_WITH_NEXT, (high,)),
            self.upper: SplitOrder(MERGE_WITH_FORMER, (low,)),
        }


def neighbours(boundaries: Boundaries, one: BundleId, other: BundleId) -> Merge:
    """Return the merge of two bundles, in any order.

    Raises `CannotMerge`: one of them is not a current bundle of the namespace, both are the same,
    or they are not adjacent. The last and the first bundle are not adjacent: a range does not wrap
    around the circle.
    """
    for bundle in (one, other):
        if bundle not in boundaries:
            raise CannotMerge(f"{bundle} is no bundle of {boundaries.namespace} now")
    if len(boundaries.bundles) == 1:
        raise CannotMerge(f"{boundaries.namespace} has a single bundle")
    lower, upper = sorted((one, other), key=range_of)
    if range_of(lower)[1] != range_of(upper)[0]:
        raise CannotMerge(f"{lower} and {upper} are not adjacent; expected two neighbours")
    return Merge(lower, upper)


def merge(boundaries: Boundaries, both: Merge) -> Boundaries:
    """Return the boundaries without the bound between the two; raises as `neighbours`."""
    neighbours(boundaries, *both.halves)
    between = range_of(both.upper)[0]
    bounds = tuple(bound for bound in boundaries.bounds if bound != between)
    return Boundaries(boundaries.namespace, bounds, boundaries.version)


def whole_ordered(half: BundleId, order: SplitOrder) -> BundleId | None:
    """Return the bundle into which ``order`` merges ``half``; None for a split."""
    low, high = range_of(half)
    far = order.positions[0] if len(order.positions) == 1 else -1
    if order.algorithm == MERGE_WITH_NEXT and high < far <= FULL_RANGE_END:
        return bundle_id(namespace_of(half), low, far)
    if order.algorithm == MERGE_WITH_FORMER and 0 <= far < low:
        return bundle_id(namespace_of(half), far, high)
    return None


def merges_in(orders: Mapping[BundleId, SplitOrder]) -> tuple[Merge, ...]:
    lower: dict[BundleId, BundleId] = {}
    upper: dict[BundleId, BundleId] = {}
    for half, order in sorted(orders.items()):
        whole = whole_ordered(half, order)
        if whole is not None:
            halves = lower if order.algorithm == MERGE_WITH_NEXT else upper
            halves[whole] = half
    both = (Merge(lower[whole], upper[whole]) for whole in lower if whole in upper)
    return tuple(one for one in both if range_of(one.lower)[1] == range_of(one.upper)[0])


def merged_by_order(
    half: BundleId, orders: Mapping[BundleId, SplitOrder], boundaries: Boundaries
) -> BundleId | None:
    """Return the bundle among ``boundaries`` that ``half`` was ordered to be merged into."""
    order = orders.get(half)
    whole = whole_ordered(half, order) if order else None
    return whole if whole is not None and whole in boundaries else None


def added(one: BundleStats, other: BundleStats) -> BundleStats:
    names = [figure.name for figure in fields(BundleStats)]
    return BundleStats(**{name: getattr(one, name) + getattr(other, name) for name in names})


def cut_again(rules: SplitRules, one: BundleStats, other: BundleStats) -> str:
    """Return the figure for which the merged bundle would be split at once; empty for none."""
    both = added(one, other)
    return excess_of(rules, both, both)

from collections.abc import Sequence
from typing import Final

from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName, LoadManagerError
from loadmanager.core.ids import BundleId, bundle_id, namespace_of, range_of

_NARROWEST: Final = 1


class CannotSplit(LoadManagerError, ValueError):
    def __init__(self, bundle: BundleId, why: str, expected: str) -> None:
        super().__init__(f"bundle {bundle} cannot be split: {why}; expected {expected}")


def can_split(bundle: BundleId) -> bool:
    lower, upper = range_of(bundle)
    return upper - lower > _NARROWEST


def split(boundaries: Boundaries, bundle: BundleId, cuts: Sequence[int]) -> Boundaries:
    """Return the boundaries with ``bundle`` split at ``cuts``, given in any order.

    Raises `CannotSplit`: the bundle does not belong to the namespace or is too narrow, there is no
    cut, or the cuts are not distinct positions strictly inside it.
    """
    if bundle not in boundaries:
        raise CannotSplit(bundle, "it is no bundle of the namespace now", "a present bundle")
    if not can_split(bundle):
        raise CannotSplit(bundle, "its range is a single position", "a wider range")
    lower, upper = range_of(bundle)
    if not cuts or not all(lower < cut < upper for cut in cuts):
        raise CannotSplit(bundle, f"cuts {list(cuts)}", "cuts strictly inside the range")
    try:
        bounds = tuple(sorted((*boundaries.bounds, *cuts)))
        return Boundaries(boundaries.namespace, bounds, boundaries.version)
    except InvalidName:
        raise CannotSplit(bundle, f"cuts {list(cuts)}", "different places") from None


def even_cuts(bundle: BundleId, parts: int) -> tuple[int, ...]:
    """Raises `CannotSplit`: there are fewer than two parts, or more parts than positions."""
    lower, upper = range_of(bundle)
    width = (upper - lower) // parts if parts > 1 else 0
    if width < 1:
        raise CannotSplit(bundle, f"{parts} parts", "2 parts or more, of one position or more")
    return tuple(lower + part * width for part in range(1, parts))


def parts_at(bundle: BundleId, cut: int) -> tuple[BundleId, BundleId]:
    namespace, (lower, upper) = namespace_of(bundle), range_of(bundle)
    return bundle_id(namespace, lower, cut), bundle_id(namespace, cut, upper)

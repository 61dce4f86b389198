from bisect import bisect_right
from dataclasses import dataclass, field
from operator import lt
from typing import Self

from loadmanager.core.errors import InvalidName
from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.ids import BundleId, Namespace, bundle_ids, range_of


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The bundles of one namespace, in order of their ranges.

    ``bounds`` starts with 0, ends with 0xffffffff and is strictly increasing, so that the
    ranges cover the hash range. A range includes its lower bound and excludes its upper one,
    except the last, which includes 0xffffffff.

    ``version`` is that of the znode the boundaries were read from: a split is a compare-and-set on
    it, and an order for an older version is stale. Raises `InvalidName`: the bounds do not tile the
    circle.
    """

    namespace: Namespace
    bounds: tuple[int, ...]
    version: int = 0
    bundles: tuple[BundleId, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Also formats the bundle names once, so that lookups format no text."""
        bounds = self.bounds
        grows = all(map(lt, bounds, bounds[1:]))
        if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != FULL_RANGE_END or not grows:  # noqa: PLR2004 - one range needs two
            raise InvalidName("boundaries", bounds, "growing bounds from 0x00000000 to 0xffffffff")
        object.__setattr__(self, "bundles", bundle_ids(self.namespace, bounds))

    @classmethod
    def even(cls, namespace: Namespace, count: int) -> Self:
        """Return ``count`` bundles of equal width, as Pulsar cuts a new namespace.

        The inner bounds are multiples of ``floor(2**32 / count)``; the last bundle also covers the
        remainder. Raises `InvalidName`: ``count`` is below one or above 2**32 - 1.
        """
        if not 0 < count <= FULL_RANGE_END:
            raise InvalidName("bundle count", count, "1 or more")
        width = (FULL_RANGE_END + 1) // count
        return cls(namespace, (*(k * width for k in range(count)), FULL_RANGE_END))

    def __contains__(self, bundle: BundleId) -> bool:
        return self.at(range_of(bundle)[0]) == bundle

    def at(self, position: int) -> BundleId:
        """Return the bundle that holds ``position``, 0 to 0xffffffff.

        Pulsar's accident `last-hash`: its search fails for a topic whose hash is exactly
        0xffffffff. Here such a topic belongs to the last bundle in both modes, in agreement with
        the range check of Pulsar's own bundles.
        """
        return self.bundles[min(bisect_right(self.bounds, position), len(self.bundles)) - 1]

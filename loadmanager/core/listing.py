"""The bundles of one load report, in columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.ids import BundleId
from loadmanager.core.load import BundleStats
from loadmanager.core.scores import FloatArray

Whole = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Listing:
    """What one report says of its bundles; row ``i`` is the bundle ``names[i]``.

    ``names`` is sorted. ``rates`` is (bundles, 4) in the order of `averages`, ``sessions``
    are producers and consumers together.
    """

    names: tuple[BundleId, ...]
    rates: FloatArray
    topics: Whole
    sessions: Whole
    cache_size_bytes: Whole

    @classmethod
    def of(cls, bundles: Mapping[BundleId, BundleStats]) -> "Listing":
        """Return the statistics of a report in columns."""
        names = tuple(sorted(bundles))
        stats = [bundles[name] for name in names]
        rates = [
            (one.msgs_in_per_s, one.msgs_out_per_s, one.bytes_in_per_s, one.bytes_out_per_s)
            for one in stats
        ]
        return cls(
            names=names,
            rates=np.array(rates, dtype=np.float64).reshape(len(names), 4),
            topics=np.array([one.topics for one in stats], dtype=np.int64),
            sessions=np.array([one.producers + one.consumers for one in stats], dtype=np.int64),
            cache_size_bytes=np.array([one.cache_size_bytes for one in stats], dtype=np.int64),
        )

    @cached_property
    def members(self) -> frozenset[BundleId]:
        """The names, for asking whether a bundle is among them."""
        return frozenset(self.names)

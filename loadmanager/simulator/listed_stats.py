"""The statistics of a report's bundles: columns, until somebody wants one of them as an object."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.columns import Listing
from loadmanager.core.history.records import stats_of
from loadmanager.core.ids import BundleId
from loadmanager.core.load import BundleStats


class ListedStats(Mapping[BundleId, BundleStats]):
    """A listing as a `LoadReport` has its bundles; ``producers`` are those of each row."""

    def __init__(self, listing: Listing, producers: NDArray[np.int64]) -> None:
        self._listing = listing
        self._producers = producers

    def __getitem__(self, bundle: BundleId) -> BundleStats:
        """Return the statistics of one bundle."""
        return self._made[bundle]

    def __iter__(self) -> Iterator[BundleId]:
        """Yield the names, in their order."""
        return iter(self._listing.names)

    def __len__(self) -> int:
        """Return how many bundles there are."""
        return len(self._listing.names)

    @cached_property
    def _made(self) -> Mapping[BundleId, BundleStats]:
        return dict(zip(self._listing.names, stats_of(self.columns()), strict=True))

    def columns(self) -> dict[str, list[Any]]:
        """Return the lists that a report's line of history has, in its order."""
        listing = self._listing
        msgs_in, msgs_out, bytes_in, bytes_out = listing.rates.T.tolist()
        return {
            "msgs_in_per_s": msgs_in,
            "msgs_out_per_s": msgs_out,
            "bytes_in_per_s": bytes_in,
            "bytes_out_per_s": bytes_out,
            "topics": listing.topics.tolist(),
            "producers": self._producers.tolist(),
            "consumers": (listing.sessions - self._producers).tolist(),
            "cache_bytes": listing.cache_size_bytes.tolist(),
        }

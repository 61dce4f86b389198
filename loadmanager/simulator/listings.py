"""The bundles listed by each broker: rows in order of names, and statistics."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.columns import Indices, Listing
from loadmanager.core.history.records import stats_of
from loadmanager.core.ids import BundleId
from loadmanager.core.load import BundleStats


class ListedStats(Mapping[BundleId, BundleStats]):
    """A listing in the form of the bundles of a `LoadReport`; ``producers`` is by row."""

    def __init__(self, listing: Listing, producers: NDArray[np.int64]) -> None:
        self._listing = listing
        self._producers = producers

    def __getitem__(self, bundle: BundleId) -> BundleStats:
        return self._made[bundle]

    def __iter__(self) -> Iterator[BundleId]:
        return iter(self._listing.names)

    def __len__(self) -> int:
        return len(self._listing.names)

    @cached_property
    def _made(self) -> Mapping[BundleId, BundleStats]:
        return dict(zip(self._listing.names, stats_of(self.columns()), strict=True))

    def columns(self) -> dict[str, list[Any]]:
        """Return the parallel lists of a line of history of kind ``report``, in order."""
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


_FEW = 8


class ListingRows:
    def __init__(self, broker_count: int, bundles: Sequence[BundleId]) -> None:
        self._bundles = bundles
        by_name = sorted(range(len(bundles)), key=bundles.__getitem__)
        self._by_name = np.array(by_name, dtype=np.intp)
        none = np.zeros(0, dtype=np.intp)
        self._rows = [none] * broker_count
        self._names: list[tuple[BundleId, ...] | None] = [None] * broker_count
        self.owner: Indices = np.full(len(bundles), -1, dtype=np.intp)

    def follow(self, owner: Indices) -> Indices:
        """Set the current owners; return the rows of brokers with changes."""
        changed = np.flatnonzero(owner != self.owner)
        if not len(changed):
            return changed
        brokers = np.unique(np.concatenate([self.owner[changed], owner[changed]]))
        brokers = brokers[brokers >= 0]
        self.owner = owner.copy()
        owner_by_name = owner[self._by_name]
        if len(brokers) <= _FEW:
            for broker in brokers.tolist():
                self._put(broker, self._by_name[owner_by_name == broker])
            return brokers
        order = np.argsort(owner_by_name, kind="stable")
        sorted_owner = owner_by_name[order]
        begins = np.searchsorted(sorted_owner, brokers, side="left").tolist()
        ends = np.searchsorted(sorted_owner, brokers, side="right").tolist()
        rows = self._by_name[order]
        for broker, begin, end in zip(brokers.tolist(), begins, ends, strict=True):
            self._put(broker, rows[begin:end])
        return brokers

    def _put(self, broker: int, rows: Indices) -> None:
        self._rows[broker] = rows
        self._names[broker] = None

    def rows(self, broker: int) -> Indices:
        return self._rows[broker]

    def names(self, broker: int) -> tuple[BundleId, ...]:
        names = self._names[broker]
        if names is None:
            names = tuple(self._bundles[row] for row in self._rows[broker].tolist())
            self._names[broker] = names
        return names

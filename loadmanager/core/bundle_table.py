from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.averages import (
    DEFAULT_RATES,
    LONG_SAMPLES,
    SHORT_SAMPLES,
    Average,
    BundleAverages,
    add_samples,
)
from loadmanager.core.columns import BundleColumns, Indices, Listing
from loadmanager.core.ids import BundleId, Namespace, belongs_to_a_broker, namespace_of
from loadmanager.core.rates import BYTES_IN, BYTES_OUT, Rates
from loadmanager.core.scores import FloatArray

Number = TypeVar("Number", bound=np.generic)

_FIRST_CAPACITY: Final = 64
_KEPT_SAMPLES: Final = 360
"""Number of samples for which a bundle that no report lists keeps its averages."""

_COMPACT_ABOVE: Final = 4096


class BundleTable:
    """The leader's bundles; the row of a bundle does not change until rows are compacted.

    Arrays handed out in a `BundleColumns` are never modified, except in rows beyond those that
    belong to it.
    """

    def __init__(self) -> None:
        self._names: list[BundleId] = []
        self._index: dict[BundleId, int] = {}
        self._namespaces: dict[Namespace, list[int]] = {}
        self._admitted = 0
        self._allocate(_FIRST_CAPACITY)

    def _allocate(self, capacity: int) -> None:
        self._short = np.tile(np.array(DEFAULT_RATES.row()), (capacity, 1))
        self._long = self._short.copy()
        self._samples = np.zeros((capacity, 4))
        self._short_counts = np.zeros(capacity, dtype=np.int64)
        self._long_counts = np.zeros(capacity, dtype=np.int64)
        self._topics = np.zeros(capacity, dtype=np.int64)
        self._sampled_topics = np.zeros(capacity, dtype=np.int64)
        self._connections = np.zeros(capacity, dtype=np.int64)
        self._listed = np.zeros(capacity, dtype=np.int64)
        self._idle = np.zeros(capacity, dtype=np.int64)
        self._system = np.zeros(capacity, dtype=np.bool_)

    def list_bundles(self, listing: Listing, rows: Indices | None = None) -> Indices:
        """Record the latest statistics of one broker's bundles; return their rows, by name."""
        if rows is None:
            rows = self._rows(listing.names)
        self._samples[rows] = listing.rates
        self._sampled_topics[rows] = listing.topics
        self._connections[rows] = listing.sessions
        self._listed[rows] += 1
        return rows

    def unlist(self, rows: Indices) -> None:
        """Record that the report that listed these rows was replaced or removed."""
        self._listed[rows] -= 1

    def add_sample(self) -> bool:
        """Add the latest statistics of each listed bundle to its averages, as one sample.

        Return True if rows were renumbered: the bundles of all reports must be listed again.
        """
        listed = self._listed > 0
        resting = np.flatnonzero(~listed[: len(self._names)])
        self._short, self._short_counts = self._sampled(
            self._short, self._short_counts, SHORT_SAMPLES, resting
        )
        self._long, self._long_counts = self._sampled(
            self._long, self._long_counts, LONG_SAMPLES, resting
        )
        self._topics = np.where(listed, self._sampled_topics, self._topics)
        self._idle = np.where(listed, 0, self._idle + 1)
        return self._compact()

    def _sampled(
        self,
        averages: FloatArray,
        counts: NDArray[np.int64],
        max_samples: int,
        resting: Indices,
    ) -> tuple[FloatArray, NDArray[np.int64]]:
        known = len(self._names)
        mixed, grown = add_samples(
            averages[:known], counts[:known], self._samples[:known], max_samples
        )
        mixed[resting] = averages[resting]
        grown[resting] = counts[resting]
        spare = slice(known, None)
        return np.concatenate([mixed, averages[spare]]), np.concatenate([grown, counts[spare]])

    def seed(self, averages: Mapping[BundleId, BundleAverages]) -> None:
        rows = self._rows(list(averages))
        if not averages:
            return
        every = list(averages.values())
        self._short = _with_rows(self._short, rows, [one.short.rates.row() for one in every])
        self._long = _with_rows(self._long, rows, [one.long.rates.row() for one in every])
        self._short_counts = _with_rows(
            self._short_counts, rows, [one.short.samples for one in every]
        )
        self._long_counts = _with_rows(self._long_counts, rows, [one.long.samples for one in every])
        self._topics = _with_rows(self._topics, rows, [one.topics for one in every])
        self._idle[rows] = 0

    def has_sample(self, bundle: BundleId) -> bool:
        row = self._index.get(bundle)
        return row is not None and bool(self._short_counts[row])

    def averages(self) -> "TableAverages":
        count = len(self._names)
        known = (self._short_counts[:count] > 0) & (self._idle[:count] <= _KEPT_SAMPLES)
        return TableAverages(
            names=self._names,
            index=self._index,
            known=known,
            short=self._short,
            long=self._long,
            short_counts=self._short_counts,
            long_counts=self._long_counts,
            topics=self._topics,
        )

    def columns(self) -> BundleColumns:
        count = len(self._names)
        return BundleColumns(
            names=self._names,
            index=self._index,
            short=self._short[:count],
            long=self._long[:count],
            known=self._short_counts[:count] > 0,
            system=self._system[:count],
            topics=self._topics[:count],
            connections=self._connections[:count].copy(),  # Later reports modify it.
            # A copy: other threads iterate over it while reports add namespaces.
            namespaces=dict(self._namespaces),
        )

    def _rows(self, names: Iterable[BundleId]) -> Indices:
        index = self._index
        rows = []
        for name in names:
            row = index.get(name)
            if row is None:
                row = len(self._names)
                self._names.append(name)
                index[name] = row
            rows.append(row)
        self._admit()
        return np.array(rows, dtype=np.intp)

    def _admit(self) -> None:
        """Allocate the rows added since the last call, and mark the brokers' own bundles."""
        needed = len(self._names)
        if needed > len(self._listed):
            self._grow(max(needed, 2 * len(self._listed)))
        while self._admitted < needed:
            row = self._admitted
            self._namespaces.setdefault(namespace_of(self._names[row]), []).append(row)
            self._system[row] = belongs_to_a_broker(self._names[row])
            self._admitted += 1

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return (
            self._short,
            self._long,
            self._samples,
            self._short_counts,
            self._long_counts,
            self._topics,
            self._sampled_topics,
            self._connections,
            self._listed,
            self._idle,
            self._system,
        )

    def _grow(self, capacity: int) -> None:
        former = self._arrays()
        self._allocate(capacity)
        for new, old in zip(self._arrays(), former, strict=True):
            new[: len(old)] = old

    def _compact(self) -> bool:
        """Drop the rows of bundles not listed for long, once they are a quarter of all rows."""
        count = len(self._names)
        kept = np.flatnonzero(self._idle[:count] <= _KEPT_SAMPLES)
        if count < _COMPACT_ABOVE or len(kept) > 0.75 * count:
            return False
        former = self._arrays()
        # New containers instead of changed ones: existing views keep using the old ones.
        self._names = [self._names[row] for row in kept.tolist()]
        self._index = {name: row for row, name in enumerate(self._names)}
        self._namespaces = {}
        for row, name in enumerate(self._names):
            self._namespaces.setdefault(namespace_of(name), []).append(row)
        self._allocate(max(_FIRST_CAPACITY, 2 * len(kept)))
        for new, old in zip(self._arrays(), former, strict=True):
            new[: len(kept)] = old[kept]
        self._listed[:] = 0
        self._admitted = len(kept)
        return True


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TableAverages(Mapping[BundleId, BundleAverages]):
    """The averages of all bundles at one time; never changes, and may be used in other threads.

    The averages of a bundle are created on access: creating a hundred thousand takes most of a
    second. ``known`` marks the valid rows; rows beyond its length were added later.
    """

    names: Sequence[BundleId]
    index: Mapping[BundleId, int]
    known: NDArray[np.bool_]
    short: FloatArray
    long: FloatArray
    short_counts: NDArray[np.int64]
    long_counts: NDArray[np.int64]
    topics: NDArray[np.int64]

    def heaviest(self, count: int) -> dict[BundleId, BundleAverages]:
        rows = np.flatnonzero(self.known)
        bytes_per_s = self.short[rows, BYTES_IN] + self.short[rows, BYTES_OUT]
        # Ties keep the order of rows, as in `heapq.nlargest`.
        first = rows[np.argsort(-bytes_per_s, kind="stable")[:count]]
        return {self.names[row]: self._average(row) for row in first.tolist()}

    def long_rates(self, bundle: BundleId) -> Rates | None:
        row = self._row(bundle)
        return None if row is None else Rates(*self.long[row].tolist())

    def __getitem__(self, bundle: BundleId) -> BundleAverages:
        row = self._row(bundle)
        if row is None:
            raise KeyError(bundle)
        return self._average(row)

    def _row(self, bundle: BundleId) -> int | None:
        row = self.index.get(bundle)
        return row if row is not None and row < len(self.known) and self.known[row] else None

    def __iter__(self) -> Iterator[BundleId]:
        return (self.names[row] for row in np.flatnonzero(self.known).tolist())

    def __len__(self) -> int:
        return int(self.known.sum())

    def _average(self, row: int) -> BundleAverages:
        return BundleAverages(
            Average(SHORT_SAMPLES, int(self.short_counts[row]), Rates(*self.short[row].tolist())),
            Average(LONG_SAMPLES, int(self.long_counts[row]), Rates(*self.long[row].tolist())),
            int(self.topics[row]),
        )


def _with_rows(array: NDArray[Number], rows: Indices, values: Sequence[Any]) -> NDArray[Number]:
    changed = array.copy()
    changed[rows] = values
    return changed

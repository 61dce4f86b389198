"""Turns load reports into views of the cluster, and recomputes only what changed.

The leader passes each new or changed report to a `LoadTracker`, adds one sample per bundle at a
fixed interval, and takes a view for each decision. A view is not affected by later reports.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.averages import (
    DEFAULT_RATES,
    LONG_SAMPLES,
    SHORT_SAMPLES,
    Average,
    BundleAverages,
    Running,
    add_samples,
    exponential_average,
)
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import BrokerColumns, BundleColumns, Indices, Listing, OwnedRows
from loadmanager.core.ids import BrokerId, BundleId, Namespace, belongs_to_a_broker, namespace_of
from loadmanager.core.load import LoadReport
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.rates import BYTES_IN, BYTES_OUT, Rates
from loadmanager.core.scores import (
    FloatArray,
    ResourceWeights,
    report_usage,
    report_variance,
    weighted_max_with_memory,
)
from loadmanager.core.top_k import TopBundles

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


_NAN: Final = float("nan")
_NO_TRAFFIC: Final = Rates()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """The part of a broker's load report that the load tracker retains.

    ``usage``, ``limit`` and ``variance`` (of usage, NaN if not reported) are in the order of
    `scores.RESOURCES`; ``totals`` is the broker's own traffic.
    """

    broker: BrokerId
    seen_s: float = 0.0
    usage: tuple[float, ...] = (0.0,) * 5
    limit: tuple[float, ...] = (0.0,) * 5
    variance: tuple[float, ...] = (_NAN,) * 5
    totals: Rates = _NO_TRAFFIC
    listing: Listing = field(default_factory=lambda: Listing.of({}))
    draining: bool = False
    persistent: bool = True
    non_persistent: bool = True
    version: str = ""
    started_at_ms: int = 0
    topics: int = 0

    @classmethod
    def of(cls, report: LoadReport, seen_s: float) -> "BrokerLoad":
        usage, limit = report_usage(report)
        return cls(
            broker=report.broker,
            seen_s=seen_s,
            usage=tuple(usage),
            limit=tuple(limit),
            variance=tuple(report_variance(report)),
            totals=report.totals,
            listing=Listing.of(report.bundles),
            draining=report.draining,
            persistent=report.persistent_topics,
            non_persistent=report.non_persistent_topics,
            version=report.version,
            started_at_ms=report.started_at_ms,
            topics=report.topics,
        )


@dataclass(slots=True)
class BrokerEntry:
    load: BrokerLoad
    rows: Indices
    load_ema: float = _NAN
    bytes_ema: float = _NAN


def owned_rows(entries: list[BrokerEntry], bundle_count: int) -> OwnedRows:
    starts = np.zeros(len(entries) + 1, dtype=np.intp)
    np.cumsum([len(entry.rows) for entry in entries], out=starts[1:])
    none = np.zeros(0, dtype=np.intp)
    return OwnedRows(
        starts, np.concatenate([none, *(entry.rows for entry in entries)]), bundle_count
    )


def broker_columns(
    entries: list[BrokerEntry],
    bundles: BundleColumns,
    owned: OwnedRows,
    moved: Mapping[BundleId, BrokerId],
) -> BrokerColumns:
    """Return the brokers as columns; ``moved`` maps bundles under way to their targets."""
    loads = [entry.load for entry in entries]
    names = tuple(load.broker for load in loads)
    count = len(loads)
    arriving = dict.fromkeys(names, 0.0)
    for bundle, target in moved.items():
        row = bundles.row(bundle)
        arriving[target] += 100.0 if row is None else float(bundles.long_msgs_per_s[row])
    long_msgs = np.bincount(
        owned.broker_of_entry, weights=bundles.long_msgs_per_s[owned.rows], minlength=count
    ).astype(np.float64)
    return BrokerColumns(
        names=names,
        usage=np.array([load.usage for load in loads], dtype=np.float64).reshape(count, 5),
        limit=np.array([load.limit for load in loads], dtype=np.float64).reshape(count, 5),
        variance=np.array([load.variance for load in loads], dtype=np.float64).reshape(count, 5),
        traffic=np.array([load.totals.row() for load in loads], dtype=np.float64).reshape(count, 4),
        long_msgs_per_s=long_msgs,
        preallocated_msgs_per_s=np.array(list(arriving.values())),
        load_ema=np.array([entry.load_ema for entry in entries]),
        bytes_ema=np.array([entry.bytes_ema for entry in entries]),
        seen_s=np.array([load.seen_s for load in loads]),
        topics=np.array([load.topics for load in loads], dtype=np.int64),
        connections=np.array([load.listing.connections for load in loads], dtype=np.int64),
        draining=np.array([load.draining for load in loads], dtype=np.bool_),
        persistent=np.array([load.persistent for load in loads], dtype=np.bool_),
        non_persistent=np.array([load.non_persistent for load in loads], dtype=np.bool_),
        versions=tuple(load.version for load in loads),
        started_at_ms=tuple(load.started_at_ms for load in loads),
    )


_DEPARTURES_KEPT_S: Final = 3600.0
_NO_MOVES: Final[Mapping[BundleId, BrokerId]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """An immutable snapshot of a `LoadTracker`, made in one or two milliseconds.

    A view takes longer if very many bundles are ordered, and may be made in another thread.
    """

    entries: list[BrokerEntry]
    bundles: BundleColumns
    top_k: int
    like_java: bool
    membership_changed_s: float
    departures_s: tuple[float, ...]

    def view(
        self,
        now_s: float,
        *,
        in_flight: Mapping[BundleId, BrokerId] = _NO_MOVES,
        policies: Policies = NO_POLICIES,
    ) -> ClusterView:
        """Return the cluster as of this snapshot.

        ``in_flight`` are the bundles ordered to a broker. Those that the broker's report already
        lists have arrived and are treated as any other.
        """
        owned = owned_rows(self.entries, len(self.bundles.known))
        listings = {entry.load.broker: entry.load.listing for entry in self.entries}
        moved = {
            bundle: target
            for bundle, target in in_flight.items()
            if target in listings and bundle not in listings[target].members
        }
        return ClusterView(
            now_s=now_s,
            brokers=broker_columns(self.entries, self.bundles, owned, moved),
            bundles=self.bundles,
            owned=owned,
            moved=moved,
            policies=policies,
            top_bundles=TopBundles(listings, self.top_k, like_java=self.like_java),
            membership_changed_s=self.membership_changed_s,
            departures_s=self.departures_s,
        )


class LoadTracker:
    """All reports and averages of the leader, from which views are made.

    ``weights`` are for the exponential average of brokers' load (TransferShedder), in which the
    past has the weight ``history_fraction``; if they compute like Java, the ``top_k`` heaviest
    bundles of a broker, which TransferShedder considers, are also selected like Java.
    """

    def __init__(
        self,
        *,
        weights: ResourceWeights | None = None,
        history_fraction: float = 0.9,
        top_k: int = 10,
    ) -> None:
        self._weights = weights or ResourceWeights()
        self._history_fraction = history_fraction
        self._top_k = top_k
        self._table = BundleTable()
        self._entries: dict[BrokerId, BrokerEntry] = {}
        self._membership_changed_s = float("-inf")
        self._departed_at_s: dict[BrokerId, float] = {}
        self._inherited: dict[BrokerId, Running] = {}

    def weigh(self, weights: ResourceWeights) -> None:
        self._weights = weights

    @property
    def brokers(self) -> frozenset[BrokerId]:
        return frozenset(self._entries)

    @property
    def loads(self) -> Mapping[BrokerId, BrokerLoad]:
        return {broker: entry.load for broker, entry in self._entries.items()}

    def report(self, report: LoadReport, seen_s: float) -> None:
        """Add a new or changed report, seen at ``seen_s`` on the leader's clock."""
        self.put(BrokerLoad.of(report, seen_s))

    def put(self, load: BrokerLoad) -> None:
        former = self._entries.get(load.broker)
        listing = load.listing
        same = former is not None and former.load.listing.names == listing.names
        rows = self._table.list_bundles(listing, former.rows if former and same else None)
        if former is None:
            self._membership_changed_s = max(self._membership_changed_s, load.seen_s)
        else:
            self._table.unlist(former.rows)
        entry = BrokerEntry(load, rows)
        if former is not None and former.load.started_at_ms == load.started_at_ms:
            entry.load_ema, entry.bytes_ema = former.load_ema, former.bytes_ema
        self._departed_at_s.pop(load.broker, None)
        inherited = self._inherited.pop(load.broker, None)
        if inherited is not None and inherited.started_at_ms == load.started_at_ms:
            entry.load_ema, entry.bytes_ema = inherited.load, inherited.bytes_per_s
        self._entries[load.broker] = entry

    def forget(self, broker: BrokerId, now_s: float) -> None:
        """Drop a broker that left; the averages of its bundles are kept for their next owners."""
        entry = self._entries.pop(broker, None)
        if entry is not None:
            self._table.unlist(entry.rows)
            self._membership_changed_s = now_s
            self._departed_at_s = {
                gone: left_s
                for gone, left_s in self._departed_at_s.items()
                if now_s - left_s < _DEPARTURES_KEPT_S
            }
            self._departed_at_s[broker] = now_s

    def sample(self) -> None:
        """Add one sample to the averages of every listed bundle and of every broker.

        Call it at a fixed interval, so that ten samples always cover the same time.

        Pulsar's accident `sample-per-notification`: there every report of any broker
        adds a sample to every bundle of every broker, so that the averages of a large cluster
        cover seconds and those of a small one minutes. This is not reproduced, in either mode.
        """
        if self._table.add_sample():
            for entry in self._entries.values():
                entry.rows = self._table.list_bundles(entry.load.listing)
        if not self._entries:
            return
        entries = list(self._entries.values())
        usage = np.array([entry.load.usage for entry in entries])
        limit = np.array([entry.load.limit for entry in entries])
        scores = weighted_max_with_memory(usage, limit, self._weights)
        volumes = np.array([entry.load.totals.bytes_per_s for entry in entries])
        load_emas = _emas([entry.load_ema for entry in entries], scores, self._history_fraction)
        bytes_emas = _emas([entry.bytes_ema for entry in entries], volumes, self._history_fraction)
        for entry, load_ema, bytes_ema in zip(entries, load_emas, bytes_emas, strict=True):
            entry.load_ema, entry.bytes_ema = load_ema, bytes_ema

    def seed(self, averages: Mapping[BundleId, BundleAverages]) -> None:
        """Set the averages of bundles, from a former leader."""
        self._table.seed(averages)

    def suppose(self, averages: Mapping[BundleId, BundleAverages]) -> int:
        """Set the averages of the bundles that have no sample yet; return their number."""
        new = {one: what for one, what in averages.items() if not self._table.has_sample(one)}
        self._table.seed(new)
        return len(new)

    def inherit(
        self,
        running: Mapping[BrokerId, Running],
        departed_at_s: Mapping[BrokerId, float],
        now_s: float,
    ) -> None:
        """Continue from a former leader; its end counts as a change of membership.

        Call it before the first report: a broker's averages are restored with its first report.
        """
        self._inherited = dict(running)
        self._departed_at_s = {b: at_s for b, at_s in departed_at_s.items() if at_s <= now_s}
        self._membership_changed_s = max(self._membership_changed_s, now_s)

    def running(self) -> Mapping[BrokerId, Running]:
        return {
            broker: Running(entry.load_ema, entry.bytes_ema, entry.load.started_at_ms)
            for broker, entry in self._entries.items()
            if np.isfinite(entry.load_ema) and np.isfinite(entry.bytes_ema)
        }

    @property
    def departed_at_s(self) -> Mapping[BrokerId, float]:
        """When recently departed brokers that have not returned left, on the leader's clock."""
        return self._departed_at_s

    def averages(self) -> TableAverages:
        return self._table.averages()

    def view(
        self,
        now_s: float,
        *,
        in_flight: Mapping[BundleId, BrokerId] = _NO_MOVES,
        policies: Policies = NO_POLICIES,
    ) -> ClusterView:
        return self.tally().view(now_s, in_flight=in_flight, policies=policies)

    def tally(self) -> Tally:
        """Return a snapshot of the current state, which later reports do not affect."""
        return Tally(
            entries=[replace(self._entries[broker]) for broker in sorted(self._entries)],
            bundles=self._table.columns(),
            top_k=self._top_k,
            like_java=self._weights.like_java,
            membership_changed_s=self._membership_changed_s,
            departures_s=tuple(self._departed_at_s.values()),
        )


def _emas(past: list[float], values: FloatArray, kept_fraction: float) -> list[float]:
    averages: list[float] = exponential_average(np.array(past), values, kept_fraction).tolist()
    return averages

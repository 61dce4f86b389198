from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT
from loadmanager.core.scores import FloatArray

Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]
Whole = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Listing:
    """The bundles of one report; row ``i`` is the bundle ``names[i]``.

    ``names`` is sorted. ``rates`` is (bundles, 4) in the order of `averages`; ``sessions``
    counts producers and consumers together.
    """

    names: tuple[BundleId, ...]
    rates: FloatArray
    topics: Whole
    sessions: Whole
    cache_size_bytes: Whole

    @classmethod
    def of(cls, bundles: Mapping[BundleId, BundleStats]) -> "Listing":
        names = tuple(sorted(bundles))
        stats = [bundles[name] for name in names]
        return cls(
            names=names,
            rates=np.array([one.row() for one in stats], dtype=np.float64).reshape(len(names), 4),
            topics=np.array([one.topics for one in stats], dtype=np.int64),
            sessions=np.array([one.producers + one.consumers for one in stats], dtype=np.int64),
            cache_size_bytes=np.array([one.cache_size_bytes for one in stats], dtype=np.int64),
        )

    @cached_property
    def connections(self) -> int:
        return int(self.sessions.sum())

    @cached_property
    def members(self) -> frozenset[BundleId]:
        return frozenset(self.names)


@dataclass(frozen=True, eq=False, kw_only=True)
class BrokerColumns:
    """The brokers of a cluster at one instant; row ``i`` is the broker ``names[i]``.

    ``names`` is sorted. ``usage`` and ``limit`` are (brokers, `RESOURCES`) in the units
    of load reports, ``variance`` that of usage, NaN where no report has it; ``traffic``
    is (brokers, 4): messages and bytes per second, in and out. ``long_msgs_per_s`` is the sum
    of the bundles' long-term message rates, and ``preallocated_msgs_per_s`` that of bundles
    under way to the broker. ``load_ema`` (a fraction) and ``bytes_ema`` are exponential
    averages, NaN where unknown. ``seen_s`` is when the report was seen, on the leader's
    clock. ``connections`` are the producers and consumers of all bundles.
    """

    names: tuple[BrokerId, ...]
    usage: FloatArray
    limit: FloatArray
    variance: FloatArray
    traffic: FloatArray
    long_msgs_per_s: FloatArray
    preallocated_msgs_per_s: FloatArray
    load_ema: FloatArray
    bytes_ema: FloatArray
    seen_s: FloatArray
    topics: Whole
    connections: Whole
    draining: Mask
    persistent: Mask
    non_persistent: Mask
    versions: tuple[str, ...]
    started_at_ms: tuple[int, ...]

    @cached_property
    def index(self) -> Mapping[BrokerId, int]:
        return {name: row for row, name in enumerate(self.names)}

    @cached_property
    def reported(self) -> "BrokerColumns":
        """These brokers as reported, without later projections."""
        return self

    def having(self, **amounts: FloatArray | Mask | Whole) -> "BrokerColumns":
        found = replace(self, **amounts)  # type: ignore[arg-type]  # columns by name
        # The names are the same, and indexing a thousand names takes longer than everything else
        # here.
        found.__dict__["index"] = self.index
        found.__dict__["reported"] = self.reported
        return found

    @property
    def msgs_per_s(self) -> FloatArray:
        return np.asarray(self.traffic[:, MSGS_IN] + self.traffic[:, MSGS_OUT])

    @property
    def bytes_per_s(self) -> FloatArray:
        return np.asarray(self.traffic[:, BYTES_IN] + self.traffic[:, BYTES_OUT])


@dataclass(frozen=True, eq=False, kw_only=True)
class BundleColumns:
    """All bundles of the leader; row ``i`` is the bundle ``names[i]``.

    ``names`` and ``index`` may contain bundles added after this value was made: rows beyond the
    length of the arrays do not belong to it. ``short`` and ``long`` are (bundles, 4) as in
    `averages`. ``known`` is False while a bundle has no sample: its rates are then assumed.
    ``system`` marks brokers' own heartbeat bundles. ``connections`` are the producers and
    consumers in the last report of the bundle. ``namespaces`` has the rows of each namespace's
    bundles.
    """

    names: Sequence[BundleId]
    index: Mapping[BundleId, int]
    short: FloatArray
    long: FloatArray
    known: Mask
    system: Mask
    topics: Whole
    connections: Whole
    namespaces: Mapping[Namespace, Sequence[int]]

    @cached_property
    def short_msgs_per_s(self) -> FloatArray:
        return np.asarray(self.short[:, MSGS_IN] + self.short[:, MSGS_OUT])

    @cached_property
    def short_bytes_per_s(self) -> FloatArray:
        return np.asarray(self.short[:, BYTES_IN] + self.short[:, BYTES_OUT])

    @cached_property
    def long_msgs_per_s(self) -> FloatArray:
        return np.asarray(self.long[:, MSGS_IN] + self.long[:, MSGS_OUT])

    def row(self, bundle: BundleId) -> int | None:
        row = self.index.get(bundle)
        return row if row is not None and row < len(self.known) else None

    def measured_row(self, bundle: BundleId) -> int | None:
        row = self.row(bundle)
        return row if row is not None and self.known[row] else None

    def work(self, bundle: BundleId) -> FloatArray | None:
        """Return (6,): rates, topics and connections of ``bundle``; None if it has no sample."""
        row = self.measured_row(bundle)
        if row is None:
            return None
        return np.array([*self.short[row], self.topics[row], self.connections[row]])


@dataclass(frozen=True, eq=False)
class OwnedRows:
    """Which bundles each broker's report lists.

    Broker ``i`` lists the bundle rows ``rows[starts[i]:starts[i + 1]]``, in order of their
    names. ``bundle_count`` is the total number of bundle rows.
    """

    starts: Indices
    rows: Indices
    bundle_count: int

    def of(self, broker: int) -> Indices:
        return self.rows[self.starts[broker] : self.starts[broker + 1]]

    @cached_property
    def listed_by(self) -> Indices:
        """The broker whose report lists each bundle row, -1 for none."""
        broker = np.full(self.bundle_count, -1, dtype=np.intp)
        broker[self.rows] = self.broker_of_entry
        return broker

    @cached_property
    def counts(self) -> Indices:
        return np.diff(self.starts)

    @cached_property
    def broker_of_entry(self) -> Indices:
        return np.repeat(np.arange(len(self.counts)), self.counts)

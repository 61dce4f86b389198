"""Load reports of modelled agents in columns: bundles listed, when they are due, and variances."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.broker_table import BrokerLoad
from loadmanager.core.columns import Indices, Listing, Mask
from loadmanager.core.history.records import stats_of
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport, ResourceUsage
from loadmanager.core.rates import Rates, six_digits
from loadmanager.core.report import ReportRules
from loadmanager.core.scores import RESOURCES, FloatArray
from loadmanager.core.usage_samples import MOST_SAMPLES


@dataclass(frozen=True, eq=False, kw_only=True)
class Reading:
    """The input of the rules, one row per broker: a sample, or the last report.

    ``usage`` has a column for each resource, a fraction. ``at_s`` is the time of the sample.
    """

    at_s: FloatArray
    usage: FloatArray
    msgs_per_s: FloatArray
    bytes_per_s: FloatArray
    draining: Mask
    started_at_ms: NDArray[np.int64]

    @classmethod
    def nothing(cls, count: int) -> "Reading":
        """Return the state before any report: times are -inf, other values 0."""
        return cls(
            at_s=np.full(count, -np.inf),
            usage=np.zeros((count, len(RESOURCES))),
            msgs_per_s=np.zeros(count),
            bytes_per_s=np.zeros(count),
            draining=np.zeros(count, dtype=np.bool_),
            started_at_ms=np.zeros(count, dtype=np.int64),
        )

    def put(self, rows: Indices, other: "Reading") -> None:
        self.at_s[rows] = other.at_s[rows]
        self.usage[rows] = other.usage[rows]
        self.msgs_per_s[rows] = other.msgs_per_s[rows]
        self.bytes_per_s[rows] = other.bytes_per_s[rows]
        self.draining[rows] = other.draining[rows]
        self.started_at_ms[rows] = other.started_at_ms[rows]


def due(
    rules: ReportRules,
    stands: Mask,
    last: Reading,
    current: Reading,
    jitter: FloatArray,
    *,
    other_bundles: Mask,
) -> Mask:
    """Return the brokers whose samples are published, by the rules of `core.report.due`.

    ``stands`` marks brokers with a report, ``other_bundles`` those whose report lists other bundles
    than the sample.
    """
    registration = (last.draining != current.draining) | (
        last.started_at_ms != current.started_at_ms
    )
    age_s = current.at_s - last.at_s
    old = age_s >= rules.max_interval_s * (1.0 - rules.jitter_fraction * jitter)
    usage = (np.abs(current.usage - last.usage) > rules.change_points).any(axis=1)
    fraction = rules.change_fraction
    msgs = _moved(last.msgs_per_s, current.msgs_per_s, fraction, rules.floor_msgs_per_s)
    volume = _moved(last.bytes_per_s, current.bytes_per_s, fraction, rules.floor_bytes_per_s)
    changed = other_bundles | usage | msgs | volume | old
    return np.asarray(~stands | registration | ((age_s >= rules.min_interval_s) & changed))


def _moved(last: FloatArray, current: FloatArray, fraction: float, floor: float) -> Mask:
    change = np.abs(current - last)
    return np.asarray((change > fraction * last) & (change >= floor))


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


@dataclass(frozen=True, eq=False, kw_only=True)
class Reported:
    """A load report that an agent wrote at ``at_s``, and the leader saw at ``seen_s``.

    ``row`` is the row of the broker, ``rows`` are those of the bundles in order of names.
    ``totals`` are the rates of the broker. ``former`` are the bundles of the previous report.
    ``usage`` and ``limit`` are in the order of `core.scores.RESOURCES`, and so are ``mean`` and
    ``variance`` of the last samples, NaN with fewer than two.
    """

    broker: BrokerId
    row: int
    rows: Indices
    at_s: float
    seen_s: float
    usage: FloatArray
    limit: FloatArray
    mean: FloatArray
    variance: FloatArray
    totals: FloatArray
    listing: Listing
    producers: NDArray[np.int64]
    former: tuple[BundleId, ...]
    draining: bool
    started_at_ms: int

    def load(self) -> BrokerLoad:
        return BrokerLoad(
            broker=self.broker,
            seen_s=self.seen_s,
            usage=tuple(self.usage.tolist()),
            limit=tuple(self.limit.tolist()),
            variance=tuple(self.variance.tolist()),
            totals=Rates(*self.totals.tolist()),
            listing=self.listing,
            draining=self.draining,
            started_at_ms=self.started_at_ms,
            topics=int(self.listing.topics.sum()),
        )

    def report(self) -> LoadReport:
        """Return the report as written by an agent; its clock begins at 0."""
        columns = (self.usage, self.limit, self.mean, self.variance)
        cpu, memory, direct_memory, bandwidth_in, bandwidth_out = (
            None if limit <= 0 and used == 0 else _used(used, limit, mean, variance)
            for used, limit, mean, variance in zip(*(c.tolist() for c in columns), strict=True)
        )
        now, then = frozenset(self.listing.names), frozenset(self.former)
        return LoadReport(
            broker=self.broker,
            urls=BrokerUrls(http_url=f"http://{self.broker}"),
            sidecar_url=f"http://{self.broker}",
            reported_at_ms=round(self.at_s * 1000),
            started_at_ms=self.started_at_ms,
            cpu=cpu,
            memory=memory,
            direct_memory=direct_memory,
            bandwidth_in=bandwidth_in,
            bandwidth_out=bandwidth_out,
            bundles=ListedStats(self.listing, self.producers),
            gains=now - then,
            losses=then - now,
            draining=self.draining,
        )


def _used(usage: float, limit: float, mean: float, variance: float) -> ResourceUsage:
    if math.isnan(mean):
        return ResourceUsage(usage, limit)
    return ResourceUsage(usage, limit, mean, variance)


@dataclass(frozen=True, slots=True)
class Gone:
    """The end of the registration of a broker, seen by the leader at ``seen_s``."""

    broker: BrokerId
    row: int
    seen_s: float


_FEWEST: Final = 2
_UNKNOWN: Final = np.full(len(RESOURCES), np.nan)


class VariedUsage:
    """The last samples of each broker since its bundles changed.

    Args:
        interval_s: interval of the samples of an agent. A longer step has one sample, therefore
            samples also expire by age.
    """

    def __init__(self, interval_s: float) -> None:
        self._kept_s = MOST_SAMPLES * interval_s
        self._taken: deque[tuple[float, FloatArray, Mask]] = deque(maxlen=MOST_SAMPLES)

    def begin(self, rows: Indices) -> None:
        for _, _, sampled in self._taken:
            sampled[rows] = False

    def add(self, now_s: float, usage: FloatArray, sampled: Mask) -> None:
        self._taken.append((now_s, usage, sampled.copy()))
        while self._taken[0][0] <= now_s - self._kept_s:
            self._taken.popleft()

    def of(self, row: int) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of each resource of a broker, NaN without two samples."""
        found = [usage[row] for _, usage, sampled in self._taken if sampled[row]]
        if len(found) < _FEWEST:
            return _UNKNOWN, _UNKNOWN
        samples = np.stack(found)
        return _rounded(samples.mean(axis=0)), _rounded(samples.var(axis=0, ddof=1))


def _rounded(figures: FloatArray) -> FloatArray:
    return np.array([six_digits(one) for one in figures.tolist()])

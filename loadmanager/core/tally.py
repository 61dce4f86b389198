"""From load reports to views of the cluster, redoing only what changed.

The leader hands each new or changed report to a `LoadTally`, has it add one sample
per bundle at a fixed interval, and asks it for a view when it decides. A view stays
as it was when it was made, whatever is reported later.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from loadmanager.core.averages import BundleAverages, Rates, Running
from loadmanager.core.bundle_table import BundleTable
from loadmanager.core.cluster import ClusterView, TopBundle
from loadmanager.core.columns import BrokerColumns, BundleColumns, Indices, OwnedRows
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import NO_BUNDLES, BundleStats, LoadReport
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.scores import (
    FloatArray,
    ResourceWeights,
    report_usage,
    weighted_max_with_memory,
)
from loadmanager.core.top_k import top_bundles

_NAN: Final = float("nan")
_NO_TRAFFIC: Final = Rates()
_DEPARTURES_KEPT_S: Final = 3600.0
_NO_MOVES: Final[Mapping[BundleId, BrokerId]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """What the tally keeps of one broker's report.

    ``usage`` and ``limit`` are in the order of `scores.RESOURCES`; ``totals`` is the
    broker's own traffic. ``long_msgs_per_s`` and ``preallocated_msgs_per_s`` are
    reckoned from the bundles unless given. ``load_ema`` and ``bytes_ema`` are kept by
    the tally unless given, and ``top`` (the heaviest bundles, ascending) is picked by it.
    """

    broker: BrokerId
    seen_s: float = 0.0
    usage: tuple[float, ...] = (0.0,) * 5
    limit: tuple[float, ...] = (0.0,) * 5
    totals: Rates = _NO_TRAFFIC
    bundles: Mapping[BundleId, BundleStats] = field(default_factory=lambda: NO_BUNDLES)
    draining: bool = False
    persistent: bool = True
    non_persistent: bool = True
    version: str = ""
    started_at_ms: int = 0
    topics: int = 0
    long_msgs_per_s: float | None = None
    preallocated_msgs_per_s: float | None = None
    load_ema: float | None = None
    bytes_ema: float | None = None
    top: tuple[TopBundle, ...] | None = None

    @classmethod
    def of(cls, report: LoadReport, seen_s: float) -> "BrokerLoad":
        """Return what a report says; ``seen_s`` is when it was seen, on the leader's clock."""
        usage, limit = report_usage(report)
        return cls(
            broker=report.broker,
            seen_s=seen_s,
            usage=tuple(usage),
            limit=tuple(limit),
            totals=Rates(
                report.msgs_in_per_s,
                report.msgs_out_per_s,
                report.bytes_in_per_s,
                report.bytes_out_per_s,
            ),
            bundles=report.bundles,
            draining=report.draining,
            persistent=report.persistent_topics,
            non_persistent=report.non_persistent_topics,
            version=report.version,
            started_at_ms=report.started_at_ms,
            topics=report.topics,
        )


@dataclass(slots=True)
class _Entry:
    load: BrokerLoad
    rows: Indices
    top: tuple[TopBundle, ...]
    load_ema: float = _NAN
    bytes_ema: float = _NAN


class LoadTally:
    """All reports and averages the leader has, ready to become a view.

    Args:
        weights: for the exponential average of brokers' load (TransferShedder). Where
            they are like Java, the heaviest bundles are picked like Java, too.
        history_fraction: how much of that average the past keeps at each sample.
        top_k: how many of a broker's heaviest bundles TransferShedder looks at.
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
        self._entries: dict[BrokerId, _Entry] = {}
        self._membership_changed_s = float("-inf")
        self._departed_at_s: dict[BrokerId, float] = {}
        self._inherited: dict[BrokerId, Running] = {}

    def weigh(self, weights: ResourceWeights) -> None:
        """Use other weights for the samples to come."""
        self._weights = weights

    @property
    def brokers(self) -> frozenset[BrokerId]:
        """The brokers that have a report."""
        return frozenset(self._entries)

    def report(self, report: LoadReport, seen_s: float) -> None:
        """Take in a new or changed report, seen at ``seen_s`` on the leader's clock."""
        self.put(BrokerLoad.of(report, seen_s))

    def put(self, load: BrokerLoad) -> None:
        """Take in one broker's load, replacing what was known of it."""
        former = self._entries.get(load.broker)
        rows = self._table.list_bundles(load.bundles)
        if former is None:
            self._membership_changed_s = max(self._membership_changed_s, load.seen_s)
        else:
            self._table.unlist(former.rows)
        entry = _Entry(load, rows, self._heaviest(load) if load.top is None else load.top)
        if former is not None and former.load.started_at_ms == load.started_at_ms:
            entry.load_ema, entry.bytes_ema = former.load_ema, former.bytes_ema
        self._departed_at_s.pop(load.broker, None)
        inherited = self._inherited.pop(load.broker, None)
        if inherited is not None and inherited.started_at_ms == load.started_at_ms:
            entry.load_ema, entry.bytes_ema = inherited.load, inherited.bytes_per_s
        self._entries[load.broker] = entry

    def _heaviest(self, load: BrokerLoad) -> tuple[TopBundle, ...]:
        return top_bundles(load.bundles, self._top_k, like_java=self._weights.like_java)

    def forget(self, broker: BrokerId, now_s: float) -> None:
        """Drop a broker that left; what is known of its bundles stays for their next owner."""
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

        To be called at a fixed interval: what is a sample of ten is then a time.

        Pulsar's accident `sample-per-notification`: there every report of any broker
        adds a sample to every bundle of every broker, so that the averages of a large
        cluster reach back for seconds and those of a small one for minutes. Here they do
        not, in both modes.
        """
        if self._table.add_sample():
            for entry in self._entries.values():
                entry.rows = self._table.list_bundles(entry.load.bundles)
        if not self._entries:
            return
        entries = list(self._entries.values())
        usage = np.array([entry.load.usage for entry in entries])
        limit = np.array([entry.load.limit for entry in entries])
        scores = weighted_max_with_memory(usage, limit, self._weights).tolist()
        kept = self._history_fraction
        for entry, score in zip(entries, scores, strict=True):
            entry.load_ema = ema(entry.load_ema, score, kept)
            entry.bytes_ema = ema(entry.bytes_ema, entry.load.totals.bytes_per_s, kept)

    def seed(self, averages: Mapping[BundleId, BundleAverages]) -> None:
        """Set the averages of bundles, as a former leader left them or a quota says."""
        self._table.seed(averages)

    def inherit(
        self,
        running: Mapping[BrokerId, Running],
        departed_at_s: Mapping[BrokerId, float],
        now_s: float,
    ) -> None:
        """Carry on from a former leader, whose end counts as a change of membership.

        To be called before the first report: a broker's averages are taken up with it.
        """
        self._inherited = dict(running)
        self._departed_at_s = {b: at_s for b, at_s in departed_at_s.items() if at_s <= now_s}
        self._membership_changed_s = max(self._membership_changed_s, now_s)

    def running(self) -> Mapping[BrokerId, Running]:
        """Return the averages of every broker that has a sample, for the next leader."""
        return {
            broker: Running(entry.load.started_at_ms, entry.load_ema, entry.bytes_ema)
            for broker, entry in self._entries.items()
            if np.isfinite(entry.load_ema) and np.isfinite(entry.bytes_ema)
        }

    @property
    def departed_at_s(self) -> Mapping[BrokerId, float]:
        """When brokers left lately that are not back, on the leader's clock."""
        return self._departed_at_s

    def averages(self) -> Mapping[BundleId, BundleAverages]:
        """Return the averages of every bundle that has a sample, for the next leader."""
        return self._table.averages()

    def view(
        self,
        now_s: float,
        *,
        in_flight: Mapping[BundleId, BrokerId] = _NO_MOVES,
        recently_moved: Iterable[BundleId] = (),
        policies: Policies = NO_POLICIES,
    ) -> ClusterView:
        """Return the cluster as known now.

        ``in_flight`` are the bundles ordered to a broker; those that the broker's
        report lists already have arrived and count as any other.
        """
        entries = [self._entries[broker] for broker in sorted(self._entries)]
        bundles = self._table.columns()
        owned = _owned(entries, len(bundles.known))
        moved = {
            bundle: target
            for bundle, target in in_flight.items()
            if target in self._entries and bundle not in self._entries[target].load.bundles
        }
        return ClusterView(
            now_s=now_s,
            brokers=_broker_columns(entries, bundles, owned, moved),
            bundles=bundles,
            owned=owned,
            recently_moved=frozenset(recently_moved),
            moved=moved,
            policies=policies,
            top_bundles={entry.load.broker: entry.top for entry in entries},
            membership_changed_s=self._membership_changed_s,
            departures_s=tuple(self._departed_at_s.values()),
        )


def ema(past: float, value: float, kept_fraction: float) -> float:
    """Return the exponential average after ``value``; the first value replaces NaN."""
    if np.isnan(past):
        return value
    return past * kept_fraction + (1.0 - kept_fraction) * value


def view_of(
    loads: Iterable[BrokerLoad],
    averages: Mapping[BundleId, BundleAverages],
    *,
    now_s: float = 0.0,
    in_flight: Mapping[BundleId, BrokerId] = _NO_MOVES,
    recently_moved: Iterable[BundleId] = (),
    policies: Policies = NO_POLICIES,
    weights: ResourceWeights | None = None,
) -> ClusterView:
    """Return a view made from nothing: for simulations, replays and tests."""
    tally = LoadTally(weights=weights)
    for load in loads:
        tally.put(load)
    tally.seed(averages)
    return tally.view(now_s, in_flight=in_flight, recently_moved=recently_moved, policies=policies)


def _owned(entries: list[_Entry], bundle_count: int) -> OwnedRows:
    starts = np.zeros(len(entries) + 1, dtype=np.intp)
    np.cumsum([len(entry.rows) for entry in entries], out=starts[1:])
    none = np.zeros(0, dtype=np.intp)
    return OwnedRows(
        starts, np.concatenate([none, *(entry.rows for entry in entries)]), bundle_count
    )


def _broker_columns(
    entries: list[_Entry],
    bundles: BundleColumns,
    owned: OwnedRows,
    moved: Mapping[BundleId, BrokerId],
) -> BrokerColumns:
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
        traffic=np.array([load.totals.row() for load in loads], dtype=np.float64).reshape(count, 4),
        long_msgs_per_s=_given([load.long_msgs_per_s for load in loads], long_msgs),
        preallocated_msgs_per_s=_given(
            [load.preallocated_msgs_per_s for load in loads], np.array(list(arriving.values()))
        ),
        load_ema=_given(
            [load.load_ema for load in loads], np.array([entry.load_ema for entry in entries])
        ),
        bytes_ema=_given(
            [load.bytes_ema for load in loads], np.array([entry.bytes_ema for entry in entries])
        ),
        seen_s=np.array([load.seen_s for load in loads]),
        topics=np.array([load.topics for load in loads], dtype=np.int64),
        draining=np.array([load.draining for load in loads], dtype=np.bool_),
        persistent=np.array([load.persistent for load in loads], dtype=np.bool_),
        non_persistent=np.array([load.non_persistent for load in loads], dtype=np.bool_),
        versions=tuple(load.version for load in loads),
        started_at_ms=tuple(load.started_at_ms for load in loads),
    )


def _given(values: list[float | None], otherwise: FloatArray) -> FloatArray:
    for row, value in enumerate(values):
        if value is not None:
            otherwise[row] = value
    return otherwise

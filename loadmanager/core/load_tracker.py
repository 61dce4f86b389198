"""Turns load reports into views of the cluster, and recomputes only what changed.

The leader passes each new or changed report to a `LoadTracker`, adds one sample per bundle at a
fixed interval, and takes a view for each decision. A view is not affected by later reports.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadmanager.core.averages import BundleAverages, Running, exponential_average
from loadmanager.core.broker_table import BrokerEntry, BrokerLoad, broker_columns, owned_rows
from loadmanager.core.bundle_table import BundleTable, TableAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import BundleColumns
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.rates import Rates
from loadmanager.core.scores import FloatArray, ResourceWeights, weighted_max_with_memory
from loadmanager.core.top_k import TopBundles

_NAN: Final = float("nan")
_NO_TRAFFIC: Final = Rates()
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

    @property
    def started_at_ms(self) -> Mapping[BrokerId, int]:
        """The start time of each broker with a report, in milliseconds since 1970."""
        return {entry.load.broker: entry.load.started_at_ms for entry in self.entries}

    def view(
        self,
        now_s: float,
        *,
        in_flight: Mapping[BundleId, BrokerId] = _NO_MOVES,
        recently_moved: Iterable[BundleId] = (),
        policies: Policies = NO_POLICIES,
    ) -> ClusterView:
        """Return the cluster as of this snapshot.

        ``in_flight`` are the bundles ordered to a broker. Those that the broker's report already
        lists have arrived and are treated as any other.
        """
        owned = owned_rows(self.entries, len(self.bundles.known))
        listed = {entry.load.broker: entry.load.listing.members for entry in self.entries}
        moved = {
            bundle: target
            for bundle, target in in_flight.items()
            if target in listed and bundle not in listed[target]
        }
        return ClusterView(
            now_s=now_s,
            brokers=broker_columns(self.entries, self.bundles, owned, moved),
            bundles=self.bundles,
            owned=owned,
            recently_moved=frozenset(recently_moved),
            moved=moved,
            policies=policies,
            top_bundles=self._tops(),
            membership_changed_s=self.membership_changed_s,
            departures_s=self.departures_s,
        )

    def _tops(self) -> TopBundles:
        reported = {
            entry.load.broker: entry.load.listing if entry.load.top is None else entry.load.top
            for entry in self.entries
        }
        return TopBundles(reported, self.top_k, like_java=self.like_java)


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
            broker: Running(entry.load.started_at_ms, entry.load_ema, entry.bytes_ema)
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
        recently_moved: Iterable[BundleId] = (),
        policies: Policies = NO_POLICIES,
    ) -> ClusterView:
        return self.tally().view(
            now_s, in_flight=in_flight, recently_moved=recently_moved, policies=policies
        )

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


def ema(past: float, value: float, kept_fraction: float) -> float:
    if np.isnan(past):
        return value
    return past * kept_fraction + (1.0 - kept_fraction) * value


def _emas(past: list[float], values: FloatArray, kept_fraction: float) -> list[float]:
    averages: list[float] = exponential_average(np.array(past), values, kept_fraction).tolist()
    return averages


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
    """Return a view made from scratch, for simulations, replays and tests."""
    tracker = LoadTracker(weights=weights)
    for load in loads:
        tracker.put(load)
    tracker.seed(averages)
    return tracker.view(
        now_s, in_flight=in_flight, recently_moved=recently_moved, policies=policies
    )

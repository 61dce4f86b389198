"""Replays the rounds of a segment with one combination of strategies and settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np

from loadmanager.config.strategies import Wanted, planner_for
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import BrokerColumns, Indices, Listing, Mask, OwnedRows
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.placement import Placement, Ranking, Watching
from loadmanager.core.plan import Cause, Move
from loadmanager.core.planner import Planner
from loadmanager.core.playback import Playback
from loadmanager.core.projection import loads
from loadmanager.core.rates import BYTES_IN, BYTES_OUT
from loadmanager.core.scores import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    RESOURCES,
    FloatArray,
    ResourceWeights,
    weighted_max_with_memory,
)
from loadmanager.core.settings import with_arithmetic
from loadmanager.core.top_k import TopBundles
from loadmanager.pipeline.replay.events import CONNECTIONS, LISTED, TOPICS
from loadmanager.pipeline.replay.frames import Frame
from loadmanager.pipeline.replay.measures import Ledger, Line, Moved, measure

_KEPT_FRACTION: Final = 0.9
_WHERE: Final = "the history"
_MSGS: Final = slice(0, 2)
_BYTES: Final = slice(2, 4)


class TrafficCosts:
    """The rule of `TrafficShare`: the usage of a broker at one frame is shared out by traffic.

    A bundle costs the same on every broker. Amounts are (bundles, resources) in the units of usage.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        totals = np.concatenate([frame.brokers.traffic, [frame.brokers.traffic.sum(axis=0)]])
        usage = np.concatenate([frame.brokers.usage, [frame.brokers.usage.sum(axis=0)]])
        # The last row, of the whole cluster, is used for bundles without an owner (row -1).
        # The usage for one unit of each rate.
        prices = np.zeros((len(usage), 4, len(RESOURCES)))
        msgs, volume = totals[:, _MSGS].sum(axis=1), totals[:, _BYTES].sum(axis=1)
        prices[:, _MSGS, CPU] = _each(usage[:, CPU], msgs)[:, None] / 2
        prices[:, _BYTES, CPU] = _each(usage[:, CPU], volume)[:, None] / 2
        prices[:, _BYTES, DIRECT_MEMORY] = _each(usage[:, DIRECT_MEMORY], volume)[:, None]
        prices[:, BYTES_IN, BANDWIDTH_IN] = _each(usage[:, BANDWIDTH_IN], totals[:, BYTES_IN])
        prices[:, BYTES_OUT, BANDWIDTH_OUT] = _each(usage[:, BANDWIDTH_OUT], totals[:, BYTES_OUT])
        self._prices = prices

    def _amounts(self, rates: FloatArray, owner: Indices) -> FloatArray:
        prices = self._prices[owner]
        return np.asarray(np.einsum("nr,nru->nu", rates[:, :4], prices))

    def of(self, rows: Indices) -> FloatArray:
        """Return the shares of the bundles in the usage of their recorded owners."""
        return self._amounts(self._frame.rates[rows], self._frame.owner[rows])

    def predicted(self, rates: FloatArray, owner: Indices) -> FloatArray:
        """Return the usage of the brokers of this frame with other rates and owners of bundles.

        The price of each message and byte, and the usage beyond that of bundles, stay the same.
        """
        frame, count = self._frame, len(self._frame.owner)
        former = np.full(len(rates), -1, dtype=np.intp)
        former[:count] = frame.owner
        shared = summed(frame.owner, self._amounts(frame.rates, frame.owner), len(frame.reports))
        amounts = summed(owner, self._amounts(rates, former), len(frame.reports))
        return np.asarray(np.maximum(frame.brokers.usage - shared, 0.0) + amounts)


def _each(amount: FloatArray, units: FloatArray) -> FloatArray:
    return np.asarray(np.where(units > 0, amount / np.where(units > 0, units, 1.0), 0.0))


@dataclass(slots=True)
class Planners:
    """Makes the planner of each round: the recorded one with the changes ``wanted``."""

    wanted: Wanted = field(default_factory=Wanted)
    _made: dict[str, Planner] = field(default_factory=dict)

    def at(self, frame: Frame) -> Planner:
        """Return the planner of one round.

        Raises:
            ConfigError: the recorded settings and the changes contradict each other.
        """
        planner = self._made.get(frame.settings)
        if planner is None:
            planner = planner_for(_WHERE, frame.in_force, self.wanted)
            self._made[frame.settings] = planner
        return planner


def plain_weights(planner: Planner) -> ResourceWeights:
    """Return the weights of resources, without Pulsar's accidents of rounding."""
    return with_arithmetic(planner.weights, like_java=False)


@dataclass(frozen=True, slots=True)
class Followed:
    """A placement that chooses the recorded target among equally good ones.

    The random choice of the leader is not in the history; everything else is decided again.
    """

    placement: Placement
    recorded: dict[BundleId, BrokerId]

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        """Return the best brokers; only the recorded target if it is one of them."""
        ranking = self.placement.rank(view, candidates, bundle, memory)
        row = view.brokers.index.get(self.recorded.get(bundle, BrokerId("")))
        if row is None or row not in ranking.best:
            return ranking
        return Ranking(np.array([row], dtype=np.intp), ranking.memory)


@dataclass(frozen=True, slots=True)
class FollowedWatching(Followed):
    """The same for a placement that observes every round."""

    def watch(self, view: ClusterView, memory: Memory) -> Memory:
        watching = self.placement
        return watching.watch(view, memory) if isinstance(watching, Watching) else memory


def following(planner: Planner, recorded: dict[BundleId, BrokerId]) -> Planner:
    """Return a planner that chooses the recorded target among equally good ones."""
    watching = isinstance(planner.placement, Watching)
    kind = FollowedWatching if watching else Followed
    return replace(planner, placement=kind(planner.placement, recorded))


"""Weight of the past in the moving average of a broker's load, as in the leader's load tracker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The assumptions of a replay.

    ``hand_over_s`` is the duration of a hand-over, ``overload`` the load above which a broker is
    overloaded. The first ``settle_s`` of a segment are not scored: until then loads result from
    the initial owners.
    """

    hand_over_s: float = 5.0
    overload: float = 0.85
    settle_s: float = 0.0


@dataclass(slots=True)
class _Order:
    """A bundle under way to the broker with the number ``target``."""

    target: int
    arrives_s: float


@dataclass(slots=True, kw_only=True)
class ReplayRun:
    """A cluster with the recorded traffic, and with owners that are decided here.

    It starts with the recorded owners or those of ``start``. In each round the recorded traffic of
    every bundle is assigned to its owner in the replay, the usage of brokers is computed from
    that, and the decision of the planner is carried out. New bundles start on their recorded
    owner; parts of a split bundle stay with its owner; bundles of a broker that left are placed
    again; moves requested by operators are carried out.
    """

    number: int
    planners: Planners
    rules: Rules
    measured: Planners
    rng: np.random.Generator
    _owner: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    _seen: Mask = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    _orders: dict[int, _Order] = field(default_factory=dict)
    _memory: RoundMemory = field(default_factory=RoundMemory)
    _ledger: Ledger = field(default_factory=Ledger)
    _emas: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    _started: dict[BrokerId, int] = field(default_factory=dict)
    _began_s: float = 0.0

    def step(self, frame: Frame, costs: TrafficCosts, start: Indices | None = None) -> Line:
        """Replay one round; where the frame begins, ``start`` are the broker rows of owners."""
        if frame.begins:
            self._begin(frame, start)
        rows = _rows(frame)
        self._follow(frame, rows)
        self._arrive(frame, rows)
        owner = np.where(frame.present & (self._owner >= 0), rows[self._owner], -1)
        planner = self.planners.at(frame)
        brokers = self._brokers(frame, owner, costs, planner.weights)
        view = other_view(
            frame, brokers, owner, self._under_way(frame), like_java=planner.weights.like_java
        )
        line = Line(
            combination=self.number,
            at_ms=round(frame.at_s * 1000),
            weight_s=frame.until_s - frame.at_s,
            settling=frame.at_s < self._began_s + self.rules.settle_s,
        )
        measure(line, loads(view, plain_weights(self.measured.at(frame))), self.rules.overload)
        volume = np.where(frame.present, frame.rates[:, 2:4].sum(axis=1), 0.0)
        total = float(volume.sum())
        elsewhere = (owner != frame.owner) & (owner >= 0) & (frame.owner >= 0)
        line.bytes_per_s = total
        line.away = float(volume[elsewhere].sum()) / total if total > 0 else 0.0
        playback = Playback(planner, self.rng, self._memory)
        plan = playback.round(
            view,
            unowned=self._unowned(frame, owner),
            session_doubtful=frame.session_doubtful,
            draining=True,
        )
        self._memory = playback.memory
        self._order(frame, line, plan.moves)
        self._obey(frame)
        return line

    def _begin(self, frame: Frame, start: Indices | None) -> None:
        """Start with the recorded state, or with the owners of ``start``."""
        self._began_s = frame.at_s
        self._ledger = Ledger()
        self._started = {}
        self._emas = np.full((len(frame.all_brokers.names), 2), np.nan)
        if start is not None:
            self._owner = np.where(start >= 0, frame.broker_numbers[start], -1)
            self._seen = start >= 0
            self._orders = {}
            self._memory = RoundMemory()
            return
        self._owner = np.zeros(0, dtype=np.intp)
        self._seen = np.zeros(0, dtype=np.bool_)
        arrives_s = frame.at_s + self.rules.hand_over_s
        self._orders = {
            frame.bundles.index[bundle]: _Order(frame.all_brokers.number(target), arrives_s)
            for bundle, target in frame.moved.items()
        }
        self._memory = frame.memory or RoundMemory()
        self._emas[frame.broker_numbers, 0] = frame.brokers.load_ema
        self._emas[frame.broker_numbers, 1] = frame.brokers.bytes_ema

    def _follow(self, frame: Frame, rows: Indices) -> None:
        """Assign new bundles to their recorded owners, and parts to the owner of the whole."""
        missing = len(frame.owner) - len(self._owner)
        self._owner = np.concatenate([self._owner, np.full(missing, -1, dtype=np.intp)])
        self._seen = np.concatenate([self._seen, np.zeros(missing, dtype=np.bool_)])
        for part, whole in frame.whole.items():
            if self._seen[whole]:
                self._owner[part], self._seen[part] = self._owner[whole], True
        new = frame.present & ~self._seen
        recorded = np.where(frame.owner >= 0, frame.broker_numbers[frame.owner], -1)
        self._owner[new] = recorded[new]
        for bundle, target in frame.moved.items():
            row = frame.bundles.index[bundle]
            if new[row] and self._owner[row] < 0 and row not in self._orders:
                self._owner[row] = frame.all_brokers.number(target)
        self._seen |= new
        missing = len(rows) - len(self._emas)
        self._emas = np.concatenate([self._emas, np.full((missing, 2), np.nan)])

    def _arrive(self, frame: Frame, rows: Indices) -> None:
        """Complete orders that are due; drop those to brokers that left."""
        for row, order in list(self._orders.items()):
            if rows[order.target] < 0:
                del self._orders[row]
            elif order.arrives_s <= frame.at_s:
                self._owner[row] = order.target
                del self._orders[row]

    def _under_way(self, frame: Frame) -> Mapping[BundleId, BrokerId]:
        names = frame.all_brokers.names
        return MappingProxyType(
            {frame.bundles.names[row]: names[one.target] for row, one in self._orders.items()}
        )

    def _unowned(self, frame: Frame, owner: Indices) -> list[BundleId]:
        waiting = np.flatnonzero(frame.present & (owner < 0)).tolist()
        return sorted(frame.bundles.names[row] for row in waiting if row not in self._orders)

    def _brokers(
        self, frame: Frame, owner: Indices, costs: TrafficCosts, weights: ResourceWeights
    ) -> BrokerColumns:
        count, bundles = len(frame.brokers.names), frame.bundles
        usage = self._usage(frame, owner, costs)
        traffic = summed(owner, frame.rates, count)
        arriving = np.zeros(count)
        for bundle, target in self._under_way(frame).items():
            row = frame.brokers.index[target]
            arriving[row] += bundles.long_msgs_per_s[bundles.index[bundle]]
        emas = self._sampled(frame, usage, traffic[:, :4], weights)
        return replace(
            frame.brokers,
            usage=usage,
            traffic=np.ascontiguousarray(traffic[:, :4]),
            long_msgs_per_s=summed(owner, bundles.long_msgs_per_s, count),
            preallocated_msgs_per_s=arriving,
            load_ema=emas[:, 0],
            bytes_ema=emas[:, 1],
            topics=traffic[:, 4].astype(np.int64),
            connections=traffic[:, 5].astype(np.int64),
        )

    def _usage(self, frame: Frame, owner: Indices, costs: TrafficCosts) -> FloatArray:
        """Return the recorded usage, less bundles that left and plus bundles that came."""
        usage = frame.brokers.usage.copy()
        away = np.flatnonzero(owner != frame.owner)
        left = away[frame.owner[away] >= 0]
        np.subtract.at(usage, frame.owner[left], costs.of(left))
        usage = np.maximum(usage, 0.0)
        came = away[owner[away] >= 0]
        np.add.at(usage, owner[came], costs.of(came))
        return usage

    def _sampled(
        self, frame: Frame, usage: FloatArray, traffic: FloatArray, weights: ResourceWeights
    ) -> FloatArray:
        """Return the moving averages of load and throughput with the samples since then."""
        numbers, started = frame.broker_numbers, frame.brokers.started_at_ms
        former = self._emas[numbers]
        for row, (name, began) in enumerate(zip(frame.brokers.names, started, strict=True)):
            if self._started.get(name, began) != began:
                former[row] = np.nan
            self._started[name] = began
        samples = 0 if frame.begins else frame.samples
        if samples or np.isnan(former).any():
            score = weighted_max_with_memory(usage, frame.brokers.limit, weights)
            now = np.stack([score, traffic[:, 2:4].sum(axis=1)], axis=1)
            kept = _KEPT_FRACTION**samples
            mixed = former * kept + (1.0 - kept) * now
            former = np.where(np.isnan(former), now, mixed)
        self._emas[numbers] = former
        return former

    def _order(self, frame: Frame, line: Line, moves: tuple[Move, ...]) -> None:
        counted = []
        for move in moves:
            row, target = frame.bundles.index[move.bundle], frame.all_brokers.number(move.target)
            source = -1 if move.source is None else frame.all_brokers.number(move.source)
            counted.append(Moved(row, source, target, move.cause))
            self._orders[row] = _Order(target, frame.at_s + self.rules.hand_over_s)
        self._ledger.count(line, frame, counted)

    def _obey(self, frame: Frame) -> None:
        """Carry out the moves that operators requested before the next round."""
        arrives_s = frame.at_s + self.rules.hand_over_s
        for one in frame.carried_out:
            row = frame.bundles.index.get(BundleId(one.bundle))
            asked = one.cause is Cause.REQUESTED and one.source is not None
            if asked and row is not None and row < len(self._owner):
                self._orders[row] = _Order(frame.all_brokers.number(one.target), arrives_s)


def _rows(frame: Frame) -> Indices:
    """Return the row of each broker number in this frame, -1 for absent brokers."""
    rows = np.full(len(frame.all_brokers.names), -1, dtype=np.intp)
    rows[frame.broker_numbers] = np.arange(len(frame.broker_numbers))
    return rows


_TOP_K: Final = 10
_PRODUCERS, _CACHE = LISTED.index("producers"), LISTED.index("cache_bytes")


def recorded_view(frame: Frame, *, like_java: bool) -> ClusterView:
    """Return the recorded view; with ``like_java`` bundles are ranked as in Pulsar."""

    def listing(row: int) -> Listing:
        report = frame.reports[row]
        numbers = report.numbers
        return Listing(
            names=tuple(frame.bundles.names[one] for one in report.rows.tolist()),
            rates=numbers[:, :4],
            topics=numbers[:, TOPICS].astype(np.int64),
            sessions=numbers[:, _PRODUCERS:_CACHE].sum(axis=1).astype(np.int64),
            cache_size_bytes=numbers[:, _CACHE].astype(np.int64),
        )

    return _view(frame, frame.brokers, frame.owned, frame.moved, listing, like_java=like_java)


def other_view(
    frame: Frame,
    brokers: BrokerColumns,
    owner: Indices,
    moved: Mapping[BundleId, BrokerId],
    *,
    like_java: bool,
) -> ClusterView:
    """Return the view of the cluster with the bundles on ``owner``.

    ``owner`` has a broker row for each bundle, -1 for none.
    """
    owned = owned_by(frame, owner)

    def listing(row: int) -> Listing:
        rows = owned.of(row)
        rates = frame.rates[rows]
        return Listing(
            names=tuple(frame.bundles.names[one] for one in rows.tolist()),
            rates=rates[:, :4],
            topics=rates[:, TOPICS].astype(np.int64),
            sessions=rates[:, CONNECTIONS].astype(np.int64),
            cache_size_bytes=frame.cache_bytes[rows].astype(np.int64),
        )

    return _view(frame, brokers, owned, moved, listing, like_java=like_java)


def owned_by(frame: Frame, owner: Indices) -> OwnedRows:
    rows = frame.by_name[owner[frame.by_name] >= 0]
    by_broker = rows[np.argsort(owner[rows], kind="stable")]
    counts = np.bincount(owner[rows], minlength=len(frame.brokers.names))
    starts = np.zeros(len(counts) + 1, dtype=np.intp)
    np.cumsum(counts, out=starts[1:])
    return OwnedRows(starts, by_broker, len(owner))


def summed(owner: Indices, values: FloatArray, brokers: int) -> FloatArray:
    """Return the sums of the values of bundles by broker, without unowned bundles."""
    held = owner >= 0
    rows, kept = owner[held], values[held]
    if kept.ndim == 1:
        return np.bincount(rows, weights=kept, minlength=brokers).astype(np.float64)
    columns = [np.bincount(rows, weights=one, minlength=brokers) for one in kept.T]
    return np.stack(columns, axis=1).astype(np.float64)


def _view(
    frame: Frame,
    brokers: BrokerColumns,
    owned: OwnedRows,
    moved: Mapping[BundleId, BrokerId],
    listing: Callable[[int], Listing],
    *,
    like_java: bool,
) -> ClusterView:
    listings = {name: partial(listing, row) for name, row in brokers.index.items()}
    return ClusterView(
        now_s=frame.at_s,
        brokers=brokers,
        bundles=frame.bundles,
        owned=owned,
        moved=moved,
        top_bundles=TopBundles(listings, _TOP_K, like_java=like_java),
        policies=frame.policies,
        membership_changed_s=frame.membership_changed_s,
        departures_s=frame.departures_s,
    )

"""Evaluates another strategy beside the active one, without moving any bundle.

A shadow keeps its own owners. They differ from the reported owners for the bundles that the
shadow would have moved, and for those that only the active strategy moved. In each round it
decides on the current traffic of the bundles, assigned to its own owners, and its moves take
effect at once. A broker or bundle that leaves the cluster (a bundle by a split) also leaves the
shadow; the bundles of such a broker return to their reported owners.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView, TopBundle
from loadmanager.core.columns import BrokerColumns, Indices, Listing, OwnedRows
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.served import sums_by_broker
from loadmanager.core.memory import RoundMemory
from loadmanager.core.optimality import Divided, Optimality
from loadmanager.core.plan import Cause, Move
from loadmanager.core.planner import Planner
from loadmanager.core.playback import Playback
from loadmanager.core.scores import FloatArray, ResourceWeights, weighted_max_usage
from loadmanager.core.top_k import TopBundles


def with_owners(
    view: ClusterView, divided: Divided, owner: Indices, weights: ResourceWeights
) -> ClusterView:
    """Return the view with other owners: ``owner`` has each bundle's broker row, -1 for none.

    Traffic, usage, topics and connections move with the bundles; running averages of brokers change
    at once by the same amounts. The result has no moves under way.
    """
    there = replace(view, moved={}, recently_moved=frozenset())
    changed = np.flatnonzero(owner != divided.owner)
    if not len(changed):
        return there
    brokers = np.union1d(owner[changed], divided.owner[changed])
    owned = _owned(view, owner, brokers[brokers >= 0])
    return replace(
        there,
        brokers=_brokers(view, divided, owner, weights),
        owned=owned,
        top_bundles=_tops(view, owned, brokers[brokers >= 0]),
    )


def _brokers(
    view: ClusterView, divided: Divided, owner: Indices, weights: ResourceWeights
) -> BrokerColumns:
    brokers, bundles, count = view.brokers, view.bundles, len(view.brokers.names)

    def gained(amounts: FloatArray) -> FloatArray:
        """Return (B, N): the difference of each broker's amounts from its report."""
        before = sums_by_broker(divided.owner, amounts, count)
        return np.asarray(sums_by_broker(owner, amounts, count) - before)

    usage, limit = brokers.usage.copy(), brokers.limit
    usage[:, divided.known] = divided.demand(owner) * limit[:, divided.known]
    risen = weighted_max_usage(usage, limit, weights)
    risen -= weighted_max_usage(brokers.usage, limit, weights)
    traffic = np.maximum(brokers.traffic + gained(bundles.short), 0.0)
    bytes_more = (traffic - brokers.traffic)[:, 2:].sum(axis=1)
    things = np.column_stack([bundles.long_msgs_per_s, bundles.topics, bundles.connections])
    long_msgs, topics, connections = gained(things).T
    return brokers.having(
        usage=usage,
        traffic=traffic,
        long_msgs_per_s=np.maximum(brokers.long_msgs_per_s + long_msgs, 0.0),
        topics=np.maximum(brokers.topics + topics.astype(np.int64), 0),
        connections=np.maximum(brokers.connections + connections.astype(np.int64), 0),
        load_ema=np.maximum(brokers.load_ema + risen, 0.0),
        bytes_ema=np.maximum(brokers.bytes_ema + bytes_more, 0.0),
    )


def _owned(view: ClusterView, owner: Indices, changed: Indices) -> OwnedRows:
    position = np.zeros(len(owner), dtype=np.intp)
    position[view.owned.rows] = np.arange(len(view.owned.rows))
    held = np.flatnonzero(owner >= 0)
    rows = held[np.lexsort((position[held], owner[held]))]
    counts = np.bincount(owner[held], minlength=len(view.brokers.names))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
    names = view.bundles.names
    for broker in changed.tolist():
        part = slice(starts[broker], starts[broker + 1])
        rows[part] = sorted(rows[part].tolist(), key=names.__getitem__)
    return OwnedRows(starts, rows, len(owner))


def _tops(
    view: ClusterView, owned: OwnedRows, changed: Indices
) -> Mapping[BrokerId, tuple[TopBundle, ...]]:
    """Return the heaviest bundles, by short-term averages on brokers with changed bundles."""
    tops, bundles = view.top_bundles, view.bundles
    if not isinstance(tops, TopBundles):
        return {}

    def listing(broker: int) -> Listing:
        rows = owned.of(broker)
        return Listing(
            names=tuple(bundles.names[row] for row in rows.tolist()),
            rates=bundles.short[rows],
            topics=bundles.topics[rows],
            sessions=bundles.connections[rows],
            cache_size_bytes=np.zeros(len(rows), dtype=np.int64),
        )

    return tops.having({view.brokers.names[one]: listing(one) for one in changed.tolist()})


ROUNDS_KEPT: Final = 60
"""Number of rounds over which means are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadowed:
    """Figures of a shadow strategy at one round, and of the active one in the real cluster.

    ``largest`` is the largest demand of any resource of any broker, a fraction, and ``gap`` how far
    it is above the proven lower bound, as a fraction of the bound. ``moved`` is the fraction of the
    cluster's traffic that would have moved for load, half by messages and half by bytes.
    """

    largest: float
    gap: float
    active_gap: float
    moves: int
    moved: float
    active_moves: int
    active_moved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """The owners and memory of a shadow. ``rounds`` are the last rounds, oldest first."""

    away: Mapping[BundleId, BrokerId] = field(default_factory=lambda: MappingProxyType({}))
    memory: RoundMemory = field(default_factory=RoundMemory)
    rounds: tuple[Shadowed, ...] = ()

    @property
    def gap(self) -> float:
        return _mean(one.gap for one in self.rounds)

    @property
    def regret(self) -> float:
        """How far its mean gap is below that of the cluster; negative if it is above."""
        return self.active_gap - self.gap

    @property
    def active_gap(self) -> float:
        return _mean(one.active_gap for one in self.rounds)

    @property
    def moves(self) -> int:
        return sum(one.moves for one in self.rounds)

    @property
    def moved(self) -> float:
        return sum(one.moved for one in self.rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Input of a shadow from a round of the active strategy, with that one's moves and costs."""

    view: ClusterView
    divided: Divided
    optimality: Optimality
    moves: Sequence[Move]


def after_round(shadow: Shadow, planner: Planner, seen: Seen, rng: np.random.Generator) -> Shadow:
    view, divided = seen.view, seen.divided
    away, owner = _owners(view, divided, shadow.away)
    world = with_owners(view, divided, owner, planner.weights)
    plan = Playback(planner, rng, shadow.memory).round(world, draining=True)
    moves = (*plan.moves, *plan.observed)
    loads = [move.bundle for move in moves if move.cause is not Cause.DRAINING]
    largest = float(divided.demand(owner).max())
    shadowed = Shadowed(
        largest=largest,
        gap=replace(seen.optimality, largest=largest).gap,
        active_gap=seen.optimality.gap,
        moves=len(loads),
        moved=_part_of_traffic(view, loads),
        active_moves=len(seen.moves),
        active_moved=_part_of_traffic(view, [move.bundle for move in seen.moves]),
    )
    stays = {move.bundle: move.source for move in seen.moves if move.source is not None}
    made = {move.bundle: move.target for move in moves}
    return Shadow(
        away={**stays, **away, **made},
        memory=plan.memory,
        rounds=(*shadow.rounds, shadowed)[-ROUNDS_KEPT:],
    )


def _owners(
    view: ClusterView, divided: Divided, away: Mapping[BundleId, BrokerId]
) -> tuple[Mapping[BundleId, BrokerId], Indices]:
    """Return the entries of ``away`` that still exist, and (K,) each bundle's broker row or -1."""
    owner, kept = divided.owner.copy(), {}
    for bundle, broker in away.items():
        row, at = view.bundles.row(bundle), view.brokers.index.get(broker)
        if row is not None and at is not None and owner[row] >= 0:
            owner[row] = at
            kept[bundle] = broker
    return kept, owner


def _part_of_traffic(view: ClusterView, bundles: Collection[BundleId]) -> float:
    listed = view.owned.listed_by >= 0
    rows = [row for row in map(view.bundles.row, bundles) if row is not None]
    amounts = (view.bundles.short_msgs_per_s, view.bundles.short_bytes_per_s)
    return sum(float(one[rows].sum()) / max(float(one[listed].sum()), 1e-12) for one in amounts) / 2


def _mean(values: Iterable[float]) -> float:
    every = list(values)
    return sum(every) / max(len(every), 1)

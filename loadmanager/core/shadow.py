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

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.optimality import Divided, Optimality
from loadmanager.core.other_owners import with_owners
from loadmanager.core.plan import Cause, Move
from loadmanager.core.planner import Planner
from loadmanager.core.round_memory import RoundMemory

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
    plan = planner.round(world, shadow.memory, rng)
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

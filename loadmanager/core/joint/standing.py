"""Where the brokers stand, as the joint strategy sees them: predicted use over the level."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import BrokerColumns, Indices, Mask
from loadmanager.core.joint.learning import Learned
from loadmanager.core.joint.level import water_level
from loadmanager.core.joint.served import RATES, fractions, owners, served_by, served_in
from loadmanager.core.joint.state import JointState
from loadmanager.core.scores import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    MEMORY,
    RESOURCES,
    FloatArray,
    ResourceWeights,
)

QUIET: Final = 0.05
"""At a lower level the noise of usage is as large as its differences: rates are balanced."""

EVEN: Final = 1.02
"""A broker gives nothing below this use; 1 is the level."""

URGENT: Final = 0.9
"""A broker that uses more does not wait until it is clear that its background lasts."""

_LOADED: Final = [CPU, BANDWIDTH_IN, BANDWIDTH_OUT]
"""The resources by which a change of traffic is urgent: memory may be full without any."""

_STEADY_SD: Final = 0.025
"""Heap counts only while it is predicted better than this: collectors make a saw-tooth of it."""

_STEADY_LOOKS: Final = 2

RATES_ALONE: Final = ("rates",)
"""The resources of a standing where rates are balanced."""

PER_MOVE: Final = 0.5
PER_CONNECTIONS: Final = 0.25
"""Cost of a move besides its traffic, in mean bundles: for itself, and for its clients."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Standing:
    """Brokers and bundles of one round; B brokers, K bundle rows, R resources that count.

    Use is in units of the ``level``: 1 is even, or what the heaviest bundle takes alone. A
    broker gives by ``low`` and takes by ``high`` (B, R), which differ where its background did
    lately. ``unit`` (B, R) is what a unit of ``cost`` (K, R) adds to a broker, ``share``
    (B, R) a broker's capacity over the mean. ``weight`` (K,) is a bundle's part of the
    cluster's present traffic, ``effort`` (K,) what moving it costs, in weights of a mean
    broker. ``resources`` names the columns.
    """

    level: float
    resources: tuple[str, ...]
    low: FloatArray
    high: FloatArray
    unit: FloatArray
    share: FloatArray
    cost: FloatArray
    weight: FloatArray
    effort: FloatArray
    owner: Indices

    @property
    def over(self) -> FloatArray:
        """Return (B,): how far each broker stands above the level, 0 where it is even."""
        use = self.low.max(axis=1, initial=0.0)
        return np.where(use > EVEN, use - 1.0, 0.0)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Use:
    """Absolute fractions: what `Standing` has in units of the level."""

    resources: tuple[str, ...]
    low: FloatArray
    high: FloatArray
    now: FloatArray
    background: FloatArray
    unit: FloatArray
    cost: FloatArray
    work: FloatArray


def shares(view: ClusterView, learned: Learned) -> tuple[FloatArray, FloatArray]:
    """Return each bundle's share of the cluster's CPU cost, short- and long-term."""
    bundles, unit_costs = view.bundles, learned.unit_costs[CPU]
    listed = view.owned.listed_by >= 0
    every = (served_in(bundles, rates) @ unit_costs for rates in (bundles.short, bundles.long))
    short, long = (np.where(listed & bundles.known, costs, 0.0) for costs in every)
    return short / max(float(short.sum()), 1e-12), long / max(float(long.sum()), 1e-12)


def standing(
    view: ClusterView, state: JointState, weights: ResourceWeights, counted: Mask
) -> Standing:
    """Return where the brokers of ``view`` stand; the level is that of the ``counted`` ones."""
    owner = owners(view)
    use = _by_usage(view, state, weights, owner)
    level = _level(use, counted)
    if level < QUIET:
        use = _by_rates(view, state, owner)
        level = _level(use, counted)
    level = max(level, _heaviest(use, counted, owner), 1e-12)
    capacity = 1.0 / use.unit
    weight, effort = _weights(view, owner, int(counted.sum()))
    return Standing(
        level=level,
        resources=use.resources,
        low=use.low / level,
        high=use.high / level,
        unit=use.unit / level,
        share=capacity / capacity[counted].mean(axis=0),
        cost=use.cost,
        weight=weight,
        effort=effort,
        owner=owner,
    )


def predicted_rates(view: ClusterView, state: JointState) -> FloatArray:
    """Return (K, 4): the rates of the bundles as far as changes last; 0 if never measured.

    On a broker that is urgent a change counts from its beginning.
    """
    bundles, reported, owner = view.bundles, view.brokers.reported, owners(view)
    full = (fractions(reported.usage, reported.limit)[:, _LOADED] > URGENT).any(axis=1)
    at_once = np.append(full, False)[owner]  # The last entry is for bundles without an owner.
    lasting = state.persistence.lasting_of(len(owner), at_once)[:, np.newaxis]
    rates = lasting * bundles.short + (1.0 - lasting) * bundles.long
    return np.asarray(np.where(bundles.known[:, np.newaxis], rates, 0.0))


def _counting(columns: BrokerColumns, learned: Learned, weights: ResourceWeights) -> list[int]:
    """Return the resources that count: weighted, known of every broker, heap if it is steady."""
    known = (columns.limit > 0).all(axis=0) & (weights.as_array() > 0)
    varying = learned.brokers.speed * learned.varying(served_by(columns), columns.limit)
    own = varying[:, MEMORY].sum() > learned.brokers.background[:, MEMORY].sum()
    looked = float(learned.looks[MEMORY]) >= _STEADY_LOOKS
    steady = looked and float(learned.noise[MEMORY]) < _STEADY_SD**2
    known[MEMORY] &= bool(own) and steady
    return [int(row) for row in np.flatnonzero(known)]


def _by_usage(
    view: ClusterView, state: JointState, weights: ResourceWeights, owner: Indices
) -> _Use:
    learned, columns = state.learned, view.brokers.reported
    counting = _counting(columns, learned, weights)
    figures, limit = learned.brokers, columns.limit[:, counting]
    factor = weights.as_array()[counting]
    cost = served_in(view.bundles, predicted_rates(view, state)) @ learned.unit_costs[counting].T
    unit = factor * figures.speed[:, counting] / limit
    work = _summed(owner, cost, len(limit))
    background = factor * figures.background[:, counting]
    least = factor * figures.least[:, :, counting].min(axis=0)
    most = factor * figures.most[:, :, counting].max(axis=0)
    now = np.maximum(background + work * unit, 0.0)
    lasting = np.where(now > URGENT, background, least)
    return _Use(
        resources=tuple(RESOURCES[row] for row in counting),
        low=np.maximum(lasting + work * unit, 0.0),
        high=np.maximum(most + work * unit, 0.0),
        now=now,
        background=background,
        unit=unit,
        cost=cost,
        work=work,
    )


def _by_rates(view: ClusterView, state: JointState, owner: Indices) -> _Use:
    """Return the same for one resource in the place of all: half messages, half bytes."""
    rates, columns = predicted_rates(view, state), view.brokers.reported
    msgs, volume = rates[:, :2].sum(axis=1), rates[:, 2:].sum(axis=1)
    cost = (_part(msgs, owner) + _part(volume, owner))[:, np.newaxis] / 2.0
    cores = columns.limit[:, CPU]
    capacity = cores / cores.mean() if (cores > 0).all() else np.ones(len(cores))
    unit = 1.0 / capacity[:, np.newaxis]
    work = _summed(owner, cost, len(cores))
    use = work * unit
    return _Use(
        resources=RATES_ALONE,
        low=use,
        high=use,
        now=use,
        background=np.zeros_like(use),
        unit=unit,
        cost=cost,
        work=work,
    )


def _level(use: _Use, counted: Mask) -> float:
    """Return the highest level of any resource, 0 if none counts."""
    background, capacity = np.maximum(use.background, 0.0)[counted], 1.0 / use.unit[counted]
    total = use.work[counted].sum(axis=0)
    levels = (
        water_level(background[:, row], capacity[:, row], float(total[row]))
        for row in range(len(use.resources))
    )
    return max(levels, default=0.0)


def _heaviest(use: _Use, counted: Mask, owner: Indices) -> float:
    """Return the use of the broker that suits the heaviest bundle best, were it alone there.

    No assignment is below it. Without it such a bundle would move for any small difference
    of speeds, because the potential rises so steeply above the level.
    """
    cost = use.cost[owner >= 0].max(axis=0, initial=0.0)
    alone = np.maximum(use.background, 0.0)[counted] + cost * use.unit[counted]
    return float(alone.min(axis=0).max(initial=0.0))


def _weights(view: ClusterView, owner: Indices, brokers: int) -> tuple[FloatArray, FloatArray]:
    """Return each bundle's part of the present traffic, and what moving it costs.

    A move costs as much as the traffic that is interrupted, half a mean bundle because it is
    a move at all, and a quarter of one by its connections: so neither the number of brokers
    nor that of bundles changes what a move is worth.
    """
    bundles = view.bundles
    msgs, volume = bundles.short_msgs_per_s, bundles.short_bytes_per_s
    weight = (_part(msgs, owner) + _part(volume, owner)) / 2.0
    listed = max(int(np.count_nonzero(owner >= 0)), 1)
    connections = _part(bundles.connections.astype(np.float64), owner)
    return weight, brokers * (weight + PER_MOVE / listed + PER_CONNECTIONS * connections)


def _part(amounts: FloatArray, owner: Indices) -> FloatArray:
    return np.asarray(amounts / max(float(amounts[owner >= 0].sum()), 1e-12))


def _summed(owner: Indices, cost: FloatArray, brokers: int) -> FloatArray:
    """Return (B, R): the sums of the bundles of each broker; row -1 owns nothing."""
    columns = [np.bincount(owner + 1, column, brokers + 1)[1:] for column in cost.T]
    return np.stack(columns, axis=1) if columns else np.zeros((brokers, 0))


__all__ = [
    "EVEN",
    "QUIET",
    "RATES",
    "RATES_ALONE",
    "URGENT",
    "Standing",
    "predicted_rates",
    "shares",
    "standing",
]

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import BrokerColumns, Indices, Mask
from loadmanager.core.joint.broker_figures import SPEEDS
from loadmanager.core.joint.learning import Learned
from loadmanager.core.joint.served import fractions, owners, served_by, served_in, sums_by_broker
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

QUIET: Final = 0.26
"""The level, or half of the fullest broker's use, at which usage and rates count alike."""

_SHARPNESS: Final = 8
_LEAST_BELIEVED: Final = 1e-3

TOLERANCE: Final = 1.02
"""A broker below this use sheds nothing, unless a strategy is set otherwise; 1 is the level."""

URGENT: Final = 0.9
"""Above this usage a broker does not wait to see whether its background lasts."""

_RELIEF: Final = 3.0
"""What such a broker sheds of a background that may end, in units of what it is above."""

_LOADED: Final = [CPU, BANDWIDTH_IN, BANDWIDTH_OUT]
"""The resources for which a change of traffic may be urgent; memory may be full without one."""

_STEADY_SD: Final = 0.025
"""Heap counts only if predicted better than this: garbage collection makes it a saw-tooth."""

_STEADY_LOOKS: Final = 2

_BELIEVED: Final = 0.02
"""How far the model's background may be from the measured one, in fractions of the limit."""

_AGREES: Final = 1.15
"""A factor of all costs by which predictions may differ from reports without a correction."""

_LEAST_COSTS: Final = 1e-9
"""Least of that factor, and of its inverse: next to nothing used or served is a number, too."""

_NOISE_SDS: Final = 0.5
"""Standard deviations of prediction errors by which a broker sheds later and takes less."""

STANDS_OUT: Final = 0.15
"""How far above the level a broker is, as a fraction, for a round before its time."""

RATES_ALONE: Final = ("rates",)
"""The resources of a standing by rates."""

PER_MOVE: Final = 0.5
PER_CONNECTIONS: Final = 0.25
"""Cost of a move besides its traffic, in mean bundles: for itself, and for its clients."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Standing:
    """Brokers and bundles of one round: B brokers, K bundle rows, R resources considered.

    Use is in units of the ``level``: 1 is even, or the use of the heaviest bundle alone. A
    broker sheds by ``low`` and takes by ``high`` (B, R), which differ by noise and if its
    ``background`` (B, R) varied recently. ``unit`` (B, R) is the use added to a broker per unit
    of ``cost`` (K, R), ``share`` (B, R) a broker's capacity relative to the mean. ``effort`` (K,)
    is the cost of moving a bundle, in the traffic of a mean broker. ``resources`` names the
    columns. ``urgent`` (B,) are the brokers above `URGENT` with all that came to them; none is
    known to be by rates alone. A broker sheds nothing up to the ``tolerance``.
    """

    level: float
    resources: tuple[str, ...]
    low: FloatArray
    high: FloatArray
    background: FloatArray
    unit: FloatArray
    share: FloatArray
    cost: FloatArray
    effort: FloatArray
    owner: Indices
    urgent: Mask
    tolerance: float = TOLERANCE

    @property
    def over(self) -> FloatArray:
        """Return (B,): how far each broker is above the level, 0 if it is even."""
        use = self.low.max(axis=1, initial=0.0)
        return np.where(use > self.tolerance, use - 1.0, 0.0)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Use:
    resources: tuple[str, ...]
    low: FloatArray
    high: FloatArray
    full: FloatArray
    background: FloatArray
    unit: FloatArray
    cost: FloatArray
    work: FloatArray


def shares(view: ClusterView, learned: Learned) -> tuple[FloatArray, FloatArray, float]:
    """Return shares of the cluster's cost: (K,) short- and long-term, and of what others changed.

    The last is usage of CPU that came or went in five minutes by nothing that the traffic
    explains. Costs are of CPU, or of rates until that is known.
    """
    bundles, unit_costs = view.bundles, learned.unit_costs[CPU]
    listed = view.owned.listed_by >= 0
    if not unit_costs.any():  # Usage is not known yet.
        unit_costs = np.append(1.0 / np.maximum(bundles.long.sum(axis=0), 1e-12), (0.0, 0.0))
    every = (served_in(bundles, rates) @ unit_costs for rates in (bundles.short, bundles.long))
    short, long = (np.where(listed & bundles.known, costs, 0.0) for costs in every)
    total = max(float(short.sum()), 1e-12)
    others = _changed(learned, view.brokers.reported) if learned.unit_costs[CPU].any() else 0.0
    return short / total, long / max(float(long.sum()), 1e-12), others / total


def _changed(learned: Learned, columns: BrokerColumns) -> float:
    """Return how much usage of CPU came or went that no change of traffic explains."""
    figures, limit, work = learned.brokers, columns.limit[:, CPU], len(RESOURCES)
    then, weights = figures.spans[-1], figures.weights[-1]
    varied = (figures.last - then)[:, work:] @ learned.unit_costs[CPU]
    grown = (figures.last - then)[:, CPU] * limit - figures.speed[:, CPU] * varied
    beyond = np.maximum(np.abs(grown) - _BELIEVED * limit, 0.0)
    return float(beyond[(weights > 0) & (figures.last_weight > 0)].sum())


def standing(
    view: ClusterView,
    state: JointState,
    weights: ResourceWeights,
    counted: Mask,
    tolerance: float = TOLERANCE,
) -> Standing:
    """Return the standing of the brokers of ``view``; the level is over the ``counted`` brokers."""
    owner = owners(view)
    use = _mixed(
        _by_usage(view, state, weights, owner), _by_rates(view, state, owner), owner, counted
    )
    level = _level(use, counted)
    level = max(level, _heaviest(use, counted, owner), 1e-12)
    capacity = 1.0 / use.unit
    # Prices are of traffic and gains of use: of a level that is half traffic a move gains half.
    by_traffic = use.work[counted].sum(axis=0) / capacity[counted].sum(axis=0)
    part = min(float(by_traffic.max(initial=0.0)) / level, 1.0)
    # What may end soon is shed only so far as it takes a broker above the limit.
    beyond = np.minimum(use.full, level + _RELIEF * (use.full - URGENT))
    return Standing(
        level=level,
        resources=use.resources,
        low=np.where(use.full > URGENT, np.maximum(use.low, beyond), use.low) / level,
        high=use.high / level,
        background=use.background / level,
        unit=use.unit / level,
        share=capacity / capacity[counted].mean(axis=0),
        cost=use.cost,
        effort=part * _efforts(view, owner, int(counted.sum())),
        owner=owner,
        urgent=np.asarray((use.full > URGENT).any(axis=1)),
        tolerance=tolerance,
    )


def predicted_rates(view: ClusterView, state: JointState) -> FloatArray:
    """Return (K, 4): the predicted lasting rates of the bundles; 0 if never measured.

    On a broker above `URGENT` a change counts from its beginning.
    """
    bundles, reported, owner = view.bundles, view.brokers.reported, owners(view)
    full = (fractions(reported.usage, reported.limit)[:, _LOADED] > URGENT).any(axis=1)
    at_once = np.append(full, False)[owner]  # The last entry is for bundles without an owner.
    lasting = state.persistence.lasting_of(len(owner), at_once)[:, np.newaxis]
    rates = lasting * bundles.short + (1.0 - lasting) * bundles.long
    return np.asarray(np.where(bundles.known[:, np.newaxis], rates, 0.0))


def _mixed(usage: _Use, rates: _Use, owner: Indices, counted: Mask) -> _Use:
    """Return the use by ``usage`` so far as traffic or other work differs there, else by ``rates``.

    Rates are brought to the level and to the speeds of usage, so that both mean the same where
    usage follows traffic.
    """
    level, made = _level(usage, counted), (usage.work * usage.unit)[counted]
    mean = usage.work[counted].sum(axis=0) / (1.0 / usage.unit[counted]).sum(axis=0)
    above = float(usage.low[counted].max(initial=0.0)) - level
    stands = max(float(mean.max(initial=0.0)), float(made.max(initial=0.0)) / 2.0, above)
    believed = stands**_SHARPNESS / (stands**_SHARPNESS + QUIET**_SHARPNESS)
    if believed < _LEAST_BELIEVED:
        return rates
    # Speeds are learned from usage, and believed as far as that is.
    equal = rates.unit * np.exp(np.log(usage.unit / rates.unit)[counted].mean(axis=0))
    unit = usage.unit**believed * equal ** (1.0 - believed)
    # All traffic together takes the counted brokers to the level.
    scale = level * (1.0 / unit[counted]).sum(axis=0)
    by_rates = (1.0 - believed) * rates.cost * scale
    cost = believed * usage.cost + by_rates
    brokers = len(unit)
    more = sums_by_broker(owner, by_rates, brokers) * unit
    return replace(
        usage,
        low=believed * usage.low + more,
        high=believed * usage.high + more,
        background=believed * usage.background,
        unit=unit,
        cost=cost,
        work=sums_by_broker(owner, cost, brokers),
    )


def _counting(columns: BrokerColumns, learned: Learned, weights: ResourceWeights) -> list[int]:
    """Return the resources to consider: weighted, known for every broker, heap only if steady."""
    known = (columns.limit > 0).all(axis=0) & (weights.as_array() > 0)
    varying = learned.brokers.speed * learned.varying(served_by(columns), columns.limit)
    own = varying[:, MEMORY].sum() > learned.background(columns.limit)[:, MEMORY].sum()
    looked = float(learned.looks[MEMORY]) >= _STEADY_LOOKS
    steady = looked and float(learned.noise[MEMORY]) < _STEADY_SD**2
    known[MEMORY] &= bool(own) and steady
    return [int(row) for row in np.flatnonzero(known)]


def _by_usage(
    view: ClusterView, state: JointState, weights: ResourceWeights, owner: Indices
) -> _Use:
    learned, columns = state.learned, view.brokers.reported
    counting = _counting(columns, learned, weights)
    limit = columns.limit[:, counting]
    factor = weights.as_array()[counting]
    speed, background, least, most, every = (
        factor * one for one in _anchored(learned, columns, counting)
    )
    cost = served_in(view.bundles, predicted_rates(view, state)) @ learned.unit_costs[counting].T
    unit = speed / limit
    work = sums_by_broker(owner, cost, len(limit))
    return _Use(
        resources=tuple(RESOURCES[row] for row in counting),
        low=least + work * unit,
        high=most + work * unit,
        full=every + work * unit,
        background=background,
        unit=unit,
        cost=cost,
        work=work,
    )


def _anchored(
    learned: Learned, columns: BrokerColumns, counting: list[int]
) -> tuple[FloatArray, ...]:
    """Return (B, R): speeds and backgrounds that agree with the last reports, and extremes of them.

    The least background is without what came in one of the spans, the most includes what went;
    what the change of traffic since then would explain at twice its cost is neither. The last is
    the least, but with what came where a report is above `URGENT`.
    """
    figures, limit = learned.brokers, columns.limit[:, counting]

    def parts(reports: FloatArray) -> tuple[FloatArray, FloatArray]:
        usage, work = reports[..., : len(RESOURCES)], reports[..., len(RESOURCES) :]
        return usage[..., counting], fractions(work @ learned.unit_costs[counting].T, limit)

    usage, varying = parts(figures.last)
    reported = fractions(columns.usage, columns.limit)[:, counting]
    urgent = (reported > URGENT) & learned.settled(columns)[:, np.newaxis]
    last_varying = learned.varying(served_by(columns), columns.limit)[:, counting]
    varying = np.where(urgent, last_varying, varying)
    usage = np.where(urgent, reported, usage)
    seen = (figures.last_weight > 0)[:, np.newaxis]
    with np.errstate(divide="ignore", over="ignore"):  # Next to no work allows any speed.
        most_speed = (usage + _BELIEVED) / varying
    speed = figures.speed[:, counting]
    background = learned.background(columns.limit)[:, counting]
    speed = speed * _explained(usage, speed * varying, background, limit, seen)
    speed = np.where(seen, np.clip(most_speed, SPEEDS[0], speed), speed)
    measured = usage - speed * varying
    close = np.clip(background, np.maximum(measured - _BELIEVED, 0.0), measured + _BELIEVED)
    background = np.maximum(np.where(seen, close, background), 0.0)
    then, varied = parts(figures.spans)
    by_traffic = speed * (varying - varied)
    grown = np.where((figures.weights > 0)[..., np.newaxis], usage - then - by_traffic, 0.0)
    came, went = (
        np.maximum(sign * grown - np.abs(by_traffic), 0.0).max(axis=0) for sign in (1.0, -1.0)
    )
    noise = _NOISE_SDS * np.sqrt(learned.noise[counting])
    least = np.maximum(background - came - noise, 0.0)
    every = np.where(urgent, background, least)
    return speed, background, least, background + went + noise, every


def _explained(
    usage: FloatArray, by_work: FloatArray, background: FloatArray, limit: FloatArray, seen: Mask
) -> FloatArray:
    """Return (R,): the factor of all costs with which predictions add up to what was reported."""
    beyond, by_work = (
        np.where(seen, one * limit, 0.0).sum(axis=0)
        for one in (usage - np.maximum(background, 0.0), by_work)
    )
    both = (by_work > 0) & (beyond > 0)
    worked = np.maximum(by_work, _LEAST_COSTS * beyond)
    factor = np.divide(beyond, worked, out=np.ones_like(by_work), where=both)
    factor = np.maximum(factor, _LEAST_COSTS)
    return np.asarray(factor / np.clip(factor, 1.0 / _AGREES, _AGREES))


def _by_rates(view: ClusterView, state: JointState, owner: Indices) -> _Use:
    """Return the use by rates as the only resource: half messages, half bytes."""
    rates, columns = predicted_rates(view, state), view.brokers.reported
    msgs, volume = rates[:, :2].sum(axis=1), rates[:, 2:].sum(axis=1)
    cost = (_part(msgs, owner) + _part(volume, owner))[:, np.newaxis] / 2.0
    cores = columns.limit[:, CPU]
    capacity = cores / cores.mean() if (cores > 0).all() else np.ones(len(cores))
    unit = 1.0 / capacity[:, np.newaxis]
    work = sums_by_broker(owner, cost, len(cores))
    use = work * unit
    return _Use(
        resources=RATES_ALONE,
        low=use,
        high=use,
        full=np.zeros_like(use),
        background=np.zeros_like(use),
        unit=unit,
        cost=cost,
        work=work,
    )


def _level(use: _Use, counted: Mask) -> float:
    background, capacity = use.background[counted], 1.0 / use.unit[counted]
    total = use.work[counted].sum(axis=0)
    levels = (
        water_level(background[:, row], capacity[:, row], float(total[row]))
        for row in range(len(use.resources))
    )
    return max(levels, default=0.0)


def water_level(background: FloatArray, capacity: FloatArray, total: float) -> float:
    """Return the level after ``total`` is poured onto the brokers' backgrounds.

    ``background`` is a fraction of ``capacity``; ``total`` is in the unit of ``capacity``. There
    is at least one broker. A broker whose background is above the level receives nothing.
    """
    order = np.argsort(background, kind="stable")
    floor, width = background[order], capacity[order]
    levels = (total + np.cumsum(floor * width)) / np.cumsum(width)
    # The level with the i lowest brokers; valid if it does not reach the next background.
    reached = levels <= np.append(floor[1:], np.inf)
    return float(levels[int(np.argmax(reached))])


def _heaviest(use: _Use, counted: Mask, owner: Indices) -> float:
    """Return the use of the heaviest bundle alone on the broker that suits it best.

    No assignment is below it. Without this lower limit such a bundle would move for any small
    difference of speeds, because the potential rises steeply above the level.
    """
    cost = use.cost[owner >= 0].max(axis=0, initial=0.0)
    alone = use.background[counted] + cost * use.unit[counted]
    return float(alone.min(axis=0).max(initial=0.0))


def _efforts(view: ClusterView, owner: Indices, brokers: int) -> FloatArray:
    """Return the cost of moving each bundle, in the traffic of a mean broker.

    It is the interrupted traffic, plus half a mean bundle for the move itself, plus a quarter of
    one for its connections. So the value of a move depends neither on the number of brokers nor on
    the number of bundles.
    """
    bundles = view.bundles
    msgs, volume = bundles.short_msgs_per_s, bundles.short_bytes_per_s
    traffic = (_part(msgs, owner) + _part(volume, owner)) / 2.0
    listed = max(int(np.count_nonzero(owner >= 0)), 1)
    connections = _part(bundles.connections.astype(np.float64), owner)
    return np.asarray(brokers * (traffic + PER_MOVE / listed + PER_CONNECTIONS * connections))


def _part(amounts: FloatArray, owner: Indices) -> FloatArray:
    return np.asarray(amounts / max(float(amounts[owner >= 0].sum()), 1e-12))

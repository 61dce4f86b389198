"""Robust, censored, non-negative regression of the costs and backgrounds of all classes.

    usage of a broker = its background + sum over rates (cost of its class times the rate)

Each pass reads the rows once and sums normal equations, a matrix of 7 by 8 for each unit; solving
them takes little time. The background of a unit is a free parameter and is eliminated, so only
variation within a broker determines costs: busier brokers may have busier hosts.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_model.normal_equations import (
    BUCKETS,
    NORMAL_MEDIAN,
    Phase,
    State,
    least_deviation,
    normal_equations,
    quantile,
)
from loadmanager.pipeline.cost_model.row_statistics import RowStatistics
from loadmanager.pipeline.cost_model.rows import FITS, RATE_COUNT, RESOURCE_COUNT, Source, Sums


@cache
def _faces(terms: int) -> NDArray[np.bool_]:
    """Return all subsets of terms as masks, (2 ** terms, terms)."""
    return (np.arange(2**terms)[:, np.newaxis] >> np.arange(terms) & 1).astype(np.bool_)


class NonNegative:
    """Minimises ``x'Gx / 2 - t'x`` subject to ``x >= 0``, for one G and any t.

    ``gram`` (p, p) is positive definite. Each of the 2^p subsets of terms has one candidate; the
    best non-negative candidate is the solution.
    """

    def __init__(self, gram: FloatArray) -> None:
        faces = _faces(gram.shape[0])
        both = faces[:, :, np.newaxis] & faces[:, np.newaxis, :]
        systems = np.where(both, gram, np.eye(gram.shape[0]))
        self._inverses = np.where(both, np.linalg.inv(systems), 0.0)

    def least(self, target: FloatArray) -> tuple[FloatArray, float]:
        """Return the minimiser for ``target`` (p,), and the minimum."""
        candidates = self._inverses @ target
        depth = -0.5 * (candidates @ target)
        slack = -1e-12 * np.abs(candidates).max(initial=0.0)
        depth = np.where((candidates >= slack).all(axis=1), depth, np.inf)
        best = int(np.argmin(depth))
        return np.maximum(candidates[best], 0.0), float(depth[best])


_AT_LEAST: Final = {Phase.SQUARES: 1, Phase.HUBER: 2, Phase.BISQUARE: 2}
_AT_MOST: Final = {Phase.SQUARES: 2, Phase.HUBER: 6, Phase.BISQUARE: 6}
_SETTLED: Final = 1e-3
"""Relative to the peak of the class; minutes that alternate between buckets cause a third of it."""

_RIDGE: Final = 1e-7
_FEW: Final = 50
_MOST_BALANCE: Final = 4.0


@dataclass(frozen=True, eq=False)
class Within:
    """Normal equations of one class, fit and resource with eliminated backgrounds."""

    gram: FloatArray
    right: FloatArray


def fit(source: Source, statistics: RowStatistics) -> State:
    """Return the fit of all parts of the rows, in at most 14 passes."""
    state = State.beginning(statistics)
    for phase in Phase:
        state = state.in_phase(phase)
        for turn in range(1, _AT_MOST[phase] + 1):
            before = state
            state = _better(statistics, state, source.sums(normal_equations(statistics, state)))
            if turn >= _AT_LEAST[phase] and _change(statistics, before, state) < _SETTLED:
                break
    return state


def unit_equations(statistics: RowStatistics, sums: Sums) -> FloatArray:
    """Return the equations (U, F, 5, 7, 8); 0 for units without rows."""
    empty = np.zeros((len(FITS), RESOURCE_COUNT, 1 + RATE_COUNT, 2 + RATE_COUNT))
    return np.stack([sums.get(unit, empty) for unit in range(len(statistics.class_of))])


def within(equations: FloatArray) -> Within:
    """Return the sum of equations (units, 7, 8) of a class, with eliminated backgrounds."""
    weight = equations[:, 0, 0]
    safe = np.where(weight > 0, weight, 1.0)
    first = equations[:, 0, 1:-1]
    gram = equations[:, 1:, 1:-1].sum(axis=0) - (first / safe[:, None]).T @ first
    right = equations[:, 1:, -1].sum(axis=0) - (equations[:, 0, -1] / safe) @ first
    return Within(gram, right)


def solved(equations: Within) -> FloatArray:
    """Return the costs of one class, fit and resource, in scaled rates; 0 for constant terms.

    Perfectly collinear terms share their cost.
    """
    size = np.sqrt(np.maximum(np.diag(equations.gram), 0.0))
    varied = size > 0
    safe = np.where(varied, size, 1.0)
    gram = equations.gram / np.outer(safe, safe) + np.diag(np.where(varied, _RIDGE, 1.0))
    found, _ = NonNegative(gram).least(np.where(varied, equations.right / safe, 0.0))
    return np.asarray(found / safe)


def _better(statistics: RowStatistics, state: State, sums: Sums) -> State:
    equations = unit_equations(statistics, sums)
    costs, background = state.costs.copy(), state.background.copy()
    for number in range(statistics.classes):
        units = statistics.units_of(number)
        for part in range(len(FITS)):
            for resource in range(RESOURCE_COUNT):
                own = equations[units, part, resource]
                found = solved(within(own))
                costs[part, number, resource] = found
                known = own[:, 0, 0] > 0
                rest = own[:, 0, -1] - own[:, 0, 1:-1] @ found
                background[part, units[known], resource] = rest[known] / own[known, 0, 0]
    counts = np.stack([sums[-1 - number] for number in range(statistics.classes)])
    deviation = _deviation(statistics, state, counts)
    return replace(
        state,
        costs=costs,
        background=background,
        deviation=deviation,
        balance=_balance(counts.sum(axis=-1)),
        reach=np.nan_to_num(quantile(counts[:, :, :BUCKETS].sum(axis=2), 0.9), nan=2.0),
    )


def _deviation(statistics: RowStatistics, state: State, counts: FloatArray) -> FloatArray:
    """Return the scale of residuals in each bucket; one with few rows takes that of a neighbour."""
    middle = quantile(counts, 0.5) / NORMAL_MEDIAN * state.deviation
    enough = counts.sum(axis=-1) >= _FEW
    pooled = quantile(counts.sum(axis=2), 0.5) / NORMAL_MEDIAN
    usual = np.nan_to_num(pooled, nan=1.0)[:, :, np.newaxis] * state.deviation
    found = np.where(enough, middle, np.nan)
    levels = _filled(found[:, :, :BUCKETS])
    found = np.concatenate([levels, found[:, :, BUCKETS:]], axis=2)
    found = np.where(np.isnan(found), usual, found)
    return np.maximum(found, least_deviation(statistics)[:, :, np.newaxis])


def _filled(deviation: FloatArray) -> FloatArray:
    """Return deviations by bucket, NaN replaced by the nearest known one.

    Above all known buckets, where brokers are full, errors are assumed to grow with usage.
    """
    found = deviation.copy()
    buckets = np.arange(BUCKETS)
    for place in np.ndindex(found.shape[:2]):
        known = np.flatnonzero(~np.isnan(found[place]))
        if len(known):
            nearest = np.abs(buckets[:, None] - known).argmin(axis=1)
            growth = np.maximum((buckets + 0.5) / (known[-1] + 0.5), 1.0)
            found[place] = found[place][known[nearest]] * growth
    return found


def _balance(counts: FloatArray) -> FloatArray:
    """Return the weights of rows by bucket: the square root of the relative rarity, bounded."""
    levels = counts[:, :, :BUCKETS]
    filled = np.maximum((levels > 0).sum(axis=2, keepdims=True), 1)
    usual = levels.sum(axis=2, keepdims=True) / filled
    share = np.sqrt(np.maximum(usual, 1.0) / np.maximum(levels, 1.0))
    found = np.clip(share, 1.0 / _MOST_BALANCE, _MOST_BALANCE)
    return np.concatenate([found, np.ones_like(counts[:, :, BUCKETS:])], axis=2)


def _change(statistics: RowStatistics, before: State, after: State) -> float:
    """Return the largest change of a term, relative to the peak of the class."""
    peak = np.maximum(statistics.peak, 1e-300)[np.newaxis, :, :, np.newaxis]
    return float(np.max(np.abs(after.costs - before.costs) / peak, initial=0.0))

"""One estimate from several kinds of variation, with its covariance."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_model.normal_equations import State
from loadmanager.pipeline.cost_model.regression import NonNegative
from loadmanager.pipeline.cost_model.row_statistics import RowStatistics
from loadmanager.pipeline.cost_model.rows import FITS, RATE_COUNT, RESOURCE_COUNT
from loadmanager.pipeline.cost_model.uncertainty import WIDTH, Closing, Pulls

_RIDGE: Final = 1e-7
"""Relative to the scaled matrix: perfectly collinear terms share their cost in equal parts."""
_LEAST_INFORMATION: Final = 1e-9
_LEAST_SPREAD: Final = 1e-2
"""Lower bound of the variance of blocks, relative to that of independent rows: blocks that agree
better do so by chance, and do not give a kind more weight."""
_NEARLY: Final = 0.01


@dataclass(frozen=True, eq=False, kw_only=True)
class Estimate:
    """The terms of one class, fit and resource, in scaled rates.

    ``costs`` (6,) are non-negative, ``free`` are unconstrained estimates. ``covariance`` is that
    of the latter, ``precision`` its pseudo-inverse; both are 0 in undetermined directions.
    ``kernel`` (6, 18) maps whitened scores to changes of the estimate. ``gram`` (6, 6) is the
    information of all kinds of rows. ``freedom`` are the degrees of freedom of the t
    distribution: blocks less terms.
    """

    costs: FloatArray
    free: FloatArray
    covariance: FloatArray
    precision: FloatArray
    kernel: FloatArray
    gram: FloatArray
    freedom: int

    def knows(self, direction: FloatArray) -> bool:
        """Return whether the rows determine costs in a direction."""
        seen = self.covariance @ (self.precision @ direction)
        return bool(np.allclose(seen, direction, atol=_NEARLY * float(np.abs(direction).max())))


Estimates = dict[tuple[int, int, int], Estimate]
"""By class, fit and resource."""


def combined(state: State, closed: Closing, pulled: Pulls) -> Estimates:
    """Return the estimates, with each kind weighted by the inverse variance of its blocks."""
    found = {}
    for number, part, resource in np.ndindex(*closed.slopes.shape[:3]):
        at = number, part, resource
        roots, slopes = closed.roots[at], closed.slopes[at]
        towards = np.concatenate([one @ other for one, other in zip(roots, slopes, strict=True)])
        found[at] = _estimate(
            start=state.costs[part, number, resource],
            towards=towards,
            total=pulled.total[at],
            spread=_at_least(pulled.spread[at], pulled.independent[at]),
            blocks=int(pulled.blocks[at]),
        )
    return found


def settled(
    statistics: RowStatistics, state: State, closed: Closing, estimates: Estimates
) -> State:
    """Return the fit with the combined costs, and the backgrounds that result from them."""
    costs, background = state.costs.copy(), state.background.copy()
    for number, part, resource in np.ndindex(statistics.classes, len(FITS), RESOURCE_COUNT):
        units = statistics.units_of(number)
        found = estimates[number, part, resource].costs
        change = found - costs[part, number, resource]
        background[part, units, resource] -= closed.middles.rates[units, part, resource] @ change
        costs[part, number, resource] = found
    return replace(state, costs=costs, background=background)


def background_variances(
    statistics: RowStatistics, closed: Closing, pulled: Pulls, estimates: Estimates, fit: int
) -> FloatArray:
    """Return (U, 5): the variances of the backgrounds without traffic, infinite if unknown."""
    found = np.full((len(statistics.class_of), RESOURCE_COUNT), np.inf)
    for unit, resource in np.ndindex(*found.shape):
        weight = closed.middles.weight[unit, fit, resource]
        if weight <= 0:
            continue
        number = int(statistics.class_of[unit])
        one = estimates[number, fit, resource]
        away = zero_traffic(statistics, closed, unit, fit, resource)
        own = pulled.unit[unit, fit, resource]
        together = away @ one.kernel @ own[:WIDTH] / weight
        variance = own[WIDTH] / weight**2 + away @ one.covariance @ away - 2.0 * together
        found[unit, resource] = max(float(variance), 0.0)
    return found


def zero_traffic(
    statistics: RowStatistics, closed: Closing, unit: int, fit: int, resource: int
) -> FloatArray:
    """Return the mean rates of a unit, scaled: the distance of its centre from no traffic."""
    scaled = statistics.rates[unit] / statistics.scale[statistics.class_of[unit]]
    return np.asarray(scaled + closed.middles.rates[unit, fit, resource])


def _at_least(spread: FloatArray, independent: FloatArray) -> FloatArray:
    """Return the covariance of block scores, its diagonal at least that of independent rows.

    A few blocks of large weight may agree by chance.
    """
    own = np.diag(spread)
    factor = np.sqrt(np.maximum(independent / np.where(own > 0, own, np.inf), 1.0))
    return np.asarray(spread * np.outer(factor, factor))


def _estimate(
    *, start: FloatArray, towards: FloatArray, total: FloatArray, spread: FloatArray, blocks: int
) -> Estimate:
    known = np.any(towards != 0.0, axis=1)
    own = np.maximum(np.diag(spread), _LEAST_SPREAD)
    weighted = np.where(known, 1.0 / own, 0.0)[:, np.newaxis] * towards
    gram = towards.T @ weighted
    size = np.sqrt(np.maximum(np.diag(gram), 0.0))
    scale = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
    seen = values > _LEAST_INFORMATION * max(float(values.max()), 1e-300)
    half = vectors[:, seen] / scale[:, np.newaxis]
    back = vectors[:, seen] * scale[:, np.newaxis]
    kernel = (half / values[seen]) @ half.T @ weighted.T
    covariance = kernel @ (spread + _LEAST_SPREAD**2 * np.eye(WIDTH)) @ kernel.T
    precision = back @ np.linalg.inv(back.T @ covariance @ back) @ back.T
    right = weighted.T @ (total + towards @ start)
    ridge = np.diag(np.where(size > 0, _RIDGE, 1.0))
    costs, _ = NonNegative(gram / np.outer(scale, scale) + ridge).least(right / scale)
    return Estimate(
        costs=costs / scale,
        free=kernel @ (total + towards @ start),
        covariance=covariance,
        precision=precision,
        kernel=kernel,
        gram=gram,
        freedom=max(blocks - RATE_COUNT, 1),
    )

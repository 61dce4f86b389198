"""Normal equations of every unit, summed in one pass over the rows at the current fit, robustly."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import numpy as np

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_model.row_statistics import THRESHOLD, RowStatistics, full_rows, pull
from loadmanager.pipeline.cost_model.rows import (
    FITS,
    RATE_COUNT,
    RESOURCE_COUNT,
    TRAINING,
    Flags,
    Ints,
    Rows,
    Summing,
    by_unit,
)

BUCKETS: Final = 20


class Phase(Enum):
    """The loss function of each phase of the fit, in order.

    Huber's weights converge from any start; Tukey's bisquare then excludes outliers, such as hours
    in which the host of a broker did other work.
    """

    SQUARES = "squares"
    HUBER = "huber"
    BISQUARE = "bisquare"


_HUBER: Final = 1.345
_BISQUARE: Final = 4.685
"""Tuning constants with 95 % efficiency for normal errors."""

MOST_PULL: Final = 3.0
"""The largest score of a censored row before the last phase, in standard deviations."""

NORMAL_MEDIAN: Final = 0.6744897501960817
"""The median of the absolute value of a standard normal variable."""

BINS: Final = 120
_LEAST_LOG10, _BINS_PER_DECADE = -3.0, 20


def weights(phase: Phase, off: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return weights and slopes of rows for standardised errors.

    The score of a row is weight times error; the slope is the derivative of the score.
    """
    if phase is Phase.SQUARES:
        return np.ones_like(off), np.ones_like(off)
    size = np.abs(off)
    if phase is Phase.HUBER:
        inside = size <= _HUBER
        return np.where(inside, 1.0, _HUBER / np.maximum(size, _HUBER)), inside.astype(np.float64)
    share = np.square(off / _BISQUARE)
    inside = share < 1.0
    rest = np.where(inside, 1.0 - share, 0.0)
    return rest * rest, np.where(inside, rest * (1.0 - 5.0 * share), 0.0)


def censored_weights(phase: Phase, force: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return weights and slopes of censored rows, given the slopes of their log-likelihood.

    The slope is the expected error of the row, and the row is weighted like one with that error: in
    the last phase a minute that is full in spite of little traffic has no weight, because another
    process used the host. In earlier phases its score is at most `MOST_PULL`.
    """
    if phase is Phase.BISQUARE:
        return weights(phase, force)
    damped = np.minimum(1.0, MOST_PULL / np.maximum(force, 1e-300))
    return damped, damped


def histogram_bins(size: FloatArray) -> "np.ndarray[tuple[int, ...], np.dtype[np.intp]]":
    """Return the histogram bin of each standardised absolute error."""
    with np.errstate(divide="ignore"):
        place = (np.log10(size) - _LEAST_LOG10) * _BINS_PER_DECADE
    return np.asarray(np.clip(np.nan_to_num(place, neginf=0.0), 0, BINS - 1).astype(np.intp))


def quantile(counts: FloatArray, fraction: float) -> FloatArray:
    """Return the quantile of standardised absolute errors by counts (..., `BINS`); NaN if empty."""
    reached = np.cumsum(counts, axis=-1)
    wanted = fraction * reached[..., -1:]
    bin_of = np.argmax(reached >= wanted, axis=-1)[..., np.newaxis]
    within = np.take_along_axis(counts, bin_of, axis=-1)
    before = np.take_along_axis(reached, bin_of, axis=-1) - within
    with np.errstate(invalid="ignore"):
        place = bin_of + (wanted - before) / within
    return np.asarray(10.0 ** (place / _BINS_PER_DECADE + _LEAST_LOG10))[..., 0]


"""Buckets of load, each a twentieth of the peak of the class. Rows of moves have their own."""

_NEAR: Final = 3.0
"""Distance from the threshold within which errors are cut off, in standard deviations."""


@dataclass(frozen=True, eq=False, kw_only=True)
class State:
    """The current fit: F `FITS`, U units, C classes, 5 resources, 6 scaled and centred rates.

    ``costs`` (F, C, 5, 6), ``background`` (F, U, 5) at the mean rates of the unit; ``deviation``
    (C, 5, `BUCKETS` + 1) is the scale of residuals in a bucket, ``balance`` (same shape) the weight
    of its rows, ``reach`` (C, 5) the 90th percentile of standardised absolute residuals.
    """

    costs: FloatArray
    background: FloatArray
    deviation: FloatArray
    balance: FloatArray
    reach: FloatArray
    phase: Phase

    @classmethod
    def beginning(cls, statistics: RowStatistics) -> "State":
        """Return the initial fit, in which all usage is background."""
        shape = (statistics.classes, RESOURCE_COUNT, BUCKETS + 1)
        floor = np.maximum(statistics.spread, least_deviation(statistics))
        return cls(
            costs=np.zeros((len(FITS), statistics.classes, RESOURCE_COUNT, RATE_COUNT)),
            background=np.repeat(statistics.usage[np.newaxis], len(FITS), axis=0),
            deviation=np.broadcast_to(floor[:, :, np.newaxis], shape).copy(),
            balance=np.ones(shape),
            reach=np.full(shape[:2], 2.0),
            phase=Phase.SQUARES,
        )

    def in_phase(self, phase: Phase) -> "State":
        return replace(self, phase=phase)


def least_deviation(statistics: RowStatistics) -> FloatArray:
    """Return (C, 5): the lower bound of deviations, a ten-thousandth of the peak."""
    return np.maximum(statistics.peak, 1e-9) * 1e-4


@dataclass(frozen=True, eq=False, kw_only=True)
class RowFit:
    """The rows of a unit at one fit; all arrays are (n, 5), except ``design`` (n, 7).

    ``weight`` and ``slope`` are those of the normal equations and of their derivative; ``pull`` is
    the contribution of each row to the gradient. All are 0 for unused rows. ``cut_off`` marks rows
    whose fit is so near the limit that larger usage cannot be observed: their errors are truncated
    and are not used for the scale.
    """

    design: FloatArray
    fitted: FloatArray
    deviation: FloatArray
    bucket: Ints
    cut_off: Flags
    used: Flags
    weight: FloatArray
    slope: FloatArray
    pull: FloatArray


def design(rows: Rows, statistics: RowStatistics, unit: int) -> FloatArray:
    """Return (n, 7): 1 for minutes and 0 for changes, and the scaled rates around their means."""
    level = rows.level[:, np.newaxis]
    centred = rows.rates - np.where(level, statistics.rates[unit], 0.0)
    return np.hstack(
        [level.astype(np.float64), centred / statistics.scale[statistics.class_of[unit]]]
    )


def row_fit(rows: Rows, statistics: RowStatistics, unit: int, state: State, fit: int) -> RowFit:
    number = int(statistics.class_of[unit])
    found = design(rows, statistics, unit)
    coefficients = np.hstack([state.background[fit, unit][:, None], state.costs[fit, number]])
    fitted = found @ coefficients.T
    bucket = _bucket(rows, fitted, statistics.peak[number])
    resource = np.arange(RESOURCE_COUNT)
    deviation = state.deviation[number, resource, bucket]
    full = full_rows(rows)
    used = ~np.isnan(rows.usage) & rows.of_fit(fit)[:, np.newaxis]
    off = np.where(used, (rows.usage - fitted) / deviation, 0.0)
    weight, slope = weights(state.phase, off)
    pulled = weight * off
    short = (THRESHOLD * rows.limit - fitted)[full] / deviation[full]
    force, curvature = pull(short)
    counted, steep = censored_weights(state.phase, force)
    weight[full], slope[full], pulled[full] = (
        curvature * counted,
        curvature * steep,
        force * counted,
    )
    share = np.where(used, state.balance[number, resource, bucket] / deviation, 0.0)
    return RowFit(
        design=found,
        fitted=fitted,
        deviation=deviation,
        bucket=bucket,
        cut_off=_cut_off(rows, fitted, deviation),
        used=used,
        weight=weight * share / deviation,
        slope=slope * share / deviation,
        pull=pulled * share,
    )


def normal_equations(statistics: RowStatistics, state: State) -> Summing:
    """Return a pass that yields the equations (F, 5, 7, 8) of units, and histograms of classes.

    The last column is the right-hand side. The histogram (5, `BUCKETS` + 1, bins) counts the
    standardised errors of the training rows.
    """

    def summing(batches: Iterator[Rows]) -> Iterator[tuple[int, FloatArray]]:
        for unit, rows in by_unit(batches):
            fits = [row_fit(rows, statistics, unit, state, fit) for fit in range(len(FITS))]
            yield unit, np.stack([_equations(one) for one in fits])
            yield -1 - int(statistics.class_of[unit]), _histogram(rows, fits[TRAINING])

    return summing


def _cut_off(rows: Rows, fitted: FloatArray, deviation: FloatArray) -> Flags:
    with np.errstate(invalid="ignore"):
        near = fitted + _NEAR * deviation >= THRESHOLD * rows.limit
    return np.asarray(near & (rows.limit > 0) & rows.level[:, np.newaxis])


def _bucket(rows: Rows, fitted: FloatArray, peak: FloatArray) -> Ints:
    place = np.floor(fitted / np.maximum(peak, 1e-300) * BUCKETS)
    bucket = np.clip(place, 0, BUCKETS - 1).astype(np.int64)
    return np.where(rows.level[:, np.newaxis], bucket, BUCKETS)


def _equations(one: RowFit) -> FloatArray:
    found = np.empty((RESOURCE_COUNT, 1 + RATE_COUNT, 2 + RATE_COUNT))
    for resource in range(RESOURCE_COUNT):
        weight = one.weight[:, resource]
        right = weight * one.fitted[:, resource] + one.pull[:, resource]
        found[resource, :, :-1] = one.design.T @ (one.design * weight[:, np.newaxis])
        found[resource, :, -1] = one.design.T @ right
    return found


def _histogram(rows: Rows, one: RowFit) -> FloatArray:
    counts = np.zeros((RESOURCE_COUNT, BUCKETS + 1, BINS))
    chosen = one.used & ~one.cut_off
    row, resource = np.nonzero(chosen)
    size = np.abs(rows.usage - one.fitted)[chosen] / one.deviation[chosen]
    np.add.at(counts, (resource, one.bucket[row, resource], histogram_bins(size)), 1.0)
    return counts

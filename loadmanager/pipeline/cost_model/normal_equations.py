"""What one pass over the rows adds up, given the fit so far: normal equations of every unit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_model import robust
from loadmanager.pipeline.cost_model.censoring import THRESHOLD, pull
from loadmanager.pipeline.cost_model.robust import Phase
from loadmanager.pipeline.cost_model.row_statistics import RowStatistics, full_rows
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
"""Of load: each a twentieth of the class' peak. Rows of moves are in one of their own."""

_NEAR: Final = 3.0
"""Deviations from the threshold within which errors are cut off."""


@dataclass(frozen=True, eq=False, kw_only=True)
class State:
    """A fit under way: F `FITS`, U units, C classes, 5 resources, 6 scaled and centred rates.

    ``costs`` (F, C, 5, 6), ``background`` (F, U, 5) at the unit's mean rates; ``deviation``
    and ``balance`` (C, 5, `BUCKETS` + 1) are how far rows of a bucket are off as a rule, and
    how much they count for being few or many.
    """

    costs: FloatArray
    background: FloatArray
    deviation: FloatArray
    balance: FloatArray
    reach: FloatArray
    phase: Phase

    @classmethod
    def beginning(cls, statistics: RowStatistics) -> "State":
        """Return a fit to begin with: everything is background."""
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
        """Return the same fit, to go on in another phase."""
        return replace(self, phase=phase)


def least_deviation(statistics: RowStatistics) -> FloatArray:
    """Return (C, 5): errors below a ten-thousandth of the peak count as that."""
    return np.maximum(statistics.peak, 1e-9) * 1e-4


@dataclass(frozen=True, eq=False, kw_only=True)
class RowFit:
    """One unit's rows as one fit sees them; all (n, 5).

    ``weight`` and ``slope`` are those of the normal equations and of their derivative;
    ``pull`` is what each row contributes to the gradient. All are 0 for what is not used.
    ``cut_off`` is where the fit is so near to full that larger usage than expected would
    not be seen: errors there are those that could be seen, and say nothing about the usual.
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
    """Return (n, 7): whether the background counts, and the scaled rates around their means."""
    level = rows.level[:, np.newaxis]
    centred = rows.rates - np.where(level, statistics.rates[unit], 0.0)
    return np.hstack(
        [level.astype(np.float64), centred / statistics.scale[statistics.class_of[unit]]]
    )


def row_fit(rows: Rows, statistics: RowStatistics, unit: int, state: State, fit: int) -> RowFit:
    """Return how a unit's rows stand to a fit."""
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
    weight, slope = robust.weights(state.phase, off)
    pulled = weight * off
    short = (THRESHOLD * rows.limit - fitted)[full] / deviation[full]
    force, curvature = pull(short)
    counted, steep = robust.censored_weights(state.phase, force)
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
    """Return a pass that gives each unit's (F, 5, 7, 8) equations and each class' histogram.

    The last column is the right-hand side. The histogram (5, `BUCKETS` + 1, bins) has the
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
    counts = np.zeros((RESOURCE_COUNT, BUCKETS + 1, robust.BINS))
    chosen = one.used & ~one.cut_off
    row, resource = np.nonzero(chosen)
    size = np.abs(rows.usage - one.fitted)[chosen] / one.deviation[chosen]
    np.add.at(counts, (resource, one.bucket[row, resource], robust.histogram_bins(size)), 1.0)
    return counts

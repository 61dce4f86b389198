"""Statistics of the rows before the fit: the means by which they are centred and scaled.

The demand of full brokers is only known to be at least the measured usage: usage at or above a
threshold counts as "at least the threshold" (a Tobit model, Tobin 1958). The score of such a row is
that of a normal distribution censored there, and vanishes if the fit lies well above the threshold.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import erfcx

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_model.rows import (
    ALL,
    RATE_COUNT,
    RESOURCE_COUNT,
    TRAINING,
    Flags,
    Ints,
    Rows,
    Source,
    by_block,
)

_ROWS, _RATES = 0, slice(1, 1 + RATE_COUNT)
_COUNTS = slice(_RATES.stop, _RATES.stop + RESOURCE_COUNT)
_USAGE = slice(_COUNTS.stop, _COUNTS.stop + RESOURCE_COUNT)
_SQUARES = slice(_USAGE.stop, _USAGE.stop + RESOURCE_COUNT)
_FULL = slice(_SQUARES.stop, _SQUARES.stop + RESOURCE_COUNT)
_BLOCKS, _CHANGES = _FULL.stop, _FULL.stop + 1
_WIDTH: Final = _CHANGES + 1

_PEAK_DEVIATIONS: Final = 3.0
THRESHOLD: Final = 0.9
"""Usage from this fraction of the limit on is a lower bound. The measured usage of a full broker
is its limit with the error of measurement, which is less than a tenth."""


def hazard(at: FloatArray) -> FloatArray:
    """Return the hazard of the standard normal distribution: density over upper tail at ``at``.

    It is the mean above ``at`` (the inverse Mills ratio): 0 far below 0, near ``at`` far above 0.
    """
    # erfcx overflows to infinity far below 0, where the hazard is 0.
    return np.asarray(math.sqrt(2.0 / math.pi) / erfcx(at / math.sqrt(2.0)))


def pull(at: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return first and second derivative of the log-likelihood of censored rows.

    ``at`` is the threshold less the fit, in standard deviations. The first is the slope in the fit,
    the second the negative curvature, from 0 to 1.
    """
    slope = hazard(at)
    return slope, np.clip(slope * (slope - at), 1e-12, 1.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class RowStatistics:
    """Counts and means of U units in C classes, over their minutes.

    ``rates`` (U, 6) and ``usage`` (U, 5) are means of all minutes, the ``trained`` ones those of
    the training blocks. ``scale`` (C, 6) are divisors of rates. ``spread`` (C, 5) is the standard
    deviation of usage within units, ``peak`` (C, 5) its approximate maximum. ``measured`` (C, 5)
    counts the minutes in which the resource was measured, ``full`` those that are lower bounds;
    ``changes`` (C,) counts the rows of moves.
    """

    class_of: Ints
    minutes: Ints
    rates: FloatArray
    usage: FloatArray
    trained_rates: FloatArray
    trained_usage: FloatArray
    scale: FloatArray
    spread: FloatArray
    peak: FloatArray
    measured: FloatArray
    full: FloatArray
    blocks: Ints
    changes: Ints

    @property
    def classes(self) -> int:
        return len(self.scale)

    def units_of(self, number: int) -> Ints:
        return np.flatnonzero(self.class_of == number).astype(np.int64)


def row_statistics(source: Source, class_of: Sequence[int]) -> RowStatistics:
    classes = np.asarray(class_of, dtype=np.int64)
    sums = source.sums(_summing)
    empty = np.zeros((2, _WIDTH))
    found = np.stack([sums.get(unit, empty) for unit in range(len(classes))])
    of_class = np.zeros((int(classes.max()) + 1, _WIDTH))
    np.add.at(of_class, classes, found[:, 0])
    rates, usage = _means(found[:, 0])
    trained_rates, trained_usage = _means(found[:, 1])
    scale, _ = _means(of_class)
    _, spread = _deviations(found[:, 0], classes, len(of_class))
    peak_mean, peak_spread = _deviations(of_class, np.arange(len(of_class)), len(of_class))
    return RowStatistics(
        class_of=classes,
        minutes=found[:, 0, _ROWS].astype(np.int64),
        rates=rates,
        usage=usage,
        trained_rates=trained_rates,
        trained_usage=trained_usage,
        scale=np.where(scale > 0, scale, 1.0),
        spread=spread,
        peak=peak_mean + _PEAK_DEVIATIONS * peak_spread,
        measured=of_class[:, _COUNTS],
        full=of_class[:, _FULL],
        blocks=of_class[:, _BLOCKS].astype(np.int64),
        changes=of_class[:, _CHANGES].astype(np.int64),
    )


def full_rows(rows: Rows) -> Flags:
    """Return (n, 5): which usages are lower bounds; rows of moves never are."""
    with np.errstate(invalid="ignore"):
        full = (rows.limit > 0) & (rows.usage >= THRESHOLD * rows.limit)
    return np.asarray(full & rows.level[:, np.newaxis])


def _summing(batches: Iterator[Rows]) -> Iterator[tuple[int, FloatArray]]:
    for unit, rows in by_block(batches):
        yield unit, np.stack([_of_block(rows, fit) for fit in (ALL, TRAINING)])


def _of_block(rows: Rows, fit: int) -> FloatArray:
    chosen = rows.take(rows.of_fit(fit))
    minutes = chosen.take(chosen.level)
    found = np.zeros(_WIDTH)
    known = ~np.isnan(minutes.usage)
    usage = np.where(known, minutes.usage, 0.0)
    found[_ROWS] = len(minutes)
    found[_RATES] = minutes.rates.sum(axis=0)
    found[_COUNTS] = known.sum(axis=0)
    found[_USAGE] = usage.sum(axis=0)
    found[_SQUARES] = np.square(usage).sum(axis=0)
    found[_FULL] = full_rows(minutes).sum(axis=0)
    found[_BLOCKS] = 1.0 if len(minutes) else 0.0
    found[_CHANGES] = len(chosen) - len(minutes)
    return found


def _means(sums: FloatArray) -> tuple[FloatArray, FloatArray]:
    rates = sums[:, _RATES] / np.maximum(sums[:, [_ROWS]], 1.0)
    return rates, sums[:, _USAGE] / np.maximum(sums[:, _COUNTS], 1.0)


def _deviations(sums: FloatArray, group: Ints, groups: int) -> tuple[FloatArray, FloatArray]:
    """Return the mean usage of each group, and the standard deviation within its rows."""
    counts = np.zeros((groups, RESOURCE_COUNT))
    usage, squares = counts.copy(), counts.copy()
    np.add.at(counts, group, sums[:, _COUNTS])
    np.add.at(usage, group, sums[:, _USAGE])
    own = sums[:, _SQUARES] - np.square(sums[:, _USAGE]) / np.maximum(sums[:, _COUNTS], 1.0)
    np.add.at(squares, group, np.maximum(own, 0.0))
    safe = np.maximum(counts, 1.0)
    return usage / safe, np.sqrt(squares / safe)

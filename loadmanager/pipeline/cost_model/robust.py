"""Robust weights of residuals, and estimates of their scale."""

from enum import Enum
from typing import Final

import numpy as np

from loadmanager.core.scores import FloatArray


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

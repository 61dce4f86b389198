"""Outliers: how much a minute counts by how far off it is, and how far off is usual."""

from enum import Enum
from typing import Final

import numpy as np

from loadmanager.core.scores import FloatArray


class Phase(Enum):
    """How rows far from the fit are treated: the fit begins with the first and ends with the last.

    Huber's weights find the neighbourhood of the best fit from anywhere; the bisquare then
    leaves out what is far from it, such as hours in which a broker's host did other work.
    """

    SQUARES = "squares"
    HUBER = "huber"
    BISQUARE = "bisquare"


_HUBER: Final = 1.345
_BISQUARE: Final = 4.685
"""Both lose 5 % of efficiency where errors are normal."""

MOST_PULL: Final = 3.0
"""Deviations that a censored row which the fit denies may pull by before the last phase."""

NORMAL_MEDIAN: Final = 0.6744897501960817
"""The median of the absolute value of a standard normal error."""

BINS: Final = 120
_LEAST_LOG10, _BINS_PER_DECADE = -3.0, 20


def weights(phase: Phase, off: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the weights of rows and the slopes of what they pull, by their standardised errors.

    A row pulls by weight times error; the slope is that product's derivative.
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
    """Return the weights of censored rows and the slopes of what they pull, by their pulls.

    Its pull is the mean of the errors that a row may have, and it counts as one that is so far off:
    in the end a minute that is full in spite of its traffic counts for nothing, for then
    another process filled the host. On the way there it pulls by `MOST_PULL` at most.
    """
    if phase is Phase.BISQUARE:
        return weights(phase, force)
    damped = np.minimum(1.0, MOST_PULL / np.maximum(force, 1e-300))
    return damped, damped


def histogram_bins(size: FloatArray) -> "np.ndarray[tuple[int, ...], np.dtype[np.intp]]":
    """Return the bin of each standardised absolute error; `quantile` reads counts of them."""
    with np.errstate(divide="ignore"):
        place = (np.log10(size) - _LEAST_LOG10) * _BINS_PER_DECADE
    return np.asarray(np.clip(np.nan_to_num(place, neginf=0.0), 0, BINS - 1).astype(np.intp))


def quantile(counts: FloatArray, fraction: float) -> FloatArray:
    """Return the quantile of standardised absolute errors by counts (..., `BINS`); NaN of none."""
    reached = np.cumsum(counts, axis=-1)
    wanted = fraction * reached[..., -1:]
    bin_of = np.argmax(reached >= wanted, axis=-1)[..., np.newaxis]
    within = np.take_along_axis(counts, bin_of, axis=-1)
    before = np.take_along_axis(reached, bin_of, axis=-1) - within
    with np.errstate(invalid="ignore"):
        place = bin_of + (wanted - before) / within
    return np.asarray(10.0 ** (place / _BINS_PER_DECADE + _LEAST_LOG10))[..., 0]

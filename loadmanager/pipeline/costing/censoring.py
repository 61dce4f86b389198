"""Minutes of full brokers: what was asked of them is known to be that much or more.

Usage at or above a threshold counts as "at least the threshold" (a Tobit model): the row
pulls the fit up as much as the normal distribution says of a value cut off there, and not
at all once the fit itself lies well above.
"""

import math
from typing import Final

import numpy as np

from loadmanager.core.scores import FloatArray

THRESHOLD: Final = 0.9
"""Usage from this fraction of the limit on is a lower bound. A full broker shows its limit
times the error of measuring; a tenth below is out of reach of that error."""

# Chebyshev coefficients of log(erfc(x) e^(x^2) / t), t = 1 / (1 + x / 2): Numerical Recipes'
# erfcc, relative error below 1.2e-7 everywhere.
_COEFFICIENTS: Final = (
    -1.26551223,
    1.00002368,
    0.37409196,
    0.09678418,
    -0.18628806,
    0.27886807,
    -1.13520398,
    1.48851587,
    -0.82215223,
    0.17087277,
)


def hazard(at: FloatArray) -> FloatArray:
    """Return the standard normal density over the probability of lying above ``at``.

    It is the mean of what lies above. Far below 0 it is 0, far above 0 it tends to ``at``.
    """
    size = np.abs(at) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.5 * size)
    log_scaled = np.zeros_like(t)
    for coefficient in reversed(_COEFFICIENTS):
        log_scaled = log_scaled * t + coefficient
    scaled = t * np.exp(log_scaled)  # erfc(size) * exp(size^2)
    above = math.sqrt(2.0 / math.pi) / scaled
    squeezed = np.exp(-0.5 * np.square(np.minimum(np.abs(at), 38.0)))
    below = squeezed / math.sqrt(2.0 * math.pi) / (1.0 - 0.5 * scaled * squeezed)
    return np.asarray(np.where(at > 0, above, below))


def pull(at: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return how hard censored rows pull and how that changes with the fit.

    ``at`` is the threshold less the fit, in standard deviations: the first is the slope of
    the log-likelihood in the fit, the second (0 to 1) its curvature.
    """
    slope = hazard(at)
    return slope, np.clip(slope * (slope - at), 1e-12, 1.0)

"""Minutes of full brokers: what was asked of them is known to be that much or more.

Usage at or above a threshold counts as "at least the threshold" (a Tobit model): the row
pulls the fit up as much as the normal distribution says of a value cut off there, and not
at all once the fit itself lies well above.
"""

import math
from typing import Final

import numpy as np
from scipy.special import erfcx

from loadmanager.core.scores import FloatArray

THRESHOLD: Final = 0.9
"""Usage from this fraction of the limit on is a lower bound. A full broker shows its limit
times the error of measuring; a tenth below is out of reach of that error."""


def hazard(at: FloatArray) -> FloatArray:
    """Return the standard normal density over the probability of lying above ``at``.

    It is the mean of what lies above. Far below 0 it is 0, far above 0 it tends to ``at``.
    """
    # erfcx overflows to infinity far below 0, where the hazard is 0.
    return np.asarray(math.sqrt(2.0 / math.pi) / erfcx(at / math.sqrt(2.0)))


def pull(at: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return how hard censored rows pull and how that changes with the fit.

    ``at`` is the threshold less the fit, in standard deviations: the first is the slope of
    the log-likelihood in the fit, the second (0 to 1) its curvature.
    """
    slope = hazard(at)
    return slope, np.clip(slope * (slope - at), 1e-12, 1.0)

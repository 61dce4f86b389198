"""Minutes of full brokers, whose demand is only known to be at least the measured usage.

Usage at or above a threshold counts as "at least the threshold" (a Tobit model, Tobin 1958): the
score of the row is that of a normal distribution censored there, and vanishes if the fit lies well
above the threshold.
"""

import math
from typing import Final

import numpy as np
from scipy.special import erfcx

from loadmanager.core.scores import FloatArray

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

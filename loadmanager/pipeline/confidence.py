"""Half-widths of 90 % intervals, in standard errors."""

from statistics import NormalDist
from typing import Final

from scipy.special import stdtrit

_SHARE: Final = 0.95
"""Each end of the interval excludes one case in twenty."""

NORMAL_95: Final = NormalDist().inv_cdf(_SHARE)
"""The 95th percentile of the standard normal distribution: 1.645."""


def student_95(freedom: int) -> float:
    """Return the 95th percentile of Student's t distribution.

    Raises:
        ValueError: there is less than one degree of freedom.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom: {freedom}; expected 1 or more")
    return float(stdtrit(freedom, _SHARE))

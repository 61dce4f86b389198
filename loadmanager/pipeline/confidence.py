"""How far from an estimate its 90 % interval ends, in standard errors."""

from statistics import NormalDist
from typing import Final

from scipy.special import stdtrit

_SHARE: Final = 0.95
"""The interval leaves out one case of twenty at either end."""

NORMAL_95: Final = NormalDist().inv_cdf(_SHARE)
"""What a normal distribution exceeds in one of twenty cases: 1.645."""


def student_95(freedom: int) -> float:
    """Return what Student's t exceeds in one of twenty cases.

    Raises:
        ValueError: there is no t distribution without a degree of freedom.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom: {freedom}; expected 1 or more")
    return float(stdtrit(freedom, _SHARE))

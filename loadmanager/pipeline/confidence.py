"""How far from an estimate its 90 % interval ends, in standard errors."""

from math import pi, sqrt, tan
from statistics import NormalDist
from typing import Final

_SHARE: Final = 0.95
"""The interval leaves out one case of twenty at either end."""

NORMAL_95: Final = NormalDist().inv_cdf(_SHARE)
"""What a normal distribution exceeds in one of twenty cases: 1.645."""


def student_95(freedom: int) -> float:
    """Return what Student's t exceeds in one of twenty cases.

    One and two degrees of freedom have a closed form; the others the expansion about the
    normal's, good to 0.05 %: Abramowitz and Stegun, Handbook of Mathematical Functions (1964),
    26.7.5.

    Raises:
        ValueError: there is no t distribution without a degree of freedom.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom: {freedom}; expected 1 or more")
    if freedom == 1:
        return tan(pi * (_SHARE - 0.5))
    if freedom == 2:  # noqa: PLR2004 - the other that has a closed form
        return (2 * _SHARE - 1) * sqrt(1 / (2 * _SHARE * (1 - _SHARE)))
    x, n = NORMAL_95, float(freedom)
    first = (x**3 + x) / 4
    second = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    third = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    fourth = (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160
    return x + first / n + second / n**2 + third / n**3 + fourth / n**4

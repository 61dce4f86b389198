"""Confidence intervals of terms, under the constraint that no term is negative.

A 90 % interval of a term consists of the values that are compatible with the rows when all other
terms take their best non-negative values (a profile interval). Two terms that cannot be separated
get intervals from 0 to the cost of both together.
"""

from typing import Final

import numpy as np

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.confidence import student_95
from loadmanager.pipeline.cost_model.regression import NonNegative
from loadmanager.pipeline.cost_model.rows import RATE_COUNT

_STEPS: Final = 40
_RIDGE: Final = 1e-8
"""Relative to the precision; avoids a division by 0 in undetermined directions."""


def interval(
    term: int, free: FloatArray, precision: FloatArray, most: float, freedom: int
) -> tuple[float, float]:
    """Return the 90 % interval of one term.

    ``free`` are the unconstrained estimates, and ``precision`` is the inverse of their covariance.
    ``most`` is the upper bound of the term.
    """
    if precision[term, term] <= 0.0:
        return 0.0, most
    distance = _Distance(term, free, precision)
    best = distance.best()
    allowed = distance(best) + student_95(freedom) ** 2
    low = 0.0 if distance(0.0) <= allowed else _edge(distance, best, 0.0, allowed)
    high = most if distance(most) <= allowed else _edge(distance, min(best, most), most, allowed)
    return low, max(low, high)


class _Distance:
    """The distance of the rows from a value of a term, minimised over the other terms."""

    def __init__(self, term: int, free: FloatArray, precision: FloatArray) -> None:
        size = np.sqrt(np.maximum(np.diag(precision), 0.0))
        self._scale = np.where(size > 0, size, 1.0)
        ridge = np.diag(np.where(size > 0, _RIDGE, 1.0))
        self._precision = precision / np.outer(self._scale, self._scale) + ridge
        self._free = free * self._scale
        self._term = term
        free = np.arange(RATE_COUNT) != term
        others = self._precision[free]
        self._inner = NonNegative(others[:, free])
        self._cross = others[:, term]
        self._right = others @ self._free
        self._constant = float(self._free @ self._precision @ self._free)

    def best(self) -> float:
        """Return the value of the term with the least distance."""
        target = self._precision @ self._free
        found, _ = NonNegative(self._precision).least(target)
        return float(found[self._term] / self._scale[self._term])

    def __call__(self, value: float) -> float:
        """Return the squared distance, in standard deviations."""
        scaled = value * self._scale[self._term]
        target = self._right - self._cross * scaled
        _, depth = self._inner.least(target)
        own = self._precision[self._term]
        fixed = float(own[self._term]) * scaled * scaled - 2.0 * scaled * float(own @ self._free)
        return float(2.0 * depth + fixed + self._constant)


def _edge(distance: _Distance, inside: float, outside: float, allowed: float) -> float:
    """Return where the distance reaches ``allowed``, by bisection."""
    for _ in range(_STEPS):
        middle = (inside + outside) / 2.0
        inside, outside = (middle, outside) if distance(middle) <= allowed else (inside, middle)
    return (inside + outside) / 2.0

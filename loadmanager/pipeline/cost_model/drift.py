"""Drift of costs: a comparison of fits to the first and to the last half of the history."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_model.combining import Estimate

_SURE: Final = 3.5
"""Standard deviations: one false alarm in two thousand unchanged terms."""

_WORTH_TELLING: Final = 0.1
_MOST_TIMES: Final = 10.0


@dataclass(frozen=True, slots=True)
class Drift:
    """The relative change of a cost; ``sure`` if it is significant.

    10 is the largest value: the relative growth of a cost of 0 is not defined.
    """

    fraction: float
    sure: bool


def drift_of(term: int, first: Estimate, last: Estimate) -> Drift | None:
    """Return the change of a term; None if one half does not identify it."""
    direction = np.zeros(len(first.free))
    direction[term] = 1.0
    return _along(direction, first, last)


def drift_of_all(first: Estimate, last: Estimate) -> Drift | None:
    """Return the change of the cost of typical traffic, which is known better than its terms."""
    varied = (np.diag(first.gram) > 0) & (np.diag(last.gram) > 0)
    return _along(varied.astype(np.float64), first, last) if varied.any() else None


def _along(direction: FloatArray, first: Estimate, last: Estimate) -> Drift | None:
    if not (first.knows(direction) and last.knows(direction)):
        return None
    before, after = float(direction @ first.costs), float(direction @ last.costs)
    change = float(direction @ (last.free - first.free))
    deviation = float(np.sqrt(direction @ (first.covariance + last.covariance) @ direction))
    size = max(before, after)
    fraction = (
        (after - before) / before if before > size / _MOST_TIMES else np.sign(after) * _MOST_TIMES
    )
    changed = deviation > 0 and abs(change) > _SURE * deviation
    return Drift(float(fraction), changed and abs(after - before) > _WORTH_TELLING * size)

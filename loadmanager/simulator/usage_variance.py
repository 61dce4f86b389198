"""The recent variance of the usage of all brokers, as in `core.usage_samples` for one."""

from collections import deque
from typing import Final

import numpy as np

from loadmanager.core.columns import Indices, Mask
from loadmanager.core.rates import six_digits
from loadmanager.core.scores import RESOURCES, FloatArray
from loadmanager.core.usage_samples import MOST_SAMPLES

_FEWEST: Final = 2
_UNKNOWN: Final = np.full(len(RESOURCES), np.nan)


class VariedUsage:
    """The last samples of each broker since its bundles changed.

    Args:
        interval_s: interval of the samples of an agent. A longer step has one sample, therefore
            samples also expire by age.
    """

    def __init__(self, interval_s: float) -> None:
        self._kept_s = MOST_SAMPLES * interval_s
        self._taken: deque[tuple[float, FloatArray, Mask]] = deque(maxlen=MOST_SAMPLES)

    def begin(self, rows: Indices) -> None:
        for _, _, sampled in self._taken:
            sampled[rows] = False

    def add(self, now_s: float, usage: FloatArray, sampled: Mask) -> None:
        self._taken.append((now_s, usage, sampled.copy()))
        while self._taken[0][0] <= now_s - self._kept_s:
            self._taken.popleft()

    def of(self, row: int) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of each resource of a broker, NaN without two samples."""
        found = [usage[row] for _, usage, sampled in self._taken if sampled[row]]
        if len(found) < _FEWEST:
            return _UNKNOWN, _UNKNOWN
        samples = np.stack(found)
        return _rounded(samples.mean(axis=0)), _rounded(samples.var(axis=0, ddof=1))


def _rounded(figures: FloatArray) -> FloatArray:
    return np.array([six_digits(one) for one in figures.tolist()])

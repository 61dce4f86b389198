"""Least squares without negative costs, exactly: a handful of terms has few cases."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.scores import FloatArray


@cache
def _faces(terms: int) -> NDArray[np.bool_]:
    """Return all sets of terms that may differ from 0, (2 ** terms, terms)."""
    return (np.arange(2**terms)[:, np.newaxis] >> np.arange(terms) & 1).astype(np.bool_)


class NonNegative:
    """Where ``x'Gx / 2 - t'x`` is least with no negative ``x``, for one G and any t.

    ``gram`` (p, p) is positive definite. Each of the 2^p sets of terms has one candidate;
    the best that is not negative is the answer.
    """

    def __init__(self, gram: FloatArray) -> None:
        faces = _faces(gram.shape[0])
        both = faces[:, :, np.newaxis] & faces[:, np.newaxis, :]
        systems = np.where(both, gram, np.eye(gram.shape[0]))
        self._inverses = np.where(both, np.linalg.inv(systems), 0.0)

    def least(self, target: FloatArray) -> tuple[FloatArray, float]:
        """Return the place for ``target`` (p,), and how small it is there."""
        candidates = self._inverses @ target
        depth = -0.5 * (candidates @ target)
        slack = -1e-12 * np.abs(candidates).max(initial=0.0)
        depth = np.where((candidates >= slack).all(axis=1), depth, np.inf)
        best = int(np.argmin(depth))
        return np.maximum(candidates[best], 0.0), float(depth[best])

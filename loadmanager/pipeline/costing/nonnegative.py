"""Least squares without negative costs, exactly: a handful of terms has few cases."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.scores import FloatArray


@cache
def _faces(terms: int) -> NDArray[np.bool_]:
    """Return all sets of terms that may differ from 0, (2 ** terms, terms)."""
    return (np.arange(2**terms)[:, np.newaxis] >> np.arange(terms) & 1).astype(np.bool_)


def minima(gram: FloatArray, target: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return where ``x'Gx / 2 - t'x`` is least with no negative ``x``, and how small it is.

    ``gram`` (p, p) is positive definite; ``target`` (m, p) may be many. Each of the 2^p
    sets of terms has one candidate; the best that is not negative is the answer.
    """
    terms = gram.shape[0]
    faces = _faces(terms)
    both = faces[:, :, np.newaxis] & faces[:, np.newaxis, :]
    systems = np.where(both, gram, np.eye(terms))
    inverses = np.where(both, np.linalg.inv(systems), 0.0)
    candidates = np.einsum("fij,mj->mfi", inverses, target)
    depth = -0.5 * np.einsum("mfi,mi->mf", candidates, target)
    smallest = np.abs(candidates).max(axis=(1, 2), initial=0.0)[:, np.newaxis, np.newaxis]
    allowed = (candidates >= -1e-12 * smallest).all(axis=2)
    depth = np.where(allowed, depth, np.inf)
    best = np.argmin(depth, axis=1)
    chosen = np.arange(len(target))
    return np.maximum(candidates[chosen, best], 0.0), depth[chosen, best]

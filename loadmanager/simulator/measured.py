"""The true state in one step, without errors of measurement."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.columns import Indices, Mask
from loadmanager.core.scores import FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """The true state in one step: B brokers and K bundles in the rows of the world.

    ``owner`` is the row of the broker that serves each bundle, -1 for none. ``rates`` (K, 4) are
    the served rates, in the order of `core.averages`: a saturated broker serves less than the
    demand. ``usage`` and ``limit`` (B, 5) are in the units of load reports and in the order of
    `core.scores.RESOURCES`.
    """

    owner: Indices
    rates: FloatArray
    topics: NDArray[np.int64]
    producers: NDArray[np.int64]
    consumers: NDArray[np.int64]
    usage: FloatArray
    limit: FloatArray
    present: Mask
    draining: Mask
    started_at_ms: NDArray[np.int64]

"""How far the fullest broker is from the mean, by message and byte rates, before and after moves.

It is what an observer without usage and limits of brokers can say of a cluster.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.lower_bound import lower_bound

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
Flags = NDArray[np.bool_]

LEAST_RATE_PER_S: Final = 1e-9
"""A rate whose mean over the brokers is below this is ignored."""

LEAST_SHARE: Final = 1e-12
"""A bundle with less than this fraction of a broker's mean counts as idle in that rate."""


@dataclass(frozen=True, slots=True)
class RateMove:
    """One move: the indices of the bundle, of its source and of its target.

    ``max_over_mean`` is the value for the cluster after this move and all moves before it.
    """

    bundle: int
    source: int
    target: int
    max_over_mean: float


@dataclass(frozen=True, slots=True)
class RatePlan:
    """The planned moves, each evaluated after the preceding ones.

    ``max_over_mean`` is the largest load of any rate over its mean before all moves, and
    ``least_max_over_mean`` a proven lower bound of it for any assignment of these bundles.
    """

    moves: tuple[RateMove, ...]
    max_over_mean: float
    least_max_over_mean: float

    @property
    def planned_max_over_mean(self) -> float:
        return self.moves[-1].max_over_mean if self.moves else self.max_over_mean


def rate_plan(
    rates: Floats, owner: Places, brokers: int, moves: Iterable[tuple[int, int]]
) -> RatePlan:
    """Return the plan of ``moves``: indices of bundles and targets, in order.

    Args:
        rates: (K, R) of each bundle, not negative, such as messages and bytes per second.
        owner: (K,) the index of each bundle's broker.
        brokers: the number of brokers, at least 1.
        moves: chosen by a strategy or by policies.
    """
    sizes, at, found = over_mean(rates, brokers), owner.copy(), list[RateMove]()
    loads = np.zeros((brokers, sizes.shape[1]))
    np.add.at(loads, owner, sizes)
    before = _largest(loads)
    for bundle, target in moves:
        source = int(at[bundle])
        loads[source] -= sizes[bundle]
        loads[target] += sizes[bundle]
        at[bundle] = target
        found.append(RateMove(bundle, source, target, _largest(loads)))
    return RatePlan(tuple(found), before, _least(sizes, brokers))


def over_mean(rates: Floats, brokers: int) -> Floats:
    """Return sizes relative to the mean of a broker, without rates that are zero."""
    means = rates.sum(axis=0) / brokers
    busy = means > LEAST_RATE_PER_S
    found: Floats = rates[:, busy] / means[busy]
    # Such small values are noise, and division by them may overflow.
    found[found < LEAST_SHARE] = 0.0
    return found


def _largest(loads: Floats) -> float:
    return float(loads.max()) if loads.size else 1.0


def _least(sizes: Floats, brokers: int) -> float:
    if not sizes.size:
        return 1.0
    shape = (brokers, sizes.shape[1])
    same_class = np.zeros(brokers, dtype=np.intp)
    return lower_bound(sizes[None], np.zeros(shape), np.ones(shape), same_class)

"""Evens out message and byte rates by single moves, regardless of resources.

For brokers that are equal, or for which only traffic is known. The state is a matrix of loads,
brokers by rates, each rate divided by its mean over the brokers, so that 1.0 is the mean. The
potential is the sum of squares of all entries: a convex measure with its minimum where every
broker has the mean of every rate. Each step takes the fullest broker from which any move lowers
the potential, and chooses the bundle and target that lower it most. No move makes its target
fuller than its source was, so the fullest broker after a plan is never fuller than the fullest
before it.
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

GREEDY_RATE: Final = "greedy_rate"
"""Name of these moves in options and in history."""

CLOSE_ENOUGH: Final = 0.02
"""A broker that exceeds the mean of each rate by at most this fraction sheds no bundle.

Neither does a broker whose helpful bundles amount to no more than that in total.
"""

LEAST_GAIN: Final = (0.04, 0.1)
"""Least reduction of the potential by a move: factors of the bundle's size and its square.

Without the bundle, the source must be fuller than the target by half of that. The threshold
scales with the bundle, and so does not depend on the size of the cluster.
"""

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


def plan_even_rates(
    rates: Floats,
    owner: Places,
    brokers: int,
    *,
    movable: Flags,
    kind: Places,
    gives: Flags,
    takes: Flags,
    most_moves: int,
) -> RatePlan:
    """Return the moves that even out the rates.

    Args:
        rates: (K, R) of each bundle, not negative, such as messages and bytes per second.
        owner: (K,) the index of each bundle's broker.
        brokers: the number of brokers, at least 1.
        movable: (K,) which bundles may move; the others still count as load.
        kind: (K,) the index of each bundle's kind in ``takes``.
        gives: (B,) which brokers may shed bundles.
        takes: (C, B) which brokers may take bundles of each kind.
        most_moves: the maximum number of moves.
    """
    plan, may_move = _Planning(rates, owner, brokers), movable.copy()
    while len(plan.moves) < most_moves:
        found = _best_move(plan, may_move=may_move, kind=kind, gives=gives, takes=takes)
        if found is None:
            break
        plan.move(*found)
        # A bundle moves at most once in a plan: its clients are interrupted once.
        may_move[found[0]] = False
    return plan.done()


def rate_plan(
    rates: Floats, owner: Places, brokers: int, moves: Iterable[tuple[int, int]]
) -> RatePlan:
    """Return the plan of moves chosen elsewhere: indices of bundles and targets, in order.

    The other arguments are those of `plan_even_rates`.
    """
    plan = _Planning(rates, owner, brokers)
    for bundle, target in moves:
        plan.move(bundle, target)
    return plan.done()


class _Planning:
    def __init__(self, rates: Floats, owner: Places, brokers: int) -> None:
        self.sizes = over_mean(rates, brokers)
        self.loads = np.zeros((brokers, self.sizes.shape[1]))
        np.add.at(self.loads, owner, self.sizes)
        self.owner = owner.copy()
        self.moves: list[RateMove] = []
        self._before = _largest(self.loads)

    def move(self, bundle: int, target: int) -> None:
        source = int(self.owner[bundle])
        self.loads[source] -= self.sizes[bundle]
        self.loads[target] += self.sizes[bundle]
        self.owner[bundle] = target
        self.moves.append(RateMove(bundle, source, target, _largest(self.loads)))

    def done(self) -> RatePlan:
        return RatePlan(tuple(self.moves), self._before, _least(self.sizes, len(self.loads)))


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


def _best_move(
    plan: _Planning, *, may_move: Flags, kind: Places, gives: Flags, takes: Flags
) -> tuple[int, int] | None:
    """Return the bundle and target that lower the potential most, None if none is worth it."""
    sizes, loads, owner = plan.sizes, plan.loads, plan.owner
    if not loads.size:
        return None
    fullness = loads.max(axis=1)
    taking = takes.any(axis=0)
    for source in np.argsort(-fullness, kind="stable"):
        if fullness[source] <= 1.0 + CLOSE_ENOUGH:
            return None
        if not gives[source]:
            continue
        here = np.flatnonzero((owner == source) & may_move & (sizes.sum(axis=1) > 0))
        targets = np.flatnonzero(taking & (np.arange(len(loads)) != source))
        if not len(here) or not len(targets):
            continue
        size = sizes[here]
        room = loads[source] - loads[targets]
        # (bundles, targets): 2x(x + target - source), summed over the rates.
        change = 2 * ((size * size).sum(axis=1)[:, None] - size @ room.T)
        fuller = (loads[targets] + size[:, None]).max(axis=2) > fullness[source]
        by_size, by_square = LEAST_GAIN
        least = (size * (by_size + by_square * size)).sum(axis=1)
        change[fuller | (-change < least[:, None]) | ~takes[kind[here]][:, targets]] = 0.0
        helps = size[change.min(axis=1) < 0.0].sum(axis=0)
        if helps.max() <= CLOSE_ENOUGH:
            continue
        bundle, target = divmod(int(change.argmin()), len(targets))
        return int(here[bundle]), int(targets[target])
    return None

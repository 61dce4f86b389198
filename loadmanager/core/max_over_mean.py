"""How far the fullest broker is from the mean, by message and byte rates, before and after moves.

It is what an observer without usage and limits of brokers can say of a cluster. In any assignment
some broker has the largest bundle: if moves cannot bring the fullest broker near the mean, bundles
that are a large fraction of it are split between two of their topics, into parts that are alike.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.lower_bound import lower_bound
from loadmanager.core.plan import Move
from loadmanager.core.rates import Rates

Floats = NDArray[np.float64]

LEAST_RATE_PER_S: Final = 1e-9
"""A rate whose mean over the brokers is below this is ignored."""

LEAST_SHARE: Final = 1e-12
"""A bundle with less than this fraction of a broker's mean counts as idle in that rate."""

NEAR_ENOUGH: Final = 1.10
"""No bundle is split if moves bring the fullest broker to at most this multiple of the mean."""

LEAST_CUT: Final = 0.25
"""A bundle with less than this fraction of a broker's mean is small enough."""


@dataclass(frozen=True, slots=True)
class RatePlan:
    """The largest load of any rate over its mean: before all moves, and ``after`` each of them.

    ``least_max_over_mean`` is a proven lower bound of it for any assignment of these bundles.
    """

    max_over_mean: float
    least_max_over_mean: float
    after: tuple[float, ...] = ()

    @property
    def planned_max_over_mean(self) -> float:
        return self.after[-1] if self.after else self.max_over_mean


def rate_plan(
    owned: Mapping[BrokerId, Mapping[BundleId, Rates]], moves: Iterable[Move] = ()
) -> RatePlan:
    place = {broker: number for number, broker in enumerate(owned)}
    rows = [(bundle, place[at]) for at, bundles in owned.items() for bundle in bundles]
    rates = [
        (one.msgs_per_s, one.bytes_per_s) for every in owned.values() for one in every.values()
    ]
    sizes = over_mean(np.array(rates, dtype=float).reshape(-1, 2), max(len(owned), 1))
    loads, after = np.zeros((len(owned), sizes.shape[1])), list[float]()
    np.add.at(loads, np.array([at for _, at in rows], dtype=np.intp), sizes)
    before, row_of = _largest(loads), {bundle: row for row, (bundle, _) in enumerate(rows)}
    for move in moves:
        row = row_of[move.bundle]
        loads[rows[row][1]] -= sizes[row]
        loads[place[move.target]] += sizes[row]
        after.append(_largest(loads))
    return RatePlan(before, _least(sizes, len(owned)), tuple(after))


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


def worth_cutting(share_of_mean: float, planned_max_over_mean: float) -> bool:
    """Return whether a bundle's size prevents an even distribution of the load."""
    return planned_max_over_mean > NEAR_ENOUGH and share_of_mean >= LEAST_CUT


def best_split_point(upper: int, loads: Iterable[tuple[int, float]]) -> int | None:
    """Return where to split a bundle so that the loads of its parts are as equal as possible.

    Args:
        upper: the bundle's upper bound.
        loads: positions of its topics with their loads; topics without load are ignored.

    Returns:
        The first position of the second part; None if no split leaves load on both sides.
    """
    found = sorted((position, load) for position, load in loads if load > 0)
    total = sum(load for _, load in found)
    cuts: list[tuple[float, int]] = []
    left = 0.0
    for (before, load), (after, _) in pairwise(found):
        left += load
        cut = max(before + 1, before + (after - before) // 2)
        if before < after and cut < upper:
            cuts.append((abs(total - 2 * left), cut))
    return min(cuts)[1] if cuts else None

"""A proven lower bound of the largest demand: the best possible balance of a cluster.

To assign every bundle to a broker so that the largest fraction of any resource is minimal is
NP-hard, so the optimum is not computed. Instead a bound is computed that no assignment can be
below, after any number of moves. It is the largest of these, each the exact solution of an
easier problem (a relaxation):

1. Background. What other processes use on a broker stays there.
2. Volume, one resource at a time, bundles divisible like water. For a level L the room
   of broker b is ``L * capacity - background``; as no broker may be above L, not even by
   its background, all rooms together must hold all bundles:
   ``L >= (sum of sizes + sum of backgrounds) / sum of capacities``.
3. The heaviest bundles, one at a time, indivisible, all resources at once: a bundle is
   on some broker, which has at least its own background and that bundle.
4. Counting, one resource at a time. The i largest bundles are at least as large as the
   i-th, and a broker has room for ``floor(room / that size)`` such: at a level at which
   the brokers have room for fewer than i, not all can be placed. With n equal brokers
   this includes the well-known bounds by the n+1-th largest (two of those are together) and by
   the k*n+1-th largest (k+1 do).

If a bundle costs differently on brokers of several classes, 2 and 4 need a single size for it.
Any weights ``s`` of the classes above zero are valid: with ``size = min over classes of cost /
s`` the cost on a broker is at least ``size * s`` of its class, and after its capacity and
background are divided by ``s``, a bundle has the same size on all brokers. Two choices are
tried: 1, so that the size is the bundle's cost on the cheapest class, and the class's mean cost
over all bundles, which is exact if one class is slower than another by the same factor for every
bundle.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_HEAVIEST: Final = 64
"""The number of bundles considered one at a time; any number is valid, more are slower."""

_COUNTED_PER_BROKER: Final = 4
"""The maximum number of the largest bundles per broker that are counted."""

_COUNTS: Final = 400
"""The number of counts tried, besides k*n+1, which are the tightest for equal brokers."""

_HALVINGS: Final = 40

_SLACK: Final = 1e-9
"""Fraction of a bundle by which a room is enlarged: rounding must never raise a bound."""


def lower_bound(
    cost: Floats,
    background: Floats,
    capacity: Floats,
    class_of: NDArray[np.intp],
    present: NDArray[np.bool_] | None = None,
) -> float:
    """Return a lower bound of the largest demand of any resource of any broker, a fraction.

    Args:
        cost: (C, K, R) the cost of each bundle on a broker of each class, by resource.
        background: (B, R) usage of each broker regardless of bundles; units of ``capacity``.
        capacity: (B, R) above zero, in the units of ``cost``.
        class_of: (B,) the class of each broker.
        present: (B,) which brokers exist; None for all.

    Returns:
        The bound; NaN without a broker.
    """
    of = _of_present(cost, background, capacity, class_of, present)
    if not len(of.class_of):
        return float("nan")
    bound = float((of.background / of.capacity).max())
    if not of.cost.shape[1]:
        return bound
    bound = max(bound, _heaviest(of))
    for size, used, room in _of_one_size(of):
        bound = max(bound, float(((size.sum(axis=0) + used.sum(axis=0)) / room.sum(axis=0)).max()))
        for resource in range(size.shape[1]):
            bound = _counting(bound, size[:, resource], used[:, resource], room[:, resource])
    return bound


def water_levels(
    cost: Floats,
    background: Floats,
    capacity: Floats,
    class_of: NDArray[np.intp],
    present: NDArray[np.bool_] | None = None,
) -> Floats:
    """Return (R,) the level of each resource if bundles were divisible like water.

    The bundles fill the brokers with the lowest backgrounds first, as water fills connected
    vessels. No assignment has all brokers below the level of a resource. The arguments are those
    of `lower_bound`; NaN without a broker.
    """
    of = _of_present(cost, background, capacity, class_of, present)
    levels = np.full(capacity.shape[1], np.nan)
    if not len(of.class_of):
        return levels
    for size, used, room in _of_one_size(of):
        levels = np.fmax(levels, _water_level(size.sum(axis=0), used, room))
    return levels


class _Problem(NamedTuple):
    cost: Floats
    cheapest: Floats
    background: Floats
    capacity: Floats
    class_of: NDArray[np.intp]


def _of_present(
    cost: Floats,
    background: Floats,
    capacity: Floats,
    class_of: NDArray[np.intp],
    present: NDArray[np.bool_] | None,
) -> _Problem:
    if present is not None:
        background, capacity, class_of = background[present], capacity[present], class_of[present]
    classes, class_of = np.unique(class_of, return_inverse=True)
    cost = cost[classes]
    cheapest = cost.min(axis=0) if len(cost) else np.zeros(cost.shape[1:])
    return _Problem(cost, cheapest, background, capacity, class_of)


def _water_level(amount: Floats, background: Floats, capacity: Floats) -> Floats:
    """Return (R,) the level at which the rooms above the backgrounds hold the amounts."""
    order = np.argsort(background / capacity, axis=0, kind="stable")
    used = np.take_along_axis(background, order, axis=0).cumsum(axis=0)
    room = np.take_along_axis(capacity, order, axis=0).cumsum(axis=0)
    # Fill the vessels from the lowest background; the right number of them has the lowest level.
    return np.asarray(((amount + used) / room).min(axis=0))


def _of_one_size(of: _Problem) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Yield sizes (K, R), backgrounds and capacities for each choice of class weights."""
    yield of.cheapest, of.background, of.capacity
    if len(of.cost) == 1:
        return
    total = of.cost.sum(axis=1)
    weights = np.where(total > 0, total / max(of.cost.shape[1], 1), 1.0)
    scale = weights[of.class_of]
    yield (of.cost / weights[:, None, :]).min(axis=0), of.background / scale, of.capacity / scale


def _heaviest(of: _Problem) -> float:
    """Return the bound by single bundles, each on the broker that suits it best."""
    share = (of.cheapest / of.capacity.max(axis=0)).max(axis=1)
    few = min(_HEAVIEST, len(share))
    heaviest = np.argpartition(share, len(share) - few)[-few:]
    # (few, B, R): the demand of each broker with its background and that bundle alone.
    alone = of.cost[:, heaviest].swapaxes(0, 1)[:, of.class_of] + of.background
    return float((alone / of.capacity).max(axis=2).min(axis=1).max())


def _counts(brokers: int, most: int) -> NDArray[np.intp]:
    """Return the counts of bundles to check: a limited number of counts, and each k*n+1."""
    step = max(1, _COUNTED_PER_BROKER * brokers // _COUNTS)
    spread = np.arange(1, most + 1, step, dtype=np.intp)
    return np.union1d(spread, np.arange(1, most + 1, brokers, dtype=np.intp))


def _counting(bound: float, size: Floats, background: Floats, capacity: Floats) -> float:
    """Return the bound by counting, or ``bound`` if that is larger.

    Rooms grow with the level, so what fits at one level fits at all higher levels: bisection
    checks only the counts that did not fit at the lower end.
    """
    most = min(_COUNTED_PER_BROKER * len(capacity) + 1, len(size))
    largest = np.sort(np.partition(size, len(size) - most)[-most:])[::-1]
    wanted = _counts(len(capacity), int(np.count_nonzero(largest)))
    largest = largest[wanted - 1]

    def fits(level: float) -> NDArray[np.bool_]:
        room = np.maximum(level * capacity - background, 0.0)
        with np.errstate(over="ignore"):  # An overflow to infinity means that there is enough room.
            count = np.floor(room[None, :] / largest[:, None] + _SLACK).sum(axis=1)
        return np.asarray(count >= wanted)

    low = bound
    missing = ~fits(low)
    if not missing.any():
        return bound
    largest, wanted = largest[missing], wanted[missing]
    # At this level everything counted fits.
    high = float(((background + largest[0] * wanted[-1]) / capacity).max())
    for _ in range(_HALVINGS):
        level = (low + high) / 2
        missing = ~fits(level)
        if missing.any():
            low, largest, wanted = level, largest[missing], wanted[missing]
        else:
            high = level
    return low

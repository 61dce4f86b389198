"""How evenly the load could lie at best: a proven lower bound of the largest demand.

To give every bundle to a broker so that the largest fraction of any resource becomes
smallest is NP-hard, so the best is not computed. What is computed here can be reached
by no assignment, in any number of moves. It is the largest of these,
each the exact answer to an easier problem (a relaxation):

1. Background. What other processes use on a broker stays there.
2. Volume, one resource at a time, bundles divisible like water. For a level L the room
   of broker b is ``L * capacity - background``; as no broker may be above L, not even by
   its background, all rooms together must hold all bundles:
   ``L >= (sum of sizes + sum of backgrounds) / sum of capacities``.
3. The heaviest bundles, one at a time, indivisible, all resources at once: a bundle lies
   on some broker, which has at least its own background and that bundle.
4. Counting, one resource at a time. The i largest bundles are at least as large as the
   i-th, and a broker has room for ``floor(room / that size)`` such: at a level at which
   the brokers have room for fewer than i, not all can be placed. With n equal brokers
   this contains the well-known bounds by the n+1-th largest (two of those lie together)
   and by the k*n+1-th largest (k+1 do).

Where brokers of several classes spend differently on the same bundle, 2 and 4 need one
size for it. Weights ``s`` of the classes are chosen, anything above zero being right:
with ``size = min over classes of cost / s`` the cost on a broker is at least ``size * s``
of its class, and dividing its capacity and background by ``s`` leaves brokers on which
all sizes are alike. Two choices are tried: 1, which is a bundle's cost on the cheapest
class, and the class's cost for all bundles, which is exact where one class is slower
than another by the same factor for every bundle.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_HEAVIEST: Final = 64
"""So many bundles are looked at one at a time; any number is right, and more are slower."""

_COUNTED_PER_BROKER: Final = 4
"""The most of the largest bundles for each broker that are counted."""

_COUNTS: Final = 400
"""Counts looked at, besides k*n+1, which say most where brokers are alike."""

_HALVINGS: Final = 40

_SLACK: Final = 1e-9
"""A room is taken to be larger by so much of a bundle: rounding must never raise a bound."""


def lower_bound(
    cost: Floats,
    background: Floats,
    capacity: Floats,
    class_of: NDArray[np.intp],
    present: NDArray[np.bool_] | None = None,
) -> float:
    """Return what the largest demand of any resource of any broker is at least, a fraction.

    Args:
        cost: (C, K, R) what each bundle costs on a broker of each class, of each resource.
        background: (B, R) what is used on each broker with any owners of bundles; as ``capacity``.
        capacity: (B, R) above zero, in the units of ``cost``.
        class_of: (B,) the class of each broker.
        present: (B,) which brokers there are; None for all.

    Returns:
        The bound; NaN without a broker.
    """
    cost, background, capacity, class_of = _of_present(
        cost, background, capacity, class_of, present
    )
    if not len(class_of):
        return float("nan")
    bound = float((background / capacity).max())
    if not cost.shape[1]:
        return bound
    cheapest = cost.min(axis=0)
    bound = max(bound, _heaviest(cost, cheapest, background, capacity, class_of))
    for size, used, room in _of_one_size(cost, cheapest, background, capacity, class_of):
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
    """Return (R,) how high each resource would stand if bundles were divisible like water.

    The bundles fill the brokers that their own background leaves lowest, as water fills
    vessels that are joined. No assignment has all brokers below the level of a resource,
    unless backgrounds alone are above it. The arguments are those of `lower_bound`; NaN
    without a broker.
    """
    cost, background, capacity, class_of = _of_present(
        cost, background, capacity, class_of, present
    )
    levels = np.full(capacity.shape[1], np.nan)
    if not len(class_of):
        return levels
    for size, used, room in _of_one_size(cost, cost.min(axis=0), background, capacity, class_of):
        found = _water_level(size.sum(axis=0), used, room)
        levels = np.fmax(levels, found)
    return levels


def _of_present(
    cost: Floats,
    background: Floats,
    capacity: Floats,
    class_of: NDArray[np.intp],
    present: NDArray[np.bool_] | None,
) -> tuple[Floats, Floats, Floats, NDArray[np.intp]]:
    """Return the arguments for the brokers there are, with the classes that they have."""
    if present is not None:
        background, capacity, class_of = background[present], capacity[present], class_of[present]
    classes, class_of = np.unique(class_of, return_inverse=True)
    return cost[classes], background, capacity, class_of


def _water_level(amount: Floats, background: Floats, capacity: Floats) -> Floats:
    """Return (R,) the level at which the rooms above the backgrounds hold the amounts."""
    order = np.argsort(background / capacity, axis=0, kind="stable")
    used = np.take_along_axis(background, order, axis=0).cumsum(axis=0)
    room = np.take_along_axis(capacity, order, axis=0).cumsum(axis=0)
    # Of the vessels filled from the lowest on, the number that gives the lowest level.
    return np.asarray(((amount + used) / room).min(axis=0))


def _of_one_size(
    cost: Floats,
    cheapest: Floats,
    background: Floats,
    capacity: Floats,
    class_of: NDArray[np.intp],
) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Yield sizes (K, R), backgrounds and capacities for each choice of the classes' weights."""
    yield cheapest, background, capacity
    if len(cost) == 1:
        return
    total = cost.sum(axis=1)
    weights = np.where(total > 0, total / max(cost.shape[1], 1), 1.0)
    size = (cost / weights[:, None, :]).min(axis=0)
    scale = weights[class_of]
    yield size, background / scale, capacity / scale


def _heaviest(
    cost: Floats,
    cheapest: Floats,
    background: Floats,
    capacity: Floats,
    class_of: NDArray[np.intp],
) -> float:
    """Return the bound by single bundles: each on the broker that is best for it alone."""
    share = (cheapest / capacity.max(axis=0)).max(axis=1)
    few = min(_HEAVIEST, len(share))
    heaviest = np.argpartition(share, len(share) - few)[-few:]
    # (few, B, R): what each broker would have with its background and that bundle alone.
    alone = (cost[:, heaviest].swapaxes(0, 1)[:, class_of] + background) / capacity
    return float(alone.max(axis=2).min(axis=1).max())


def _counts(brokers: int, most: int) -> NDArray[np.intp]:
    """Return how many bundles to ask room for: few enough, and each k*n+1."""
    step = max(1, _COUNTED_PER_BROKER * brokers // _COUNTS)
    spread = np.arange(1, most + 1, step, dtype=np.intp)
    return np.union1d(spread, np.arange(1, most + 1, brokers, dtype=np.intp))


def _counting(bound: float, size: Floats, background: Floats, capacity: Floats) -> float:
    """Return the bound by counting, or ``bound`` if that is larger already.

    Rooms only grow with the level, so what has room at one level has it at all higher
    ones: halving looks only at the counts that did not fit at the lower end.
    """
    most = min(_COUNTED_PER_BROKER * len(capacity) + 1, len(size))
    largest = np.sort(np.partition(size, len(size) - most)[-most:])[::-1]
    wanted = _counts(len(capacity), int(np.count_nonzero(largest)))
    largest = largest[wanted - 1]

    def fits(level: float) -> NDArray[np.bool_]:
        room = np.maximum(level * capacity - background, 0.0)
        with np.errstate(over="ignore"):  # Room for more than can be counted is room enough.
            count = np.floor(room[None, :] / largest[:, None] + _SLACK).sum(axis=1)
        return np.asarray(count >= wanted)

    low = bound
    missing = ~fits(low)
    if not missing.any():
        return bound
    largest, wanted = largest[missing], wanted[missing]
    # With all that is counted on the largest broker, and its background, all of it fits.
    high = float(((background + largest[0] * wanted[-1]) / capacity).max())
    for _ in range(_HALVINGS):
        level = (low + high) / 2
        missing = ~fits(level)
        if missing.any():
            low, largest, wanted = level, largest[missing], wanted[missing]
        else:
            high = level
    return low

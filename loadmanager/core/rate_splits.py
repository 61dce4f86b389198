"""Which bundles are too large to even out by moves, and where to cut them.

A bundle is one piece: however bundles are assigned, some broker has the largest one. Where
moves cannot bring the fullest broker near the mean, bundles that are a large part of a mean
are cut between two of their topics so that both parts have traffic, as alike as can be.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

NEAR_ENOUGH: Final = 1.10
"""Nothing is cut where moves bring the fullest broker to this many times the mean."""

LEAST_SHARE: Final = 0.25
"""A bundle with less than so much of a broker's mean is small enough."""


def worth_cutting(share_of_mean: float, planned_max_over_mean: float) -> bool:
    """Return whether a bundle's size keeps the load from lying evenly."""
    return planned_max_over_mean > NEAR_ENOUGH and share_of_mean >= LEAST_SHARE


def evenest_cut(upper: int, loads: Iterable[tuple[int, float]]) -> int | None:
    """Return where to cut a bundle so that its parts have loads as alike as can be.

    Args:
        upper: the bundle's upper bound.
        loads: positions of its topics with their loads; those without load do not count.

    Returns:
        The first position of the second part; None if no cut leaves load on both sides.
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

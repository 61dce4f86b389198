"""Determines which bundles are too large to even out by moves, and where to split them.

A bundle is indivisible: in any assignment some broker has the largest one. If moves cannot bring
the fullest broker near the mean, bundles that are a large fraction of the mean are split between
two of their topics, so that the traffic of both parts is as equal as possible.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

NEAR_ENOUGH: Final = 1.10
"""No bundle is split if moves bring the fullest broker to at most this multiple of the mean."""

LEAST_SHARE: Final = 0.25
"""A bundle with less than this fraction of a broker's mean is small enough."""


def worth_cutting(share_of_mean: float, planned_max_over_mean: float) -> bool:
    """Return whether a bundle's size prevents an even distribution of the load."""
    return planned_max_over_mean > NEAR_ENOUGH and share_of_mean >= LEAST_SHARE


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

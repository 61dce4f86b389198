from collections.abc import Iterable, Mapping
from typing import Final

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average, BundleAverages
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace, namespace_of, range_of
from loadmanager.core.rates import Rates
from loadmanager.core.seed import Expected

SEEDED_SHORT_SAMPLES: Final = 1
"""The profile of this hour has the weight of one report: first a half, then a third."""

SEEDED_LONG_SAMPLES: Final = 30
"""Of the 1,000 samples of a long-term average: with a sample every ten seconds, reports have the
same weight after five minutes, and nine times the weight after three quarters of an hour."""


def seeded(
    bundles: Mapping[BundleId, Expected], boundaries: Mapping[Namespace, Boundaries]
) -> dict[BundleId, BundleAverages]:
    """Return the assumed averages of every bundle that a seed covers.

    If the ``boundaries`` of a namespace have changed, each current bundle receives a share of
    every former bundle that it overlaps, in proportion to the width of the ranges, and none if
    its range is not fully covered. For a namespace without boundaries, which may be created
    later, the bundles are used unchanged.
    """
    found: dict[BundleId, BundleAverages] = {}
    cut: dict[Namespace, list[BundleId]] = {}
    for bundle, expected in bundles.items():
        now = boundaries.get(namespace_of(bundle))
        if now is None or now.at(range_of(bundle)[0]) == bundle:
            found[bundle] = _averages(expected)
        else:
            cut.setdefault(namespace_of(bundle), []).append(bundle)
    for namespace, former in cut.items():
        ranges = [(*range_of(one), bundles[one]) for one in former]
        for present in boundaries[namespace].bundles:
            expected_now = None if present in bundles else _overlapped(range_of(present), ranges)
            if expected_now is not None:
                found[present] = _averages(expected_now)
    return found


def _overlapped(
    present: tuple[int, int], ranges: Iterable[tuple[int, int, Expected]]
) -> Expected | None:
    lower, upper = present
    parts = []
    covered = 0
    for low, high, expected in ranges:
        width = min(upper, high) - max(lower, low)
        if width > 0:
            covered += width
            parts.append((width / (high - low), expected))
    if covered != upper - lower:
        return None
    return Expected(
        now=_sum((share, one.now) for share, one in parts),
        long=_sum((share, one.long) for share, one in parts),
        long_samples=min(one.long_samples for _, one in parts),
        topics=round(sum(share * one.topics for share, one in parts)),
    )


def _sum(parts: Iterable[tuple[float, Rates]]) -> Rates:
    weighted = [[share * rate for rate in rates.row()] for share, rates in parts]
    return Rates(*(sum(column) for column in zip(*weighted, strict=True)))


def _averages(expected: Expected) -> BundleAverages:
    long_samples = min(SEEDED_LONG_SAMPLES, expected.long_samples)
    return BundleAverages(
        Average(SHORT_SAMPLES, SEEDED_SHORT_SAMPLES, expected.now),
        Average(LONG_SAMPLES, long_samples, expected.long),
        expected.topics,
    )

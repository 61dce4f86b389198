"""From a seed to averages of the bundles there are now, which may have been cut since."""

from collections.abc import Iterable, Mapping
from typing import Final

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average, BundleAverages
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace, namespace_of, range_of
from loadmanager.core.rates import Rates
from loadmanager.core.seed import Expected

SEEDED_SHORT_SAMPLES: Final = 1
"""What a profile says of this hour counts as much as the first report: half, then a third."""

SEEDED_LONG_SAMPLES: Final = 30
"""Of 1,000 that fill a long-term average: with a sample each ten seconds, reports count as much
after five minutes, and nine times as much after three quarters of an hour."""


def seeded(
    bundles: Mapping[BundleId, Expected], boundaries: Mapping[Namespace, Boundaries]
) -> dict[BundleId, BundleAverages]:
    """Return the assumed averages of every bundle that a seed covers.

    Bundles of a namespace with other ``boundaries`` now stand for the ranges they had: each
    present bundle gets its part of all that it overlaps, by the width of their ranges, and
    none if some of its range is not covered. Of a namespace without boundaries, which may be
    created yet, the bundles are taken as they are.
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
    """Return the sum of the overlapping parts; None if they do not cover all of it."""
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

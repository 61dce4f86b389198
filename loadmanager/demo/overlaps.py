"""Serving intervals on the hash circle: no two brokers serve a topic at the same time."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise

from loadmanager.core.ids import BundleId, Namespace, bundle_id, namespace_of, range_of
from loadmanager.reference_broker.changes import ServingInterval


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A range of one namespace without a bound of any bundle inside it."""

    namespace: Namespace
    lower: int
    upper: int

    def __str__(self) -> str:
        """Return the name of the bundle with that range."""
        return bundle_id(self.namespace, self.lower, self.upper)


def segments(bundles: Iterable[BundleId]) -> Mapping[BundleId, tuple[Segment, ...]]:
    """Return the segments of each bundle."""
    wanted = set(bundles)
    bounds: defaultdict[Namespace, set[int]] = defaultdict(set)
    for bundle in wanted:
        bounds[namespace_of(bundle)].update(range_of(bundle))
    cut = {
        namespace: [Segment(namespace, *pair) for pair in pairwise(sorted(found))]
        for namespace, found in bounds.items()
    }
    return {bundle: _within(bundle, cut[namespace_of(bundle)]) for bundle in wanted}


def _within(bundle: BundleId, of_namespace: Iterable[Segment]) -> tuple[Segment, ...]:
    lower, upper = range_of(bundle)
    return tuple(one for one in of_namespace if lower <= one.lower and one.upper <= upper)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Two broker processes served a common part of the hash circle at the same time."""

    first: ServingInterval
    second: ServingInterval
    start_s: float
    end_s: float

    def __str__(self) -> str:
        """Return a sentence."""
        return (
            f"{self.second.bundle} was served by {self.first.broker} (token "
            f"{self.first.fencing_token}) and {self.second.broker} (token "
            f"{self.second.fencing_token}) from {self.start_s:.3f} s to {self.end_s:.3f} s"
        )


def overlaps(intervals: Iterable[ServingInterval]) -> list[Overlap]:
    """Return every pair of intervals that violates the rule of one owner, in order of time.

    Two violate it if two processes served bundles of one namespace whose ranges have a position in
    common, for longer than zero seconds. This includes a bundle and a half of it, which hold the
    same topics. One process may serve both, as during a split.
    """
    found: list[Overlap] = []
    ordered = sorted(intervals, key=lambda one: (namespace_of(one.bundle), range_of(one.bundle)))
    for _, of_namespace in groupby(ordered, key=lambda one: namespace_of(one.bundle)):
        found += _overlaps_by_position(of_namespace)
    return sorted(found, key=lambda overlap: overlap.start_s)


def share_positions(one: BundleId, other: BundleId) -> bool:
    """Return whether both bundles could hold the same topic."""
    if namespace_of(one) != namespace_of(other):
        return False
    (one_lower, one_upper), (other_lower, other_upper) = range_of(one), range_of(other)
    return max(one_lower, other_lower) < min(one_upper, other_upper)


def _overlaps_by_position(ordered: Iterator[ServingInterval]) -> Iterator[Overlap]:
    """Yield the overlaps within a namespace; the intervals are ordered by their lower bounds.

    In the order of positions, not of times, each interval is only compared with those of the same
    bundle, of its parents and of its parts, however many bundles are served at a time.
    """
    open_ones: list[ServingInterval] = []
    for interval in ordered:
        lower = range_of(interval.bundle)[0]
        open_ones = [one for one in open_ones if range_of(one.bundle)[1] > lower]
        for other in open_ones:
            earlier, later = sorted((other, interval), key=lambda one: one.start_s)
            end_s = min(earlier.end_s, later.end_s)
            if earlier.incarnation != later.incarnation and end_s > later.start_s:
                yield Overlap(first=earlier, second=later, start_s=later.start_s, end_s=end_s)
        open_ones.append(interval)

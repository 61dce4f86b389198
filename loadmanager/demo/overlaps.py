"""Serving intervals on the hash circle: no two brokers serve a topic at the same time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from loadmanager.core.ids import namespace_of, range_of
from loadmanager.reference_broker.changes import ServingInterval


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Two broker processes served a common part of the hash circle at the same time."""

    first: ServingInterval
    second: ServingInterval
    start_s: float
    end_s: float

    def __str__(self) -> str:
        return (
            f"{self.second.bundle} was served by {self.first.broker} (token "
            f"{self.first.fencing_token}) and {self.second.broker} (token "
            f"{self.second.fencing_token}) from {self.start_s:.3f} s to {self.end_s:.3f} s"
        )


def overlaps(intervals: Iterable[ServingInterval]) -> list[Overlap]:
    """Return every pair of intervals that violates the rule of one owner, in order of time.

    Two violate it if two processes served bundles of one namespace whose ranges have a position in
    common, such as a bundle and a half of it. One process may serve both, as during a split.
    """
    found: list[Overlap] = []
    ordered = sorted(intervals, key=lambda one: (namespace_of(one.bundle), range_of(one.bundle)))
    for _, of_namespace in groupby(ordered, key=lambda one: namespace_of(one.bundle)):
        found += _overlaps_by_position(of_namespace)
    return sorted(found, key=lambda overlap: overlap.start_s)


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

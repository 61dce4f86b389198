"""Spells of serving on the hash circle: no two brokers serve a topic at the same time."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Protocol

from loadmanager.core.ids import BundleId, Namespace, bundle_id, namespace_of, range_of


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A range of one namespace that no bundle in sight cuts."""

    namespace: Namespace
    lower: int
    upper: int

    def __str__(self) -> str:
        """Return it as the bundle of that range."""
        return bundle_id(self.namespace, self.lower, self.upper)


def segments(bundles: Iterable[BundleId]) -> Mapping[BundleId, tuple[Segment, ...]]:
    """Return, for each bundle, the segments that it is made of."""
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


class Spell(Protocol):
    """One broker process served one bundle under one grant, from ``start_s`` to ``end_s``.

    Times are on a clock that all processes share. ``end_s`` is infinite when nothing
    says that it ended.
    """

    @property
    def broker(self) -> str:
        """``host:port``."""

    @property
    def incarnation(self) -> str:
        """Which process of this broker; another one after each start."""

    @property
    def bundle(self) -> BundleId:
        """The bundle that was served."""

    @property
    def fencing_token(self) -> int:
        """The grant it was served under; later grants have higher ones."""

    @property
    def start_s(self) -> float:
        """When serving began."""

    @property
    def end_s(self) -> float:
        """When serving ended."""

    @property
    def ended_by_command(self) -> bool:
        """Whether its sidecar had the broker stop, as in a hand-over: nothing was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Two broker processes served a common part of the hash circle at the same time."""

    first: Spell
    second: Spell
    start_s: float
    end_s: float

    def __str__(self) -> str:
        """Return it as a sentence."""
        return (
            f"{self.second.bundle} was served by {self.first.broker} (token "
            f"{self.first.fencing_token}) and {self.second.broker} (token "
            f"{self.second.fencing_token}) from {self.start_s:.3f} s to {self.end_s:.3f} s"
        )


def overlaps(spells: Iterable[Spell]) -> list[Overlap]:
    """Return every pair of spells that breaks the rule of one owner.

    Two break it when two processes served bundles of one namespace whose ranges have a
    position in common, for longer than no time. A bundle and a half of it count: they
    hold the same topics. One process may serve both, as in the middle of a split.
    """
    found: list[Overlap] = []
    ordered = sorted(spells, key=lambda one: (namespace_of(one.bundle), range_of(one.bundle)))
    for _, of_namespace in groupby(ordered, key=lambda one: namespace_of(one.bundle)):
        found += _overlaps_by_position(of_namespace)
    return sorted(found, key=lambda overlap: overlap.start_s)


def share_positions(one: BundleId, other: BundleId) -> bool:
    """Return whether a topic could lie in both."""
    if namespace_of(one) != namespace_of(other):
        return False
    (one_lower, one_upper), (other_lower, other_upper) = range_of(one), range_of(other)
    return max(one_lower, other_lower) < min(one_upper, other_upper)


def _overlaps_by_position(ordered: Iterator[Spell]) -> Iterator[Overlap]:
    """Yield the overlaps of a namespace's spells, ordered by where their ranges begin.

    Going through positions rather than times compares each spell with those of its own
    bundle and of its wholes and parts alone, however many bundles are served at a time.
    """
    open_ones: list[Spell] = []
    for spell in ordered:
        lower = range_of(spell.bundle)[0]
        open_ones = [one for one in open_ones if range_of(one.bundle)[1] > lower]
        for other in open_ones:
            earlier, later = sorted((other, spell), key=lambda one: one.start_s)
            end_s = min(earlier.end_s, later.end_s)
            if earlier.incarnation != later.incarnation and end_s > later.start_s:
                yield Overlap(first=earlier, second=later, start_s=later.start_s, end_s=end_s)
        open_ones.append(spell)

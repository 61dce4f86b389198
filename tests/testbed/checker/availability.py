"""How long bundles were not served, and whether a disturbance explains it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadmanager.core.ids import BundleId, Namespace, bundle_id, namespace_of, range_of
from loadmanager.reference_broker.changes import EndReason, ServingInterval

_BY_COMMAND = {EndReason.UNLOADED, EndReason.REGRANTED}


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A range of one namespace without a bound of any bundle inside it."""

    namespace: Namespace
    lower: int
    upper: int

    def __str__(self) -> str:
        return bundle_id(self.namespace, self.lower, self.upper)


def segments(bundles: Iterable[BundleId]) -> Mapping[BundleId, tuple[Segment, ...]]:
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


def share_positions(one: BundleId, other: BundleId) -> bool:
    if namespace_of(one) != namespace_of(other):
        return False
    (one_lower, one_upper), (other_lower, other_upper) = range_of(one), range_of(other)
    return max(one_lower, other_lower) < min(one_upper, other_upper)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """A fault was present from ``began_s`` to ``healed_s``, and may have effects a while longer.

    ``within_s`` after ``healed_s`` every bundle must be served again. A fault from which the
    cluster recovers by itself, such as a killed process, is healed at the time when it began.
    ``began_s`` is read before the fault is injected. ``brokers`` are the names of the affected
    brokers; an empty set means all, as when ZooKeeper is gone.
    """

    what: str
    began_s: float
    healed_s: float
    within_s: float
    brokers: frozenset[str] = frozenset()

    @property
    def due_s(self) -> float:
        return self.healed_s + self.within_s

    def hit(self, broker: str) -> bool:
        return not self.brokers or broker in self.brokers


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """A part of the hash circle that no broker served from ``start_s`` to ``end_s``.

    ``left_by`` is the broker that served it last, "" for none. ``handed_over`` says that this
    broker stopped by a command, and not by the loss of a lease or of its process.
    """

    start_s: float
    end_s: float
    segment: Segment
    left_by: str = ""
    handed_over: bool = False

    @property
    def lasted_s(self) -> float:
        return self.end_s - self.start_s

    def __str__(self) -> str:
        how = f", which {self.left_by} {'let go' if self.handed_over else 'lost'},"
        return (
            f"{self.segment}{how if self.left_by else ''} was not served "
            f"for {self.lasted_s:.3f} s from {self.start_s:.3f} s"
        )


def gaps(
    intervals: Iterable[ServingInterval],
    bundles: Iterable[BundleId],
    *,
    from_s: float,
    until_s: float,
) -> list[Gap]:
    """Return the times from ``from_s`` to ``until_s`` in which a part of ``bundles`` had no owner.

    A part counts as served if any bundle that holds it was served.
    """
    intervals, expected = list(intervals), set(bundles)
    made_of = segments(expected | {one.bundle for one in intervals})
    served: defaultdict[Segment, list[ServingInterval]] = defaultdict(list)
    for one in intervals:
        for segment in made_of[one.bundle]:
            served[segment].append(one)
    wanted = {segment for bundle in expected for segment in made_of[bundle]}
    return sorted(
        gap for segment in wanted for gap in _free_times(segment, served[segment], from_s, until_s)
    )


def beyond_hand_overs(found: Iterable[Gap], hand_over_s: float) -> list[Gap]:
    """Return the gaps that are not a hand-over of up to ``hand_over_s``.

    In a hand-over, by its record, the former broker stopped by a command. The loss of a lease or of
    a process is none, however short the gap is.
    """
    return [gap for gap in found if not (gap.handed_over and gap.lasted_s <= hand_over_s)]


def unaccounted(
    found: Iterable[Gap], disturbances: Iterable[Disturbance], *, hand_over_s: float
) -> list[Gap]:
    """Return the gaps that are neither a hand-over nor explained by a disturbance."""
    known = list(disturbances)
    return [
        gap
        for gap in beyond_hand_overs(found, hand_over_s)
        if not any(_explains(one, gap, hand_over_s) for one in known)
    ]


def _explains(disturbance: Disturbance, gap: Gap, hand_over_s: float) -> bool:
    """Return whether a gap began during a disturbance and ended when it was due.

    A loss must be that of an affected broker. A hand-over may have been on its way to an affected
    broker: it may have begun before the disturbance.
    """
    if gap.end_s > disturbance.due_s:
        return False
    if gap.handed_over:
        return disturbance.began_s - hand_over_s <= gap.start_s
    return disturbance.began_s <= gap.start_s and disturbance.hit(gap.left_by)


def recovery_s(found: Iterable[Gap], disturbance: Disturbance, *, hand_over_s: float) -> float:
    """Return how long after ``healed_s`` the last part was served again; 0 without a gap.

    Hand-overs do not count, nor gaps that ended before the disturbance or began after it was due.
    """
    ends = [
        gap.end_s
        for gap in beyond_hand_overs(found, hand_over_s)
        if disturbance.began_s < gap.end_s and gap.start_s <= disturbance.due_s
    ]
    return max(0.0, max(ends, default=disturbance.healed_s) - disturbance.healed_s)


def _free_times(
    segment: Segment, intervals: Sequence[ServingInterval], from_s: float, until_s: float
) -> Iterator[Gap]:
    last: ServingInterval | None = None
    for one in sorted(intervals, key=lambda interval: interval.start_s):
        yield from _between(segment, last, one.start_s, from_s, until_s)
        if last is None or one.end_s > last.end_s:
            last = one
    yield from _between(segment, last, until_s, from_s, until_s)


def _between(
    segment: Segment, last: ServingInterval | None, next_s: float, from_s: float, until_s: float
) -> Iterator[Gap]:
    start_s = from_s if last is None else max(from_s, last.end_s)
    end_s = min(next_s, until_s)
    if start_s < end_s:
        left_by, commanded = (last.broker, last.why in _BY_COMMAND) if last else ("", False)
        yield Gap(start_s, end_s, segment, left_by, commanded)

"""How long bundles were not served, and whether a fault accounts for it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadmanager.core.ids import BundleId
from loadmanager.testbed.checker.serving import Segment, Spell, segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Something was broken from ``began_s`` to ``healed_s``, and may be felt a while longer.

    ``within_s`` after ``healed_s`` every bundle has to be served again. What the cluster
    has to get over by itself, such as a killed process, is healed the moment it began.
    ``began_s`` is read before anything is broken. ``brokers`` are those that were hit, by
    their names; none named are all, as when ZooKeeper is gone.
    """

    what: str
    began_s: float
    healed_s: float
    within_s: float
    brokers: frozenset[str] = frozenset()

    @property
    def due_s(self) -> float:
        """When all has to be well again."""
        return self.healed_s + self.within_s

    def hit(self, broker: str) -> bool:
        """Return whether this broker, or its sidecar, was hit."""
        return not self.brokers or broker in self.brokers


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """A part of the hash circle that no broker served from ``start_s`` to ``end_s``.

    ``left_by`` is the broker that served it last, "" for none. ``handed_over`` says that it was
    ordered to stop, and lost nothing.
    """

    start_s: float
    end_s: float
    segment: Segment
    left_by: str = ""
    handed_over: bool = False

    @property
    def lasted_s(self) -> float:
        """How long no broker served it."""
        return self.end_s - self.start_s

    def __str__(self) -> str:
        """Return it as a sentence."""
        how = f", which {self.left_by} {'let go' if self.handed_over else 'lost'},"
        return (
            f"{self.segment}{how if self.left_by else ''} was not served "
            f"for {self.lasted_s:.3f} s from {self.start_s:.3f} s"
        )


def gaps(
    spells: Iterable[Spell], bundles: Iterable[BundleId], *, from_s: float, until_s: float
) -> list[Gap]:
    """Return every time between ``from_s`` and ``until_s`` in which a part of ``bundles`` was free.

    It counts as served if a bundle that holds it was, be it the whole or a part.
    """
    spells, expected = list(spells), set(bundles)
    made_of = segments(expected | {one.bundle for one in spells})
    served: defaultdict[Segment, list[Spell]] = defaultdict(list)
    for one in spells:
        for segment in made_of[one.bundle]:
            served[segment].append(one)
    wanted = {segment for bundle in expected for segment in made_of[bundle]}
    return sorted(
        gap for segment in wanted for gap in _free_times(segment, served[segment], from_s, until_s)
    )


def beyond_hand_overs(found: Iterable[Gap], hand_over_s: float) -> list[Gap]:
    """Return the gaps that are more than a hand-over of up to ``hand_over_s``.

    A hand-over is known by the record of the broker that let go: it was ordered to. What a
    broker lost, by a lease that ran out or as its process died, is none, however short.
    """
    return [gap for gap in found if not (gap.handed_over and gap.lasted_s <= hand_over_s)]


def unaccounted(
    found: Iterable[Gap], disturbances: Iterable[Disturbance], *, hand_over_s: float
) -> list[Gap]:
    """Return the gaps that are neither a hand-over nor accounted for by a disturbance."""
    known = list(disturbances)
    return [
        gap
        for gap in beyond_hand_overs(found, hand_over_s)
        if not any(_accounts(one, gap, hand_over_s) for one in known)
    ]


def _accounts(disturbance: Disturbance, gap: Gap, hand_over_s: float) -> bool:
    """Return whether a gap began in the time of a disturbance and ended when it was due.

    What was lost has to be lost by a broker that was hit. What was let go may have been
    on its way to one: that hand-over may have begun before, and been under way.
    """
    if gap.end_s > disturbance.due_s:
        return False
    if gap.handed_over:
        return disturbance.began_s - hand_over_s <= gap.start_s
    return disturbance.began_s <= gap.start_s and disturbance.hit(gap.left_by)


def recovery_s(found: Iterable[Gap], disturbance: Disturbance, *, hand_over_s: float) -> float:
    """Return how long after ``healed_s`` the last part was served again; 0 if none was free.

    Gaps that were over before it began, or began when everything was due, are another
    fault's, and hand-overs no one's.
    """
    ends = [
        gap.end_s
        for gap in beyond_hand_overs(found, hand_over_s)
        if disturbance.began_s < gap.end_s and gap.start_s <= disturbance.due_s
    ]
    return max(0.0, max(ends, default=disturbance.healed_s) - disturbance.healed_s)


def _free_times(
    segment: Segment, spells: Sequence[Spell], from_s: float, until_s: float
) -> Iterator[Gap]:
    """Yield the gaps of one segment; one that reaches beyond the time looked at is cut to it."""
    last: Spell | None = None
    for one in sorted(spells, key=lambda spell: spell.start_s):
        yield from _between(segment, last, one.start_s, from_s, until_s)
        if last is None or one.end_s > last.end_s:
            last = one
    yield from _between(segment, last, until_s, from_s, until_s)


def _between(
    segment: Segment, last: Spell | None, next_s: float, from_s: float, until_s: float
) -> Iterator[Gap]:
    start_s = from_s if last is None else max(from_s, last.end_s)
    end_s = min(next_s, until_s)
    if start_s < end_s:
        left_by, commanded = (last.broker, last.ended_by_command) if last else ("", False)
        yield Gap(start_s, end_s, segment, left_by, commanded)

"""How long bundles were served by nobody, and whether a fault accounts for it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadmanager.checker.ring import Segment, segments
from loadmanager.checker.serving import Spell
from loadmanager.core.ids import BundleId


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Something was broken from ``began_s`` to ``healed_s``, and may be felt a while longer.

    ``within_s`` after ``healed_s`` every bundle has to be served again. What the cluster
    has to get over by itself, such as a killed process, is healed the moment it began.
    """

    what: str
    began_s: float
    healed_s: float
    within_s: float

    @property
    def due_s(self) -> float:
        """When all has to be well again."""
        return self.healed_s + self.within_s


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """A part of the hash circle that nobody served from ``start_s`` to ``end_s``."""

    start_s: float
    end_s: float
    segment: Segment

    def __str__(self) -> str:
        """Tell it to people."""
        lasted_s = self.end_s - self.start_s
        return f"{self.segment} was served by nobody for {lasted_s:.3f} s from {self.start_s:.3f} s"


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
    found = [
        Gap(start_s, end_s, segment)
        for segment in wanted
        for start_s, end_s in _free_times(served[segment], from_s, until_s)
    ]
    return sorted(found)


def unaccounted(
    found: Iterable[Gap], disturbances: Iterable[Disturbance], *, tolerated_s: float
) -> list[Gap]:
    """Return the gaps longer than ``tolerated_s`` that no disturbance accounts for.

    A disturbance accounts for a gap that began in its time and ended when it was due.
    One that began up to ``tolerated_s`` before it was a hand-over that it hit.
    """
    known = list(disturbances)
    return [
        gap
        for gap in found
        if gap.end_s - gap.start_s > tolerated_s
        and not any(
            one.began_s - tolerated_s <= gap.start_s and gap.end_s <= one.due_s for one in known
        )
    ]


def recovery_s(
    found: Iterable[Gap], disturbance: Disturbance, *, longer_than_s: float = 0.0
) -> float:
    """Return how long after ``healed_s`` the last part was served again; 0 if none was free.

    Gaps that were over before it began, or began when everything was due, are another
    fault's, and those up to ``longer_than_s`` nobody's.
    """
    ends = [
        gap.end_s
        for gap in found
        if disturbance.began_s < gap.end_s
        and gap.start_s <= disturbance.due_s
        and gap.end_s - gap.start_s > longer_than_s
    ]
    return max(0.0, max(ends, default=disturbance.healed_s) - disturbance.healed_s)


def _free_times(
    spells: Sequence[Spell], from_s: float, until_s: float
) -> Iterator[tuple[float, float]]:
    free_from_s = from_s
    for one in sorted(spells, key=lambda spell: spell.start_s):
        if one.start_s > free_from_s:
            if free_from_s < until_s:
                yield free_from_s, min(one.start_s, until_s)
            free_from_s = one.start_s
        free_from_s = max(free_from_s, one.end_s)
    if free_from_s < until_s:
        yield free_from_s, until_s

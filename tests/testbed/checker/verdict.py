"""All rules, applied to all records of a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadmanager.core.hashing import HashName
from loadmanager.core.ids import BundleId
from loadmanager.reference_broker.changes import Overlap, ServingInterval, overlaps
from tests.testbed.checker.acknowledgements import Misplaced, misplaced
from tests.testbed.checker.availability import Disturbance, Gap, gaps, unaccounted
from tests.testbed.checker.publishes import Publish
from tests.testbed.checker.tokens import TokenFault, token_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The records of a run, and its disturbances.

    ``bundles`` should have been served from ``from_s`` to ``until_s``, except for gaps that the
    disturbances explain. ``hand_over_s`` is the longest time without an owner in a hand-over.
    """

    intervals: Sequence[ServingInterval]
    publishes: Sequence[Publish]
    hash_name: HashName
    bundles: Sequence[BundleId]
    from_s: float
    until_s: float
    disturbances: Sequence[Disturbance]
    hand_over_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    overlaps: Sequence[Overlap]
    misplaced: Sequence[Misplaced]
    token_faults: Sequence[TokenFault]
    unserved: Sequence[Gap]

    @property
    def violations(self) -> Iterator[str]:
        for found in (self.overlaps, self.misplaced, self.token_faults, self.unserved):
            yield from map(str, found)


def judge(history: History) -> Verdict:
    free = gaps(history.intervals, history.bundles, from_s=history.from_s, until_s=history.until_s)
    return Verdict(
        overlaps=overlaps(history.intervals),
        misplaced=misplaced(history.intervals, history.publishes, history.hash_name),
        token_faults=token_faults(history.intervals, history.publishes),
        unserved=unaccounted(free, history.disturbances, hand_over_s=history.hand_over_s),
    )

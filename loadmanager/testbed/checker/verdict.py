"""All rules at once, over everything that was written down of a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadmanager.core.hashing import HashName
from loadmanager.core.ids import BundleId
from loadmanager.testbed.checker.acknowledging import Misplaced, misplaced
from loadmanager.testbed.checker.availability import Disturbance, Gap, gaps, unaccounted
from loadmanager.testbed.checker.publishing import Publish
from loadmanager.testbed.checker.serving import Overlap, Spell, overlaps
from loadmanager.testbed.checker.tokens import TokenFault, token_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What was written down of a run, and what was done to it.

    ``bundles`` should have been served from ``from_s`` to ``until_s``, but for what the
    disturbances account for. ``hand_over_s`` is how long a bundle may be free that its
    broker was commanded to unload.
    """

    spells: Sequence[Spell]
    publishes: Sequence[Publish]
    hash_name: HashName
    bundles: Sequence[BundleId]
    from_s: float
    until_s: float
    disturbances: Sequence[Disturbance]
    hand_over_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What broke a promise; nothing if all were kept."""

    overlaps: Sequence[Overlap]
    misplaced: Sequence[Misplaced]
    token_faults: Sequence[TokenFault]
    unserved: Sequence[Gap]

    @property
    def violations(self) -> Iterator[str]:
        """Each broken promise as one line for people."""
        for found in (self.overlaps, self.misplaced, self.token_faults, self.unserved):
            yield from map(str, found)


def judge(history: History) -> Verdict:
    """Return what the run did that it must not do."""
    free = gaps(history.spells, history.bundles, from_s=history.from_s, until_s=history.until_s)
    return Verdict(
        overlaps=overlaps(history.spells),
        misplaced=misplaced(history.spells, history.publishes, history.hash_name),
        token_faults=token_faults(history.spells, history.publishes),
        unserved=unaccounted(free, history.disturbances, hand_over_s=history.hand_over_s),
    )

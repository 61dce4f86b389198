"""Merges under way on one broker: two bundles that stop, to begin again as one.

Both are recalled as any bundle is. Once the broker serves neither, their locks are
dropped in the commit that makes the whole; if that cannot be, they are dropped as usual,
and taken again because the orders still name them. So whatever fails, the two come back.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import structlog

from loadmanager.core.ids import BundleId
from loadmanager.core.ownership import Phase
from loadmanager.core.splitting import Merge
from loadmanager.ports import SetData

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Joint:
    """One merge, with the write that moves the boundaries.

    A half that has stopped waits for the other until ``until_s`` on this agent's clock.
    """

    both: Merge
    boundaries: SetData
    until_s: float


class Joints:
    """The merges that were begun and have neither been committed nor failed."""

    def __init__(self) -> None:
        self._begun: dict[BundleId, Joint] = {}

    def __contains__(self, whole: BundleId) -> bool:
        """Say whether ``whole`` is about to be made."""
        return whole in self._begun

    @property
    def wholes(self) -> Collection[BundleId]:
        """The bundles that are about to be made."""
        return self._begun.keys()

    def begin(self, joint: Joint) -> None:
        """Wait for both halves to stop."""
        self._begun[joint.both.whole] = joint

    def end(self, joint: Joint) -> None:
        """Wait no more: it is committed, or failed."""
        self._begun.pop(joint.both.whole, None)

    def clear(self) -> None:
        """Give up all: the broker or the session is gone, or everything is given back."""
        self._begun.clear()

    def ready(
        self, phases: Mapping[BundleId, Phase], ordered: Collection[Merge], now_s: float
    ) -> Joint | None:
        """Return one whose halves have both stopped, and forget those that will never be."""
        for joint in list(self._begun.values()):
            states = [phases.get(half) for half in joint.both.halves]
            stopped = states.count(Phase.DROPPING)
            stopping = states.count(Phase.RELEASING)
            late = now_s > joint.until_s and stopping > 0
            free = joint.both.whole not in phases
            if joint.both not in ordered or stopped + stopping < len(states) or late or not free:
                self.end(joint)
                log.warning("bundle.merge.given_up", bundle=joint.both.whole, phases=states)
            elif not stopping:
                return joint
        return None

    def waiting(self) -> set[BundleId]:
        """Return the halves whose locks are not to be dropped by themselves."""
        return {half for joint in self._begun.values() for half in joint.both.halves}

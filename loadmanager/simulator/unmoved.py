"""The owners of bundles if none had been moved for its load, to measure the effect of moves."""

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.simulator.hand_overs import HandOvers


class Unmoved:
    """The broker that would serve each bundle in the same run without the moves for load.

    A bundle stays with its first broker until that is gone; then it goes where the run has
    it, by a placement or a drain, and stays there. So joins, departures, crashes and
    placements are the same in both.
    """

    def __init__(self, holder: Indices) -> None:
        self._holder = holder.copy()

    def owner(self, hand_overs: HandOvers) -> Indices:
        """Return the broker that would serve each bundle now, -1 for none; called in each step."""
        gone = (self._holder < 0) | ~hand_overs.members.alive[self._holder]
        self._holder = np.where(gone, hand_overs.serving, self._holder)
        return self._holder

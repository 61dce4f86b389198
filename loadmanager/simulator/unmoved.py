"""Owners of bundles without moves for load, to measure the effect of moves."""

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.simulator.hand_overs import HandOvers


class Unmoved:
    """The broker that would serve each bundle in the same run without the moves for load.

    A bundle keeps its first owner until that broker is gone; then it gets its owner in the run, by
    a placement or a drain, and keeps it. So joins, departures, crashes and placements are the same.
    """

    def __init__(self, holder: Indices) -> None:
        self._holder = holder.copy()

    def owner(self, hand_overs: HandOvers) -> Indices:
        """Return the owner of each bundle now, -1 for none; has to be called in each step."""
        gone = (self._holder < 0) | ~hand_overs.members.alive[self._holder]
        self._holder = np.where(gone, hand_overs.serving, self._holder)
        return self._holder

"""How far the cluster is from the best possible: computed after each round of the leader."""

from dataclasses import dataclass
from typing import Final

from loadmanager.app.chronicle import Chronicle
from loadmanager.app.deciding import Deciding
from loadmanager.app.parts import Parts
from loadmanager.core.cluster import ClusterView
from loadmanager.core.optimality import Optimality
from loadmanager.ports import Assessment

_SHARE_OF_TIME: Final = 0.05
"""So much of a leader's time this may take; what follows too soon is left out."""


@dataclass(slots=True)
class Assessing:
    """Computes it once the orders of a round are written, so that no move waits for it.

    Shown as metrics, recorded in history, and kept as ``last`` until the term ends.
    """

    parts: Parts
    deciding: Deciding
    chronicle: Chronicle
    last: Assessment | None = None
    _view: ClusterView | None = None
    _not_before_s: float = float("-inf")

    def decided(self, view: ClusterView) -> None:
        """Keep the view of a round until that is over."""
        self._view = view

    def round_over(self) -> None:
        """Compute it for the view of the round, unless that is too soon."""
        view, self._view = self._view, None
        began_s = self.parts.clock.monotonic_s()
        if view is None or began_s < self._not_before_s:
            return
        found: Optimality | None = None
        try:
            found = self.deciding.planner.optimality(view, self.deciding.memory)
        except Exception as error:  # noqa: BLE001 - the round was done, whatever is said of it
            self.parts.unexpected.caught("round", error)
        self._show(found)
        ended_s = self.parts.clock.monotonic_s()
        self._not_before_s = ended_s + (ended_s - began_s) / _SHARE_OF_TIME

    def _show(self, found: Optimality | None) -> None:
        self.parts.metrics.optimality.found(found)
        past = self.deciding.recollection
        self.last = None
        if found is not None:
            self.last = Assessment(found, round=past.rounds, at_ms=past.last_round_at_ms)
            self.chronicle.assessed(found)

    def end(self) -> None:
        """Show nothing: the term is over."""
        self.parts.metrics.optimality.found(None)

"""How far a leader goes by itself: it moves bundles, only says what it would move, or rests."""

from dataclasses import dataclass, replace
from enum import StrEnum

from loadmanager.core.planner import Planner


class BalancingMode(StrEnum):
    """Whether a round's moves, and automatic splits, are carried out.

    Bundles that no broker owns are placed, draining brokers emptied and requests carried
    out in every mode.
    """

    ACTIVE = "active"
    OBSERVING = "observing"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancing:
    """The mode, since when, by whom and why; only the mode has an effect.

    ``since_ms`` is the wall clock of the sidecar that was asked, 0 if it never was.
    """

    mode: BalancingMode = BalancingMode.ACTIVE
    since_ms: int = 0
    by: str = ""
    reason: str = ""


def steered(planner: Planner, mode: BalancingMode) -> Planner:
    """Return the planner that a mode allows to decide: at most what its own settings do."""
    if mode is BalancingMode.OBSERVING:
        return replace(planner, settings=replace(planner.settings, observe=True))
    if mode is BalancingMode.PAUSED:
        return replace(planner, settings=replace(planner.settings, shedding=False))
    return planner

from dataclasses import dataclass, replace
from enum import StrEnum

from loadmanager.core.planner import Planner


class BalancingMode(StrEnum):
    """Whether a round's moves, and automatic splits, are carried out.

    In every mode the leader places bundles without an owner, empties draining brokers and
    carries out requests.
    """

    ACTIVE = "active"
    OBSERVING = "observing"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancing:
    """The mode, with when, by whom and why it was set; only the mode has an effect.

    ``since_ms`` is on the wall clock of the sidecar that received the request; 0 if the mode was
    never set.
    """

    mode: BalancingMode = BalancingMode.ACTIVE
    since_ms: int = 0
    by: str = ""
    reason: str = ""


def steered(planner: Planner, mode: BalancingMode) -> Planner:
    """Return the planner restricted by a mode; a mode never permits more than the settings do."""
    if mode is BalancingMode.OBSERVING:
        return replace(planner, settings=replace(planner.settings, observe=True))
    if mode is BalancingMode.PAUSED:
        return replace(planner, settings=replace(planner.settings, shedding=False))
    return planner

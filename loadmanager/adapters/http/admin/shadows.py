"""Strategies beside the active one as JSON."""

from typing import Any

from pydantic import BaseModel, Field

from loadmanager.core.shadow import Shadow
from loadmanager.ports import ShadowList


class ShadowDocument(BaseModel):
    """What a strategy would have had; means and sums are of the last rounds, at most 60."""

    strategy: str = Field(description="The class of the strategy.")
    rounds: int = Field(description="How many rounds.")
    gap: float | None = Field(
        description="How far the fullest broker would be above the proven lower bound, over the "
        "bound; null before the first round."
    )
    mean_gap: float = Field(serialization_alias="meanGap", description="The mean of it.")
    regret: float = Field(
        description="The mean gap of the cluster less that; negative: the active strategy is "
        "closer to the best."
    )
    moves: int = Field(description="Bundles that it would have moved for their load.")
    moved: float = Field(description="Their part of all traffic.")
    active_moves: int = Field(
        serialization_alias="activeMoves", description="Moves of the active strategy."
    )
    active_moved: float = Field(
        serialization_alias="activeMoved", description="Their part of all traffic."
    )


class ShadowsDocument(BaseModel):
    """The strategies beside the active one."""

    active: str = Field(description="The class of the active strategy.")
    shadows: list[ShadowDocument]


def shadows_to_json(told: ShadowList) -> dict[str, Any]:
    """Return them as a JSON object."""
    shadows = [_shadow_to_json(strategy, shadow) for strategy, shadow in told.shadows.items()]
    return {"active": told.active, "shadows": shadows}


def _shadow_to_json(strategy: str, shadow: Shadow) -> dict[str, Any]:
    return {
        "strategy": strategy,
        "rounds": len(shadow.rounds),
        "gap": shadow.rounds[-1].gap if shadow.rounds else None,
        "meanGap": shadow.gap,
        "regret": shadow.regret,
        "moves": shadow.moves,
        "moved": shadow.moved,
        "activeMoves": sum(one.active_moves for one in shadow.rounds),
        "activeMoved": sum(one.active_moved for one in shadow.rounds),
    }

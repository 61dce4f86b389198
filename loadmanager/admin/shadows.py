"""Strategies beside the active one as JSON."""

from loadmanager.adapters.http.operations import Document
from loadmanager.core.shadow import Shadow
from loadmanager.ports import ShadowList


class ShadowDocument(Document):
    """What a strategy would have had; means and sums are of the last rounds, at most 60."""

    strategy: str
    """The class of the strategy."""
    rounds: int
    """How many rounds."""
    gap: float | None
    """How far the fullest broker would be above the proven lower bound, over the bound; null before
    the first round."""
    mean_gap: float
    """The mean of it."""
    regret: float
    """The mean gap of the cluster less that; negative: the active strategy is closer to the
    best."""
    moves: int
    """Bundles that it would have moved for their load."""
    moved: float
    """Their part of all traffic."""
    active_moves: int
    """Moves of the active strategy."""
    active_moved: float
    """Their part of all traffic."""


class ShadowsDocument(Document):
    """The strategies beside the active one."""

    active: str
    """The class of the active strategy."""
    shadows: list[ShadowDocument]


def shadows_document(told: ShadowList) -> ShadowsDocument:
    """Return the strategies beside the active one as a document."""
    shadows = [_shadow(strategy, shadow) for strategy, shadow in told.shadows.items()]
    return ShadowsDocument(active=told.active, shadows=shadows)


def _shadow(strategy: str, shadow: Shadow) -> ShadowDocument:
    return ShadowDocument(
        strategy=strategy,
        rounds=len(shadow.rounds),
        gap=shadow.rounds[-1].gap if shadow.rounds else None,
        mean_gap=shadow.gap,
        regret=shadow.regret,
        moves=shadow.moves,
        moved=shadow.moved,
        active_moves=sum(one.active_moves for one in shadow.rounds),
        active_moved=sum(one.active_moved for one in shadow.rounds),
    )

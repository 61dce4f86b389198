"""How far the cluster is from the best possible, shadows, and how a strategy weighs, as JSON."""

from loadmanager.adapters.http.operations import Document
from loadmanager.core.joint.weighing import CostSource
from loadmanager.core.shadow import Shadow
from loadmanager.ports import Assessment, ShadowList


class OptimalityDocument(Document):
    """How far the cluster is from the best possible; all are fractions."""

    largest: float
    """The largest use of CPU or network of any broker, of its limit."""
    bound: float
    """What that is at least, wherever the bundles are: a proven lower bound."""
    bound_within_policies: float
    """The same, wherever isolation policies and drains let the bundles be."""
    gap: float
    """How far `largest` is above `bound`, over `bound`."""
    gap_within_policies: float
    """How far `largest` is above `boundWithinPolicies`, over that."""
    excess: float
    """How far brokers are above the level at which the load is even, mean over the brokers, over
    the level."""


class RoundOptimality(OptimalityDocument):
    """The same at a round of the leader."""

    round: int
    """The round, from 1 in each epoch."""
    at_ms: int
    """When that was."""


class AssessmentDocument(Document):
    """How far the cluster was from the best possible at the leader's last round."""

    optimality: RoundOptimality | None
    """null before the first round."""


def assessment_document(assessment: Assessment | None) -> RoundOptimality | None:
    """Return the assessment of a round as a document, None if there is none yet."""
    if assessment is None:
        return None
    found = OptimalityDocument.model_validate(assessment.optimality)
    return RoundOptimality(**dict(found), round=assessment.round, at_ms=assessment.at_ms)


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


def shadows_document(beside: ShadowList) -> ShadowsDocument:
    """Return the strategies beside the active one as a document."""
    shadows = [_shadow(strategy, shadow) for strategy, shadow in beside.shadows.items()]
    return ShadowsDocument(active=beside.active, shadows=shadows)


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


class PredictedUseDocument(Document):
    """One resource of a broker, as fractions of its limit."""

    resource: str
    """Its name; `rates` where usage is below its noise."""
    reported: float | None
    """By the last load report; null for rates."""
    predicted: float
    """By costs, for the bundles that it has or that are on their way to it."""
    background: float
    """What is used by anything but bundles."""
    speed: float
    """What work costs here over what it costs on a broker of speed 1."""
    noise: float | None
    """How far reports are from predictions, as a standard deviation; null for rates."""


class BundleCostDocument(Document):
    """What a bundle uses of one resource on a broker of speed 1."""

    resource: str
    """Its name; `rates` where usage is below its noise."""
    usage: float
    """In the unit of load reports; for rates a share of the cluster's traffic."""
    sd: float
    """How uncertain the unit costs leave that, as a standard deviation."""
    source: CostSource
    """Load reports, if they removed at least half of the variance that the cost began with."""
    learned_fraction: float
    """How much of that variance reports removed."""


class WeighingDocument(Document):
    """How the strategy weighs a bundle or a broker."""

    level: float
    """Where all brokers would stand if load were water, of the scarcest resource."""
    lasting: float
    """How much of a change of traffic is taken to last for ten minutes."""
    uses: list[PredictedUseDocument]
    """Of the broker, or of the bundle's owner."""
    costs: list[BundleCostDocument]
    """Of the bundle; empty for a broker and where it was never measured."""


class PaybackDocument(Document):
    """What moving a bundle to a broker would bring and cost."""

    resource: str
    """The one of which the broker would have least left."""
    use: float
    """The predicted use of it now."""
    use_with: float
    """The predicted use with the bundle."""
    saving: float
    """By how much the potential would fall."""
    price: float
    """What it has to fall by."""

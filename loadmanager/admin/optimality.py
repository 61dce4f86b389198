"""How far the cluster is from the best possible, as JSON."""

from loadmanager.adapters.http.operations import Document
from loadmanager.ports import Assessment


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


def assessment_document(told: Assessment | None) -> RoundOptimality | None:
    """Return the assessment of a round as a document, None if there is none yet."""
    if told is None:
        return None
    found = OptimalityDocument.model_validate(told.optimality)
    return RoundOptimality(**dict(found), round=told.round, at_ms=told.at_ms)

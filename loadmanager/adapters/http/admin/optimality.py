"""How far the cluster is from the best possible, as JSON."""

from typing import Any

from pydantic import BaseModel, Field

from loadmanager.core.optimality import Optimality
from loadmanager.ports import Assessment


class OptimalityDocument(BaseModel):
    """How far the cluster is from the best possible; all are fractions."""

    largest: float = Field(
        description="The largest use of CPU or network of any broker, of its limit."
    )
    bound: float = Field(
        description="What that is at least, wherever the bundles are: a proven lower bound."
    )
    bound_within_policies: float = Field(
        serialization_alias="boundWithinPolicies",
        description="The same, wherever isolation policies and drains let the bundles be.",
    )
    gap: float = Field(description="How far `largest` is above `bound`, over `bound`.")
    gap_within_policies: float = Field(
        serialization_alias="gapWithinPolicies",
        description="How far `largest` is above `boundWithinPolicies`, over that.",
    )
    excess: float = Field(
        description="How far brokers are above the level at which the load is even, mean over "
        "the brokers, over the level."
    )


class RoundOptimality(OptimalityDocument):
    """The same at a round of the leader."""

    round: int = Field(description="The round, from 1 in each epoch.")
    at_ms: int = Field(serialization_alias="atMs", description="When that was.")


class AssessmentDocument(BaseModel):
    """How far the cluster was from the best possible at the leader's last round."""

    optimality: RoundOptimality | None = Field(description="null before the first round.")


def optimality_to_json(found: Optimality | None) -> dict[str, Any] | None:
    """Return it as a JSON object, None if nothing is known."""
    if found is None:
        return None
    return {
        "largest": found.largest,
        "bound": found.bound,
        "boundWithinPolicies": found.bound_within_policies,
        "gap": found.gap,
        "gapWithinPolicies": found.gap_within_policies,
        "excess": found.excess,
    }


def assessment_to_json(told: Assessment | None) -> dict[str, Any] | None:
    """Return the assessment of a round as a JSON object, None if there is none yet."""
    if told is None:
        return None
    found = optimality_to_json(told.optimality) or {}
    return {**found, "round": told.round, "atMs": told.at_ms}

"""The verdict on each move, with its reason, from the loads of both brokers."""

from enum import StrEnum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.confidence import NORMAL_95

LEAST_DIFFERENCE: Final = 0.01
"""A change of the spread by less than a hundredth of capacity counts as none."""

FOR_BALANCE: Final = ("overloaded", "underloaded", "imbalance", "swap")
"""Causes of moves whose purpose is balance."""


class Verdict(StrEnum):
    """The effect of a move on the spread between its source and its target."""

    HELPED = "helped"
    NO_DIFFERENCE = "no difference"
    HURT = "hurt"
    UNKNOWN = "unknown"


def judged(measured: DataFrame, window_s: float) -> DataFrame:
    """Return ``measured`` with the effect of the move on the spread, and the verdict.

    In: an order with its hand-over, the structs ``source_before, source_after,
    target_before, target_after`` (null without a report), ``growth_score`` and ``noise``
    of the control. Out, besides: ``for_balance``; ``spread_before``, ``spread_expected``
    (if both brokers had changed like the control), ``spread_after``, ``gain`` (the expected less
    the actual spread), ``tolerance`` (a gain has to exceed it), ``verdict``
    and ``reason``.
    """
    source, target = ("source", "target")
    spread = {
        phase: F.abs(F.col(f"{source}_{phase}.score") - F.col(f"{target}_{phase}.score"))
        for phase in ("before", "after")
    }
    # One in ten differences exceeds this by chance, on either side.
    chance = F.coalesce("noise", F.lit(0.0)) * (NORMAL_95 * 2**0.5)
    return (
        measured.withColumns(
            {
                "for_balance": F.col("cause").isin(*FOR_BALANCE),
                "spread_before": spread["before"],
                "spread_expected": spread["before"] * F.col("growth_score"),
                "spread_after": spread["after"],
                "tolerance": F.greatest(F.lit(LEAST_DIFFERENCE), chance),
            }
        )
        .withColumn("gain", F.col("spread_expected") - F.col("spread_after"))
        .withColumn("reason", _reason(window_s))
        .withColumn("verdict", _verdict())
    )


def _verdict() -> Column:
    return (
        F.when(F.col("reason") != "", Verdict.UNKNOWN.value)
        .when(F.col("gain") > F.col("tolerance"), Verdict.HELPED.value)
        .when(F.col("gain") < -F.col("tolerance"), Verdict.HURT.value)
        .otherwise(Verdict.NO_DIFFERENCE.value)
    )


def _reason(window_s: float) -> Column:
    reason = (
        F.when(F.col("outcome") == "observed", "only observed, not ordered")
        .when(F.col("outcome") == "failed", "the order could not be written")
        .when(F.col("source").isNull(), "no broker served it before")
        .when(~F.col("for_balance"), F.concat(F.lit("not for balance but "), "cause"))
        .when(F.col("ended").isNull(), "no hand-over is recorded")
        .when(F.col("ended") == "replaced", "replaced by another order")
        .when(F.col("acquired_at_ms").isNull(), "the term ended before it arrived")
    )
    for phase, where in (("before", "before the order"), ("after", "after it arrived")):
        for role in ("source", "target"):
            missing = F.col(f"{role}_{phase}.score").isNull()
            reason = reason.when(
                missing, f"too few reports of the {role} in {window_s:g} s {where}"
            )
    return reason.when(F.col("control").isNull(), "no broker reported before and after").otherwise(
        ""
    )

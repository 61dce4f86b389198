"""The leader's averages, computed from reports and ticks, and compared with recorded ones.

Each stretch begins with the recorded averages of a base round. Stretches are independent, and an
error in one (such as a lost report) does not affect the next.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.expressions import union
from loadmanager.pipeline.rollup.average_rows import (
    AVERAGES,
    CHECKS,
    COUNTS,
    CUT,
    END,
    LISTED,
    NUMBERS,
    START,
    STATES,
    checked,
    ended,
)
from loadmanager.pipeline.rollup.measures import RATES
from loadmanager.pipeline.rollup.scope import Scope
from loadmanager.pipeline.rollup.stretches import (
    STRETCH,
    TERM,
    counting_reports,
    cut_within,
    stretches,
)
from loadmanager.pipeline.tables import namespace_of

BUNDLES_AT_ONCE: Final = 10_000
"""Approximate number of bundles of one stretch in a task."""

_DAYS_BEFORE: Final = 2
"""The largest age of a report that counts at a base; in a healthy cluster it is a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderHistory:
    """The ingested tables that are needed, by name."""

    rounds: DataFrame
    ticks: DataFrame
    bundle_averages: DataFrame
    broker_load: DataFrame
    bundle_load: DataFrame
    cuts: DataFrame


def latest_averages(history: LeaderHistory) -> DataFrame:
    """Return the averages of all bundles after the last tick of the last term of each cluster.

    The last term is that of the highest epoch. Without ticks the averages are the last recorded
    ones.
    """
    newest = Window.partitionBy("cluster").orderBy(F.desc("epoch"), F.desc("round"))
    every = stretches(history.rounds, history.ticks)
    last = every.withColumn("age", F.row_number().over(newest)).where(F.col("age") == 1)
    history = replace(history, bundle_load=_lately(last, history.bundle_load))
    rows = [_recorded(last, history, "round", START), _listed(last, history)]
    facts = last.select(
        *STRETCH,
        F.col("until_at").alias("at"),
        F.coalesce(F.col("until_tick") - F.col("tick"), F.lit(0)).alias("ticks"),
    )
    states = _applied(rows, last, ended, STATES)
    found = states.withColumn("namespace", namespace_of("bundle"))
    return found.join(F.broadcast(facts), list(STRETCH))


def _lately(last: DataFrame, bundle_load: DataFrame) -> DataFrame:
    """Return the reports that may count since the beginning of the last stretches."""
    began = last.agg(F.min(F.to_date("at"))).first()
    if began is None or began[0] is None:
        return bundle_load.limit(0)
    return bundle_load.where(F.col("date") >= F.date_sub(F.lit(began[0]), _DAYS_BEFORE))


def average_checks(history: LeaderHistory, scope: Scope) -> DataFrame:
    """Return the check of the averages of each base round except the first of a term.

    They are computed from the base round before it, and should be equal to the bit. Simulations
    write no ticks, so nothing is checked. ``scope`` selects the days of the checked rounds.
    """
    every = stretches(history.rounds, history.ticks)
    over = every.where(F.col("next_round").isNotNull() & (F.col("until_tick") > F.col("tick")))
    over = scope.anew(over.withColumn("date", F.to_date("next_at")))
    history = replace(history, bundle_load=scope.read(history.bundle_load, _DAYS_BEFORE))
    cut = cut_within(every, history.cuts).join(over, list(STRETCH), "left_semi")
    rows = [
        _recorded(over, history, "round", START),
        _listed(over, history),
        _recorded(over, history, "next_round", END),
        cut.select(*STRETCH, F.lit(CUT).alias("what"), "bundle"),
    ]
    checks = (
        _applied(rows, over, checked, CHECKS)
        .groupBy(*STRETCH)
        .agg(
            *[F.sum(name).alias(name) for name in ("bundles", "equal", "cut")],
            F.max("difference").alias("largest_difference"),
        )
    )
    compared = over.select(
        *STRETCH,
        "next_round",
        F.col("next_at").alias("at"),
        "date",
        (F.col("until_tick") - F.col("tick")).alias("ticks"),
    )
    found = compared.join(checks, list(STRETCH)).join(
        _missing(over, history), list(STRETCH), "left"
    )
    return (
        found.withColumn("missing_reports", F.coalesce("missing_reports", F.lit(0)))
        .drop("round")
        .withColumnRenamed("next_round", "round")
    )


def _missing(over: DataFrame, history: LeaderHistory) -> DataFrame:
    """Return how many reports of each stretch the leader had that history lacks."""
    named = (
        counting_reports(over, history.ticks)
        .select(*STRETCH, "broker", "reported_at_ms")
        .distinct()
    )
    report = ["cluster", "broker", "reported_at_ms"]
    lost = named.join(history.broker_load, report, "left_anti")
    return lost.groupBy(*STRETCH).agg(F.count("*").alias("missing_reports"))


def _recorded(over: DataFrame, history: LeaderHistory, round_: str, what: int) -> DataFrame:
    """Return the recorded averages of the round in the column ``round_`` of stretches."""
    recorded = history.bundle_averages.withColumnRenamed("round", "told_round")
    of = over.select(*STRETCH, F.col(round_).alias("told_round"))
    return recorded.join(of, [*TERM, "told_round"]).select(
        *STRETCH, F.lit(what).alias("what"), "bundle", *AVERAGES, *COUNTS
    )


def _listed(over: DataFrame, history: LeaderHistory) -> DataFrame:
    """Return the bundles of all reports that count in stretches."""
    spans = counting_reports(over, history.ticks)
    report = ["cluster", "broker", "reported_at_ms"]
    bundles = history.bundle_load.select(*report, "bundle", *RATES, "topics")
    return bundles.join(spans, report).select(
        *STRETCH, F.lit(LISTED).alias("what"), "bundle", *NUMBERS, *RATES, "topics"
    )


def _applied(
    rows: list[DataFrame], over: DataFrame, compute: Callable[[Any], Any], schema: str
) -> DataFrame:
    """Return the results of ``compute`` for the rows of each stretch, some bundles at a time."""
    every = union(rows, missing_columns=True)
    parts = F.greatest(F.ceil(F.col("bundles_known") / BUNDLES_AT_ONCE), F.lit(1))
    bounds = over.select(
        *STRETCH, "tick", F.col("until_tick").alias("stretch_until"), parts.alias("parts")
    )
    part = F.pmod(F.hash("bundle"), F.col("parts")).alias("part")
    known = every.join(F.broadcast(bounds), list(STRETCH)).select("*", part).drop("parts")
    return known.groupBy(*STRETCH, "part").applyInArrow(compute, schema)

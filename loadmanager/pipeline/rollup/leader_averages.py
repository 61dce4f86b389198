"""The leader's averages at the end of the history, computed from reports and ticks.

A *stretch* is the time from the last base round of a cluster's last term, whose averages are
recorded, to the last tick of that term.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.expressions import union
from loadmanager.pipeline.rollup.average_replay import (
    AVERAGES,
    COUNTS,
    LISTED,
    NUMBERS,
    START,
    STATES,
    STRETCH,
    TERM,
    ended,
)
from loadmanager.pipeline.rollup.measures import RATES
from loadmanager.pipeline.tables import namespace_of

BUNDLES_AT_ONCE: Final = 10_000
"""Approximate number of bundles of one stretch in a task."""

_DAYS_BEFORE: Final = 2
"""The largest age of a report that counts at a base; in a healthy cluster it is a minute."""

_REPORT: Final = ["cluster", "broker", "reported_at_ms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderHistory:
    rounds: DataFrame
    ticks: DataFrame
    bundle_averages: DataFrame
    bundle_load: DataFrame


def latest_averages(history: LeaderHistory) -> DataFrame:
    """Return the averages of all bundles after the last tick of the last term of each cluster.

    The last term is that of the highest epoch. Without ticks the averages are the last recorded
    ones.
    """
    last = _stretches(history.rounds, history.ticks)
    recorded = history.bundle_averages.join(last, list(STRETCH), "left_semi").select(
        *STRETCH, F.lit(START).alias("what"), "bundle", *AVERAGES, *COUNTS
    )
    bundles = _lately(last, history.bundle_load).select(*_REPORT, "bundle", *RATES, "topics")
    listed = bundles.join(_counting_reports(last, history.ticks), _REPORT).select(
        *STRETCH, F.lit(LISTED).alias("what"), "bundle", *NUMBERS, *RATES, "topics"
    )
    parts = F.greatest(F.ceil(F.col("bundles_known") / BUNDLES_AT_ONCE), F.lit(1))
    bounds = last.select(
        *STRETCH, "tick", F.col("until_tick").alias("stretch_until"), parts.alias("parts")
    )
    rows = union([recorded, listed], missing_columns=True).join(F.broadcast(bounds), list(STRETCH))
    part = F.pmod(F.hash("bundle"), F.col("parts")).alias("part")
    states = rows.select("*", part).drop("parts").groupBy(*STRETCH, "part")
    facts = last.select(
        *STRETCH,
        F.col("until_at").alias("at"),
        F.coalesce(F.col("until_tick") - F.col("tick"), F.lit(0)).alias("ticks"),
    )
    found = states.applyInArrow(ended, STATES).withColumn("namespace", namespace_of("bundle"))
    return found.join(F.broadcast(facts), list(STRETCH))


def _stretches(rounds: DataFrame, ticks: DataFrame) -> DataFrame:
    """Return the last stretch of each cluster.

    Out: `STRETCH`, ``tick`` (after which it begins), ``until_tick``, ``until_at`` of its last tick
    or the base, ``bundles_known`` and ``brokers``. Simulations write no ticks: both are null.
    """
    newest = Window.partitionBy("cluster").orderBy(F.desc("epoch"), F.desc("round"))
    bases = rounds.where("base").withColumn("age", F.row_number().over(newest)).where("age = 1")
    last = ticks.groupBy(*TERM).agg(
        F.max("tick").alias("last_tick"), F.max_by("at", "tick").alias("last_at")
    )
    until_at = F.when(F.col("last_tick") > F.col("tick"), F.col("last_at"))
    return bases.join(last, list(TERM), "left").select(
        *(*STRETCH, "tick", "at", "bundles_known", "brokers"),
        F.greatest("last_tick", "tick").alias("until_tick"),
        F.coalesce(until_at, "at").alias("until_at"),
    )


def _lately(last: DataFrame, bundle_load: DataFrame) -> DataFrame:
    """Return the reports that may count since the beginning of the stretches."""
    began = last.agg(F.min(F.to_date("at"))).first()
    if began is None or began[0] is None:
        return bundle_load.limit(0)
    return bundle_load.where(F.col("date") >= F.date_sub(F.lit(began[0]), _DAYS_BEFORE))


def _counting_reports(last: DataFrame, ticks: DataFrame) -> DataFrame:
    """Return which report of each broker counts at which ticks of each stretch.

    Out: `STRETCH`, ``broker``, ``reported_at_ms``, ``from_tick``, ``until_tick``; ``line`` and
    ``item`` are the order in which the leader processed them. A report recorded before a base
    round without a sample counts from the next sample on.
    """
    began = last.where(F.col("tick").isNotNull())
    kept = [*STRETCH, "until_tick", "from_tick", "line"]
    first = began.select(
        *STRETCH,
        "until_tick",
        (F.col("tick") + 1).alias("from_tick"),
        F.lit(0).cast("bigint").alias("line"),
        F.posexplode("brokers").alias("item", "seen"),
    )
    from_tick = F.col("tick") + F.when(F.col("sampled"), F.lit(0)).otherwise(F.lit(1))
    changed = ticks.select(
        *TERM, F.col("seq").alias("line"), "taken", "left", from_tick.alias("from_tick")
    ).join(F.broadcast(began.select(*STRETCH, "tick", "until_tick")), list(TERM))
    lines = changed.where(F.col("from_tick") > F.col("tick"))
    taken = lines.select(*kept, F.posexplode("taken").alias("item", "seen"))
    # Those that left, but for those that came back.
    back = F.transform("taken", lambda one: one["broker"])
    gone = lines.select(
        *kept, F.posexplode(F.array_except("left", back)).alias("item", "broker")
    ).withColumn("reported_at_ms", F.lit(None).cast("bigint"))
    seen = [*kept, "item", "seen.broker", "seen.reported_at_ms"]
    one_broker = Window.partitionBy(*STRETCH, "broker").orderBy("from_tick", "line", "item")
    until = F.least(
        F.coalesce(F.lead("from_tick").over(one_broker) - 1, "until_tick"), "until_tick"
    )
    changes = union([first.select(seen), taken.select(seen), gone])
    spans = changes.withColumn("until_tick", until)
    return spans.where("reported_at_ms IS NOT NULL AND from_tick <= until_tick").select(
        *STRETCH, "broker", "reported_at_ms", *NUMBERS
    )

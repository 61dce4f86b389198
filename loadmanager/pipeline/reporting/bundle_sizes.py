"""Recent sizes of bundles, on which splitting and merging are decided."""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates
from loadmanager.core.splitting.finder import SplitRules
from loadmanager.pipeline.move_effects.windows import TRAFFIC
from loadmanager.pipeline.reporting.sources import Row, Tables, one_row, rows, sound
from loadmanager.pipeline.rollup.minutes import covered_s

LATELY_H: Final = 1
"""Sizes are those of reports of this many last hours."""

CANDIDATES: Final = 200
"""The number of the largest bundles by each limit that are examined."""

_COUNTS: Final = ("topics", "producers", "consumers")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of bundles as means of the last hour, and their sums over a cluster.

    ``bundles`` has ``bundle, namespace, broker, msgs_in_per_s ... , topics, producers,
    consumers, share`` (of the cluster's traffic, the larger of messages and bytes); ``kept``
    is to be given back after.
    """

    bundles: DataFrame
    kept: DataFrame
    brokers: int
    msgs_per_s: float
    bytes_per_s: float
    count: int


def sizes(tables: Tables) -> Sizes | None:
    """Return the sizes of bundles that were reported in the last hours; None without any.

    If two brokers report a bundle, the last report counts.
    """
    lately = _lately(tables)
    if lately is None:
        return None
    latest = F.max_by(F.struct("broker", *_COUNTS), "reported_at_ms").alias("latest")
    seconds = covered_s()
    means = [
        F.coalesce(F.try_divide(F.sum(F.col(name) * seconds), F.sum(seconds)), F.lit(0.0)).alias(
            name
        )
        for name in TRAFFIC
    ]
    every = lately.groupBy("bundle", "namespace").agg(latest, *means)
    found = every.select("bundle", "namespace", "latest.*", *TRAFFIC).persist()
    msgs, volume = _both("msgs"), _both("bytes")
    all_of = one_row(
        found.agg(
            F.sum(msgs).alias("msgs"), F.sum(volume).alias("bytes"), F.count("*").alias("count"),
            F.countDistinct("broker").alias("brokers"),
        )
    )  # fmt: skip
    if not all_of["count"]:
        return None
    share = F.greatest(
        F.coalesce(F.try_divide(msgs, F.lit(all_of["msgs"])), F.lit(0.0)),
        F.coalesce(F.try_divide(volume, F.lit(all_of["bytes"])), F.lit(0.0)),
    )
    return Sizes(
        bundles=found.withColumn("share", share),
        kept=found,
        brokers=all_of["brokers"],
        msgs_per_s=all_of["msgs"],
        bytes_per_s=all_of["bytes"],
        count=all_of["count"],
    )


def _lately(tables: Tables) -> DataFrame | None:
    """Return the rows of bundles of the last hours of history; None without any.

    The end is determined by the second newest broker: a single clock that is ahead would exclude
    all other brokers.
    """
    load = sound(tables.table("broker_load"))
    newest = load.groupBy("broker").agg(F.max("at").alias("at"), F.max("date").alias("date"))
    lasts = rows(newest.orderBy(F.desc("at")).limit(2))
    if not lasts:
        return None
    since = F.lit(lasts[-1]["at"]) - F.expr(f"INTERVAL {LATELY_H} HOURS")
    of_days = F.col("date").between(
        F.date_sub(F.lit(lasts[-1]["date"]), 1), F.lit(lasts[0]["date"])
    )
    return tables.table("bundle_load").where((F.col("at") > since) & of_days)


def _both(what: str) -> Column:
    return F.col(f"{what}_in_per_s") + F.col(f"{what}_out_per_s")


def largest(found: Sizes) -> list[Row]:
    """Return the bundles that could exceed a limit: the largest by each of them."""
    sized = found.bundles.withColumns(
        {
            "sessions": F.col("producers") + F.col("consumers"),
            "msgs_per_s": _both("msgs"),
            "bytes_per_s": _both("bytes"),
        }
    )
    by: dict[str, Row] = {}
    for name in ("topics", "sessions", "msgs_per_s", "bytes_per_s", "share"):
        for row in rows(sized.orderBy(F.desc(name), "bundle").limit(CANDIDATES)):
            by[row["bundle"]] = row
    return sorted(by.values(), key=lambda row: (-row["share"], row["bundle"]))


def small(found: Sizes, rules: SplitRules, fraction: float) -> list[Row]:
    """Return the smallest bundles: below ``fraction`` of each limit, and of a broker's share."""
    few = F.col("share") < fraction / max(found.brokers, 1)
    sessions = F.col("producers") + F.col("consumers")
    within = (
        few
        & (F.col("topics") < fraction * rules.max_topics)
        & (F.lit(rules.max_sessions <= 0) | (sessions < fraction * rules.max_sessions))
        & (_both("msgs") < fraction * rules.max_msgs_per_s)
        & (_both("bytes") < fraction * rules.max_bytes_per_s)
    )
    return rows(found.bundles.where(within).orderBy("share", "bundle").limit(_SMALLEST))


_SMALLEST: Final = 20_000


def stats_of(row: Row) -> BundleStats:
    return BundleStats(**{name: row[name] for name in (*TRAFFIC, *_COUNTS)})


def rates_of(row: Row) -> Rates:
    return Rates(*(row[name] for name in TRAFFIC))

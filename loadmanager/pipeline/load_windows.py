"""Mean loads of brokers over windows of time, such as those before and after a move.

A window includes the reports whose time lies in it, each weighted by the seconds of the window that
it covers. Windows and reports are joined by buckets as long as a window, so that a report is
compared with the windows of two buckets instead of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.scores import RESOURCES, ResourceWeights
from loadmanager.pipeline.expressions import weighted_mean

SHORTEST_S: Final = 10.0
LONGEST_S: Final = 300.0

LEAST_COVERED: Final = 0.05
"""Windows that reports cover by less than this fraction are left out."""

_REPORTS: Final = 5
"""Approximate number of reports of a broker in a window."""

_SCORED: Final = tuple(name for name in RESOURCES if name != "memory")


@dataclass(frozen=True, slots=True)
class Windows:
    """The length of the windows before and after a move."""

    window_s: float

    @property
    def width_ms(self) -> int:
        return max(round(self.window_s * 1000), 1)


def fitting_window_s(interval_s: float | None, measured_s: float | None) -> float:
    """Return the length of windows.

    Reports usually are ``interval_s`` apart and are means over ``measured_s``: a window should
    have some reports that measured nothing of the time before it.
    """
    if interval_s is None:
        return LONGEST_S
    wanted = _REPORTS * max(interval_s, (measured_s or 0.0) / 2)
    return min(max(wanted, SHORTEST_S), LONGEST_S)


def weights_in_force(rounds: DataFrame) -> DataFrame:
    """Return the weights of resources of each cluster in its last round.

    In: ``cluster, at_ms, settings`` (JSON). Out: ``cluster, weight_cpu ... double``.
    """
    last = rounds.groupBy("cluster").agg(F.max_by("settings", "at_ms").alias("settings"))
    weights = ResourceWeights()
    return last.select(
        "cluster",
        *(
            F.coalesce(
                F.get_json_object("settings", f"$.filters.weights_{name}").try_cast("double"),
                F.lit(float(getattr(weights, name))),
            ).alias(f"weight_{name}")
            for name in _SCORED
        ),
    )


def loads(broker_load: DataFrame, weights: DataFrame) -> DataFrame:
    """Return each report with the time that it covers and its score.

    In: `broker_load`, and the `weights_in_force`; a cluster without them has the defaults.
    Out: ``cluster, broker, from_ms, until_ms, measured_from_ms, score``. A resource without a limit
    was not measured: it is 0 in the score.
    """
    known = weights.columns[1:]
    joined = broker_load.join(F.broadcast(weights), "cluster", "left")
    report_s = F.coalesce("interval_s", "window_s", F.lit(1.0))
    measured_s = F.coalesce("window_s", "interval_s", F.lit(0.0))
    until_ms = F.col("reported_at_ms")
    return joined.select(
        "cluster",
        "broker",
        (until_ms - (report_s * 1000).cast("long")).alias("from_ms"),
        until_ms.alias("until_ms"),
        (until_ms - (measured_s * 1000).cast("long")).alias("measured_from_ms"),
        _score(known).alias("score"),
    )


def _score(known: Sequence[str]) -> Column:
    """Return Pulsar's score: the largest weighted fraction of usage, without the heap."""
    defaults = ResourceWeights()

    def weighted(name: str) -> Column:
        weight, limit = F.lit(float(getattr(defaults, name))), F.col(f"{name}_limit")
        used = F.when(limit > 0, F.col(f"{name}_usage") / limit)
        if f"weight_{name}" in known:
            weight = F.coalesce(f"weight_{name}", weight)
        return F.coalesce(used, F.lit(0.0)) * weight

    return F.greatest(*map(weighted, _SCORED))


def means(
    asked: DataFrame, loads: DataFrame, windows: Windows, by: Sequence[str], keys: Sequence[str]
) -> DataFrame:
    """Return the mean score over each requested window.

    In: ``asked`` with ``from_ms, until_ms, clean``, the columns ``by`` that it shares with
    ``loads``, and ``keys``. Windows are no longer than ``windows``. A ``clean`` one
    excludes reports that measured anything of the time before it. Out: ``keys``, ``covered_s``
    (seconds of the window that reports cover), and ``score``. Windows of which they cover less
    than `LEAST_COVERED` are left out.
    """
    wanted = asked.withColumnRenamed("from_ms", "begin_ms").withColumnRenamed("until_ms", "end_ms")
    left = wanted.withColumn(
        "bucket", F.explode(buckets(F.col("begin_ms"), F.col("end_ms"), windows))
    )
    right = loads.withColumn("bucket", bucket_of(F.col("until_ms"), windows))
    within = (F.col("until_ms") > F.col("begin_ms")) & (F.col("until_ms") <= F.col("end_ms"))
    clean = ~F.col("clean") | (F.col("measured_from_ms") >= F.col("begin_ms"))
    weight = (F.col("until_ms") - F.greatest("from_ms", "begin_ms")) / 1000
    joined = left.join(right, [*by, "bucket"]).where(within & clean).withColumn("weight_s", weight)
    found = joined.groupBy(*keys).agg(
        F.sum("weight_s").alias("covered_s"),
        weighted_mean(F.col("score"), F.col("weight_s")).alias("score"),
    )
    return found.where(F.col("covered_s") >= LEAST_COVERED * windows.window_s)


def bucket_of(at_ms: Column, windows: Windows) -> Column:
    return F.floor(at_ms / windows.width_ms)


def buckets(begin_ms: Column, end_ms: Column, windows: Windows) -> Column:
    return F.sequence(bucket_of(begin_ms, windows), bucket_of(end_ms, windows))

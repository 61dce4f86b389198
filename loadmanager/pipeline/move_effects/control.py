"""The control of each move: growth of load on brokers without moves, and the imbalance.

Moves at about the same time share a moment, so that the number of moments of a day is bounded. For
each moment the load of every broker before and after it is computed.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.expressions import union
from loadmanager.pipeline.move_effects.windows import USED, Windows, buckets, means

MOMENTS: Final = 5
"""Moments per window."""

FEWEST_UNAFFECTED: Final = 2
"""The growth of fewer brokers than this may be a coincidence."""

LEAST_MEAN: Final = 0.01
"""The growth of a mean score below this is meaningless."""

_MOST_BUCKETS: Final = 200

GROWN: Final = ("score", *(f"{name}_usage" for name in USED))


def with_moments(orders: DataFrame, windows: Windows) -> DataFrame:
    """Return ``orders`` with ``moment_ms``, the beginning of their moment."""
    step_ms = max(windows.width_ms // MOMENTS, 1)
    return orders.withColumn(
        "moment_ms", (F.floor(F.col("ordered_at_ms") / step_ms) * step_ms).cast("long")
    )


def moments(finished: DataFrame, windows: Windows) -> DataFrame:
    """Return the time span of each moment: from its first order until all moves were carried out.

    In: orders with ``moment_ms`` that were carried out. The span is at most one
    window. Out: ``cluster, moment_ms, first_ms, done_ms``.
    """
    span = finished.groupBy("cluster", "moment_ms").agg(
        F.min("ordered_at_ms").alias("first_ms"), F.max("acquired_at_ms").alias("done_ms")
    )
    latest = F.col("first_ms") + windows.width_ms
    return span.withColumn("done_ms", F.least("done_ms", latest))


def touched(moments: DataFrame, finished: DataFrame, windows: Windows) -> DataFrame:
    """Return the brokers that released or acquired a bundle near the windows of each moment.

    Out: ``cluster, moment_ms, broker``, and ``others``: whether one of these hand-overs belongs
    to another moment.
    """
    width = windows.width_ms
    ends = union(
        [
            finished.where(F.col(role).isNotNull()).select(
                "cluster",
                F.col(role).alias("broker"),
                F.col("moment_ms").alias("of_ms"),
                "ordered_at_ms",
                "acquired_at_ms",
            )
            for role in ("source", "target")
        ]
    )
    began_ms = F.col("ordered_at_ms")
    # A very long hand-over is only looked up in its first buckets.
    ended_ms = F.least(
        F.greatest(began_ms, F.col("acquired_at_ms")), began_ms + _MOST_BUCKETS * width
    )
    ends = ends.withColumn("bucket", F.explode(buckets(began_ms, ended_ms, windows)))
    begin, end = F.col("first_ms") - width, F.col("done_ms") + width
    wanted = moments.select(
        "cluster", "moment_ms", begin.alias("begin_ms"), end.alias("end_ms")
    ).withColumn("bucket", F.explode(buckets(F.col("begin_ms"), F.col("end_ms"), windows)))
    met = (F.col("acquired_at_ms") > F.col("begin_ms")) & (F.col("ordered_at_ms") < F.col("end_ms"))
    joined = wanted.join(ends, ["cluster", "bucket"])
    return (
        joined.where(met)
        .groupBy("cluster", "moment_ms", "broker")
        .agg(F.max(F.col("of_ms") != F.col("moment_ms")).alias("others"))
    )


def changes(
    moments: DataFrame, touched: DataFrame, loads: DataFrame, windows: Windows
) -> DataFrame:
    """Return the change of brokers at each moment.

    Out: ``cluster, moment_ms``; for each of `GROWN` ``growth_*``, the factor by which it
    grew on brokers without moves (on all if those are too few); ``noise``, the standard
    deviation of their scores from that growth; ``control`` (unaffected, all, none) and
    ``control_brokers``; ``max_over_mean_before/after, deviation_before/after`` of all
    brokers' scores.
    """
    width = windows.width_ms
    asked = union(
        [
            moments.select("cluster", "moment_ms", begin.alias("from_ms"), end.alias("until_ms"),
                           F.lit(clean).alias("clean"), F.lit(phase).alias("phase"))
            for phase, clean, begin, end in (
                ("before", False, F.col("first_ms") - width, F.col("first_ms")),
                ("after", True, F.col("done_ms"), F.col("done_ms") + width),
            )
        ]
    )  # fmt: skip
    keys = ["cluster", "moment_ms", "broker"]
    found = means(asked, loads, windows, ["cluster"], [*keys, "phase"])
    both = (
        found.groupBy(*keys)
        .agg(
            *(
                F.max(F.when(F.col("phase") == phase, F.col(name))).alias(f"{name}_{phase}")
                for name in GROWN
                for phase in ("before", "after")
            )
        )
        .where("score_before IS NOT NULL AND score_after IS NOT NULL")
    )
    marked = both.join(touched, keys, "left").withColumn("free", F.col("others").isNull())
    return _growth(marked.groupBy("cluster", "moment_ms").agg(*_sums()))


def _sums() -> list[Column]:
    free = F.when(F.col("free"), F.lit(1.0))
    every = [F.count("*").alias("brokers"), F.count_if("free").alias("free")]
    for name in GROWN:
        for phase in ("before", "after"):
            value = F.col(f"{name}_{phase}")
            every.append(F.sum(value * free).alias(f"free_{name}_{phase}"))
            every.append(F.sum(value).alias(f"all_{name}_{phase}"))
    before, after = F.col("score_before"), F.col("score_after")
    every += [
        F.sum(free * after * after).alias("free_aa"),
        F.sum(free * after * before).alias("free_ab"),
        F.sum(free * before * before).alias("free_bb"),
    ]
    for phase in ("before", "after"):
        score = F.col(f"score_{phase}")
        every.append(F.try_divide(F.max(score), F.avg(score)).alias(f"max_over_mean_{phase}"))
        every.append(F.stddev_pop(score).alias(f"deviation_{phase}"))
    return every


def _growth(sums: DataFrame) -> DataFrame:
    enough = F.col("free") >= FEWEST_UNAFFECTED
    unaffected = enough & (F.col("free_score_before") >= LEAST_MEAN * F.col("free"))
    every = F.col("all_score_before") >= LEAST_MEAN * F.col("brokers")
    control = F.when(unaffected, "unaffected").when(every, "all").otherwise("none")
    grown = sums.withColumn("control", control)
    for name in GROWN:
        ratios = [
            F.try_divide(f"{of}_{name}_after", f"{of}_{name}_before") for of in ("free", "all")
        ]
        growth = F.when(F.col("control") == "unaffected", ratios[0]).when(
            F.col("control") == "all", ratios[1]
        )
        grown = grown.withColumn(f"growth_{name}", F.coalesce(growth, F.lit(1.0)))
    g = F.col("growth_score")
    squares = F.col("free_aa") - 2 * g * F.col("free_ab") + g * g * F.col("free_bb")
    # The growth takes one degree of freedom.
    noise = F.sqrt(F.greatest(squares, F.lit(0.0)) / F.greatest(F.col("free") - 1, F.lit(1)))
    return grown.select(
        "cluster",
        "moment_ms",
        "control",
        F.when(F.col("control") == "unaffected", F.col("free"))
        .otherwise(F.col("brokers"))
        .alias("control_brokers"),
        F.when(F.col("control") == "unaffected", noise).alias("noise"),
        *(f"growth_{name}" for name in GROWN),
        *(
            f"{name}_{phase}"
            for name in ("max_over_mean", "deviation")
            for phase in ("before", "after")
        ),
    )

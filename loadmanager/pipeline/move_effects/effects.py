"""Every move with its hand-over, both brokers before and after it, its cost, and the verdict.

The control of a move is the growth of load on brokers without moves. Moves at about the same time
share a moment, so that the number of moments of a day is bounded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.confidence import NORMAL_95
from loadmanager.pipeline.expressions import union
from loadmanager.pipeline.move_effects.predictions import MODELS, target_changes, with_predictions
from loadmanager.pipeline.move_effects.windows import (
    FRACTIONS,
    MEASURES,
    USED,
    Windows,
    bucket_of,
    buckets,
    means,
)
from loadmanager.pipeline.tables import namespace_of

_ROLES = ("source", "target")
_PHASES = ("before", "after")
MOMENTS: Final = 5
LEAST_DIFFERENCE: Final = 0.01
KEY: Final = ("cluster", "writer", "instance", "seq")
"""The key of the line of a move."""

_SLACK_MS: Final = 5000
"""An order may be recorded this much before its decision: two clocks are involved."""

_OF_HAND_OVER: Final = ("ordered_at_ms", "released_at_ms", "acquired_at_ms", "took_s", "pause_s")

_ORDERED: Final = ("moved", "placed")


def with_hand_overs(moves: DataFrame, hand_overs: DataFrame) -> DataFrame:
    """Return ``moves`` with their hand-overs.

    A hand-over belongs to the last move of its bundle to its target that was decided before it was
    ordered. Out: the columns of ``moves`` and ``ended`` (outcome of the hand-over, null if none is
    recorded), ``ordered_at_ms`` (time of the decision if none is recorded),
    ``released_at_ms, acquired_at_ms, took_s, pause_s``.
    """
    place = ("cluster", "bundle", "target")
    key = F.struct(*KEY)
    decided = moves.where(F.col("outcome").isin(*_ORDERED)).select(
        *place, (F.col("at_ms") - _SLACK_MS).alias("order_ms"), F.lit(0).alias("what"),
        key.alias("key"), F.lit(None).alias("hand_over"),
    )  # fmt: skip
    task = F.struct(*_OF_HAND_OVER, F.col("outcome").alias("ended"))
    ended = hand_overs.select(
        *place, F.col("ordered_at_ms").alias("order_ms"), F.lit(1).alias("what"),
        F.lit(None).alias("key"), task.alias("hand_over"),
    )  # fmt: skip
    in_order = Window.partitionBy(*place).orderBy("order_ms", "what")
    latest = F.last("key", ignorenulls=True).over(in_order)
    matched = decided.unionByName(ended).withColumn("key", latest).where("what = 1")
    first = (
        matched.where("key IS NOT NULL")
        .groupBy("key")
        .agg(F.min_by("hand_over", "order_ms").alias("hand_over"))
    )
    found = first.select("key.*", "hand_over.*").withColumnRenamed("ordered_at_ms", "written_ms")
    joined = moves.join(found, list(KEY), "left")
    return joined.withColumn("ordered_at_ms", F.coalesce("written_ms", "at_ms")).drop("written_ms")


def with_returns(orders: DataFrame, within_s: float) -> DataFrame:
    """Return ``orders`` with ``back_after_s``: null unless the move returns its bundle.

    It does if the bundle was moved away from the target within ``within_s`` before. Only ordered
    moves count.
    """
    time = F.col("ordered_at_ms")
    before = (
        Window.partitionBy("cluster", "bundle", "was_ordered")
        .orderBy("ordered_at_ms")
        .rangeBetween(-round(within_s * 1000), -1)
    )
    left = F.collect_list(
        F.when(F.col("source").isNotNull(), F.struct("source", "ordered_at_ms"))
    ).over(before)
    home = F.filter(left, lambda one: one["source"] == F.col("target"))
    since_ms = F.array_max(F.transform(home, lambda one: one["ordered_at_ms"]))
    back = F.when(F.col("was_ordered") & F.col("source").isNotNull(), (time - since_ms) / 1000)
    return (
        orders.withColumn("was_ordered", F.col("outcome").isin(*_ORDERED))
        .withColumn("back_after_s", back)
        .drop("was_ordered")
    )


def ping_pong(effects: DataFrame) -> DataFrame:
    """Return the bundles that returned, those with most returns first.

    In: the columns of the table ``move_effects``. Out: those of the table ``ping_pong``.
    """
    ordered = effects.where(F.col("outcome").isin(*_ORDERED))
    returned = F.col("back_after_s").isNotNull()
    found = ordered.groupBy("cluster", "bundle", "namespace").agg(
        F.count_if(returned).alias("returns"),
        F.count_if(returned & F.col("for_balance")).alias("returns_for_balance"),
        F.count("*").alias("moves"),
        F.size(F.array_union(F.collect_set("source"), F.collect_set("target"))).alias("brokers"),
        F.min("back_after_s").alias("shortest_back_s"),
        F.median("back_after_s").alias("median_back_s"),
        F.coalesce(F.sum("pause_s"), F.lit(0.0)).alias("pause_s"),
        F.coalesce(F.sum("messages_delayed"), F.lit(0.0)).alias("messages_delayed"),
        F.mode("cause").alias("usual_cause"),
        F.min("ordered_at").alias("first_at"),
        F.max("ordered_at").alias("last_at"),
    )
    rank = Window.partitionBy("cluster").orderBy(
        F.desc("returns"), F.desc("messages_delayed"), "bundle"
    )
    return found.where("returns > 0").withColumn("rank", F.row_number().over(rank))


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
        .withColumn(
            "verdict",
            F.when(F.col("reason") != "", Verdict.UNKNOWN.value)
            .when(F.col("gain") > F.col("tolerance"), Verdict.HELPED.value)
            .when(F.col("gain") < -F.col("tolerance"), Verdict.HURT.value)
            .otherwise(Verdict.NO_DIFFERENCE.value),
        )
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


@dataclass(frozen=True, slots=True)
class Recorded:
    """The input tables; ``loads`` is the result of `windows.loads`."""

    moves: DataFrame
    hand_overs: DataFrame
    loads: DataFrame
    bundle_load: DataFrame


@dataclass(frozen=True, slots=True)
class Effects:
    """``moves`` has a row for each move, ``targets`` one for each change of a target."""

    moves: DataFrame
    targets: DataFrame


Keep = Callable[[DataFrame], DataFrame]
"""Returns the same frame, computed once however often it is read."""


def effects(given: Recorded, windows: Windows, back_within_s: float, *, keep: Keep) -> Effects:
    """Return the effects of all moves.

    A bundle that returns within ``back_within_s`` counts as returned. Frames that are read more
    than once are passed to ``keep``.
    """
    handed = with_returns(with_hand_overs(given.moves, given.hand_overs), back_within_s)
    orders = keep(with_moments(handed, windows))
    finished = orders.where("acquired_at_ms IS NOT NULL")
    spans = keep(moments(finished, windows))
    busy = touched(spans, finished, windows)
    grown = changes(spans, busy, given.loads, windows)
    measured = (
        orders.join(_around(orders, given.loads, windows), list(KEY), "left")
        .join(_clients(orders, given.bundle_load, windows), list(KEY), "left")
        .join(grown, ["cluster", "moment_ms"], "left")
    )
    predicted = keep(with_predictions(measured))
    carried_out = predicted.where("acquired_at_ms IS NOT NULL")
    arrived = keep(target_changes(carried_out, spans, windows))
    of_target = arrived.withColumnRenamed("broker", "target")
    joined = predicted.join(of_target, ["cluster", "moment_ms", "target"], "left")
    return Effects(_columns(judged(joined, windows.window_s)), arrived)


def _around(orders: DataFrame, loads: DataFrame, windows: Windows) -> DataFrame:
    """Return the means of source and target before the order and after the bundle arrived."""
    width = windows.width_ms
    ends = {
        "before": (F.col("ordered_at_ms") - width, F.col("ordered_at_ms")),
        "after": (F.col("acquired_at_ms"), F.col("acquired_at_ms") + width),
    }
    asked = union(
        [
            orders.where(F.col(role).isNotNull() & ends[phase][0].isNotNull()).select(
                *KEY,
                F.col(role).alias("broker"),
                ends[phase][0].alias("from_ms"),
                ends[phase][1].alias("until_ms"),
                F.lit(phase == "after").alias("clean"),
                F.lit(f"{role}_{phase}").alias("window"),
            )
            for role in _ROLES
            for phase in _PHASES
        ]
    )
    found = means(asked, loads, windows, ["cluster", "broker"], [*KEY, "window"])
    return found.groupBy(*KEY).agg(
        *(
            F.max(F.when(F.col("window") == name, F.struct("covered_s", *MEASURES))).alias(name)
            for name in (f"{role}_{phase}" for role in _ROLES for phase in _PHASES)
        )
    )


def _clients(orders: DataFrame, bundle_load: DataFrame, windows: Windows) -> DataFrame:
    """Return topics and clients of each moved bundle in the last report of its source."""
    width = windows.width_ms

    end = F.col("ordered_at_ms")
    asked = orders.where("source IS NOT NULL").select(
        *KEY,
        "bundle",
        F.col("source").alias("broker"),
        "ordered_at_ms",
        F.explode(buckets(end - width, end, windows)).alias("bucket"),
    )
    rows = bundle_load.select(
        "cluster",
        "bundle",
        "broker",
        "reported_at_ms",
        "topics",
        (F.col("producers") + F.col("consumers")).alias("connections"),
        bucket_of(F.col("reported_at_ms"), windows).alias("bucket"),
    )
    within = (F.col("reported_at_ms") <= end) & (F.col("reported_at_ms") > end - width)
    latest = F.max_by(F.struct("topics", "connections"), "reported_at_ms")
    found = rows.join(asked, ["cluster", "bundle", "broker", "bucket"]).where(within)
    return found.groupBy(*KEY).agg(latest.alias("clients")).select(*KEY, "clients.*")


def _columns(judged: DataFrame) -> DataFrame:
    around = {
        f"{role}_{phase}": F.when(
            F.col(f"{role}_{phase}").isNotNull(),
            F.struct(
                *(F.col(f"{role}_{phase}.{name}").alias(name) for name in ("covered_s", *FRACTIONS))
            ),
        )
        for role in _ROLES
        for phase in _PHASES
    }
    delayed = F.coalesce(F.col("msgs_in_per_s") * F.col("pause_s"), F.lit(0.0))
    times = {
        "ordered_at": F.timestamp_millis("ordered_at_ms"),
        "acquired_at": F.timestamp_millis("acquired_at_ms"),
    }
    uses = [
        F.struct(*(F.col(f"{model}.{name}").alias(model) for model in MODELS)).alias(name)
        for name in USED
    ]
    return judged.withColumns(
        around
        | times
        | {
            "namespace": namespace_of("bundle"),
            "messages_delayed": F.when(F.col("pause_s").isNotNull(), delayed),
            "bundle_uses": F.struct(*uses),
            "target_change": F.when(F.col("counted").isNotNull(), F.struct(*USED)),
        }
    )


def summary(effects: DataFrame) -> DataFrame:
    """Return the summary of the moves of each cause and strategy.

    In: the columns of the table ``move_effects``; out: those of ``move_summary``.
    """
    verdict = F.col("verdict")
    known = F.count_if(verdict != "unknown")
    return effects.groupBy("cluster", "shedder", "placement", "cause").agg(
        F.count("*").alias("moves"),
        F.count_if(F.col("ended") == "finished").alias("finished"),
        known.alias("judged"),
        F.count_if(verdict == "helped").alias("helped"),
        F.count_if(verdict == "no difference").alias("no_difference"),
        F.count_if(verdict == "hurt").alias("hurt"),
        F.try_divide(F.count_if(verdict == "helped"), known).alias("helped_fraction"),
        F.avg(F.when(verdict != "unknown", F.col("gain"))).alias("gain_mean"),
        F.avg(F.col("max_over_mean_before") - F.col("max_over_mean_after")).alias("evened_mean"),
        F.count_if(F.col("back_after_s").isNotNull()).alias("returns"),
        F.percentile_approx("pause_s", 0.5, 1000).alias("pause_p50_s"),
        F.percentile_approx("pause_s", 0.95, 1000).alias("pause_p95_s"),
        F.coalesce(F.sum("pause_s"), F.lit(0.0)).alias("pause_s"),
        F.coalesce(F.sum("messages_delayed"), F.lit(0.0)).alias("messages_delayed"),
        F.coalesce(F.sum("topics"), F.lit(0)).alias("topics"),
        F.coalesce(F.sum("connections"), F.lit(0)).alias("connections"),
    )

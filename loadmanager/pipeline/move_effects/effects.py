"""Every move with its hand-over, both brokers before and after it, and its cost for clients."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.expressions import union
from loadmanager.pipeline.move_effects.control import changes, moments, touched, with_moments
from loadmanager.pipeline.move_effects.hand_overs import (
    KEY,
    with_hand_overs,
    with_returns,
)
from loadmanager.pipeline.move_effects.predictions import MODELS, target_changes, with_predictions
from loadmanager.pipeline.move_effects.verdicts import judged
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

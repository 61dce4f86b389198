"""Predicted load that moves add to their targets, by shares of traffic, and the measured load.

All moves of one moment to or from a broker are one change of its usage: reports cannot separate
them.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.expressions import union
from loadmanager.pipeline.move_effects.windows import USED, Windows, bucket_of, buckets

SHARE: Final = "traffic_share"
MODELS: Final = (SHARE,)


def with_predictions(orders: DataFrame) -> DataFrame:
    """Return ``orders`` with the usage of the bundle.

    In: ``source_before`` and the bundle's rates. Out: ``traffic_share``, a struct by `USED` in the
    units of reports; null where the rates are not known.
    """
    return orders.withColumn(SHARE, _by_share())


def _by_share() -> Column:
    """Return the usage by the rule of `core.projection`: a share of the source's."""

    def share(*rates: str) -> Column:
        part = sum((F.col(rate) for rate in rates), F.lit(0.0))
        whole = sum((F.col(f"source_before.{rate}") for rate in rates), F.lit(0.0))
        return F.least(F.coalesce(F.try_divide(part, whole), F.lit(0.0)), F.lit(1.0))

    msgs = share("msgs_in_per_s", "msgs_out_per_s")
    volume = share("bytes_in_per_s", "bytes_out_per_s")
    shares = {
        "cpu": (msgs + volume) / 2,
        "direct_memory": volume,
        "bandwidth_in": share("bytes_in_per_s"),
        "bandwidth_out": share("bytes_out_per_s"),
    }
    used = [(F.col(f"source_before.{name}_usage") * shares[name]).alias(name) for name in USED]
    known = F.col("msgs_in_per_s").isNotNull() & F.col("source_before").isNotNull()
    return F.when(known, F.struct(*used))


def target_changes(orders: DataFrame, moments: DataFrame, windows: Windows) -> DataFrame:
    """Return how the moves of each moment, and others near it, changed their targets.

    In: orders that were carried out, with predictions, ``target_before, target_after``
    and the growth of the control; and the times of the ``moments``. Out: ``cluster,
    moment_ms, broker, counted`` (moves that came or went), and for each of `USED` a struct
    of ``traffic_share`` (the predicted sum of all these moves) and ``realised``
    (the measured change, less the growth of the control).

    A move is weighted by how much more it overlaps the window after than the window before: a move
    of the moment itself by 1, one in the middle of either window by a half.
    """
    measured = _measured(orders).join(moments, ["cluster", "moment_ms"])
    width = windows.width_ms
    asked = measured.withColumn(
        "bucket",
        F.explode(buckets(F.col("first_ms") - width, F.col("done_ms") + width, windows)),
    )
    at_ms = F.col("moved_ms")
    lies_in = [
        F.least(F.greatest((end - at_ms) / width, F.lit(0.0)), F.lit(1.0))
        for end in (F.col("first_ms"), F.col("done_ms") + width)
    ]
    counts = (lies_in[1] - lies_in[0]) * F.col("sign")
    sides = union([_side(orders, "target", 1), _side(orders, "source", -1)])
    met = asked.join(
        sides.withColumn("bucket", bucket_of(at_ms, windows)), ["cluster", "broker", "bucket"]
    ).withColumn("counts", counts)
    keys = ("cluster", "moment_ms", "broker")
    return met.where("counts <> 0").groupBy(*keys).agg(
        F.count("*").alias("counted"),
        *(
            F.struct(
                *(_sum_of(f"{model}.{name}").alias(model) for model in MODELS),
                F.first(f"realised_{name}").alias("realised"),
            ).alias(name)
            for name in USED
        ),
    )  # fmt: skip


def _sum_of(name: str) -> Column:
    """Return the weighted sum; null if the usage of one move is unknown."""
    return F.when(F.count(name) == F.count("*"), F.sum(F.col(name) * F.col("counts")))


def _measured(orders: DataFrame) -> DataFrame:
    """Return the measured change of the targets of each moment."""
    realised = {
        name: F.col(f"target_after.{name}_usage")
        - F.col(f"target_before.{name}_usage") * F.col(f"growth_{name}_usage")
        for name in USED
    }
    return (
        orders.groupBy("cluster", "moment_ms", F.col("target").alias("broker"))
        .agg(*(F.avg(value).alias(f"realised_{name}") for name, value in realised.items()))
        .where(" OR ".join(f"realised_{name} IS NOT NULL" for name in USED))
    )


def _side(orders: DataFrame, role: str, sign: int) -> DataFrame:
    """Return the change by each move for one of its brokers, and its time."""
    released_ms = F.coalesce("released_at_ms", "acquired_at_ms")
    return orders.where(F.col(role).isNotNull()).select(
        "cluster",
        F.col(role).alias("broker"),
        F.lit(sign).alias("sign"),
        (F.col("acquired_at_ms") if role == "target" else released_ms).alias("moved_ms"),
        *MODELS,
    )


def errors(changes: DataFrame) -> DataFrame:
    """Return the errors of each model for each resource.

    In: what `target_changes` returns. Out: ``cluster, resource, model, changes,
    realised_mean, error_mean, bias_mean`` (units of the resource) and ``error_fraction``,
    the sum of errors over the sum of realised changes.
    """
    rows = union(
        [
            changes.select(
                "cluster",
                F.lit(name).alias("resource"),
                F.lit(model).alias("model"),
                F.col(f"{name}.{model}").alias("predicted"),
                F.col(f"{name}.realised").alias("realised"),
            )
            for name in USED
            for model in MODELS
        ]
    ).where("predicted IS NOT NULL AND realised IS NOT NULL")
    off = F.col("predicted") - F.col("realised")
    return rows.groupBy("cluster", "resource", "model").agg(
        F.count("*").alias("changes"),
        F.avg("realised").alias("realised_mean"),
        F.avg(F.abs(off)).alias("error_mean"),
        F.avg(off).alias("bias_mean"),
        F.try_divide(F.sum(F.abs(off)), F.sum(F.abs("realised"))).alias("error_fraction"),
    )

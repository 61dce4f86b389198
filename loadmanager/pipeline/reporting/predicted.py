"""Hourly usage of brokers, predicted by the learned costs and measured."""

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.cost_model.rows import RATES
from loadmanager.pipeline.reporting.sources import Row, Tables, rows

_FULL: Final = 0.9
"""The usage of fuller minutes is only a lower bound of the demand."""

_LEAST_SECONDS: Final = 600.0


def terms_of(tables: Tables) -> list[Row]:
    order = ("broker_class", "resource", "rate")
    return rows(tables.table("cost_terms").orderBy(*order))


def broker_hours(tables: Tables, terms: list[Row], resource: str = "cpu") -> DataFrame:
    """Return the measured and predicted usage of a resource by broker and hour.

    Out: ``broker, broker_class, at_ms, used, by_traffic, background``: means over the
    minutes that are not full, in the unit of the resource. ``by_traffic`` leaves the
    background out; it is null for a class without terms.
    """
    minutes = (
        tables.table("broker_minutes")
        .where(f"{resource}_limit > 0")
        .withColumns(
            {
                "connections_mean": F.col("producers_mean") + F.col("consumers_mean"),
                "used": F.col(f"{resource}_usage_mean"),
            }
        )
    )
    open_minutes = minutes.where(F.col("used") < _FULL * F.col(f"{resource}_limit"))
    hours = open_minutes.withColumn("by_traffic", _by_traffic(terms, resource)).groupBy(
        "broker", "broker_class", F.unix_millis(F.date_trunc("hour", "minute")).alias("at_ms")
    )
    weighted = [
        F.try_divide(F.sum(F.col(name) * F.col("seconds")), F.sum("seconds")).alias(name)
        for name in ("used", "by_traffic")
    ]
    means = hours.agg(*weighted, F.sum("seconds").alias("seconds")).where(
        F.col("seconds") >= _LEAST_SECONDS
    )
    idle = (
        tables.table("backgrounds")
        .where(F.col("resource") == resource)
        .select("broker", "broker_class", F.col("value").alias("background"))
    )
    return means.join(F.broadcast(idle), ["broker", "broker_class"], "left")


def _by_traffic(terms: list[Row], resource: str) -> Column:
    mine = [row for row in terms if row["resource"] == resource and row["rate"] in RATES]
    by_class: dict[str, list[Row]] = {}
    for row in mine:
        by_class.setdefault(row["broker_class"], []).append(row)

    def use(of_class: list[Row]) -> Column:
        parts = [
            F.coalesce(F.col(f"{row['rate']}_mean"), F.lit(0.0)) * F.lit(row["value"] or 0.0)
            for row in of_class
        ]
        return sum(parts, F.lit(0.0))

    return reduce(
        lambda found, one: F.when(F.col("broker_class") == one[0], use(one[1])).otherwise(found),
        by_class.items(),
        F.lit(None).cast("double"),
    )

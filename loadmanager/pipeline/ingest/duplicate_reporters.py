"""Brokers that two sidecars reported on at the same time: which reports count.

A broker has one sidecar. Where two instances reported on it at overlapping times (a second one was
started with its name, or two runs of a simulation share a directory), its load would count twice.
The instance that began later counts, as in the service, where a starting sidecar takes over. The
reports of the other one between its first and its last report are excluded when tables are read.
Nothing is deleted, and since all batches are considered, the order of ingestion does not matter.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

_BROKER: Final = ["cluster", "broker"]
_WHO: Final = [*_BROKER, "writer", "instance"]


def spans_of(reports: DataFrame) -> DataFrame:
    """Return the time span of the reports of each instance on a broker (`SPANS`)."""
    at_ms = F.col("reported_at_ms")
    return reports.groupBy(*_WHO).agg(
        F.min("started_at_ms").alias("started_at_ms"),
        F.min(at_ms).alias("first_ms"),
        F.max(at_ms).alias("last_ms"),
    )


def duplicate_reports(spans: DataFrame) -> DataFrame:
    """Return the time spans of excluded reports (`DUPLICATES`), given the spans of all batches."""
    whole = spans.groupBy(*_WHO).agg(
        F.min("started_at_ms").alias("started_at_ms"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
    )
    stands = whole.select(
        *_BROKER, *(F.col(name).alias(f"_{name}") for name in whole.columns if name not in _BROKER)
    )
    began = F.struct("started_at_ms", "writer", "instance")
    began_later = F.struct("_started_at_ms", "_writer", "_instance") > began
    overlap = (F.col("first_ms") <= F.col("_last_ms")) & (F.col("_first_ms") <= F.col("last_ms"))
    return (
        whole.join(stands, _BROKER)
        .where(began_later & overlap)
        .select(
            *_WHO,
            F.col("_instance").alias("for_instance"),
            F.greatest("first_ms", "_first_ms").alias("from_ms"),
            F.least("last_ms", "_last_ms").alias("until_ms"),
        )
    )


def counting_reports(reports: DataFrame, passed_over: DataFrame) -> DataFrame:
    """Return rows of reports without the excluded ones (``passed_over``: `DUPLICATES`)."""
    passed = passed_over.select(*_WHO, "from_ms", "until_ms").alias("passed")
    rows = reports.alias("rows")
    same = [F.col(f"rows.{name}").eqNullSafe(F.col(f"passed.{name}")) for name in _WHO]
    within = F.col("rows.reported_at_ms").between(F.col("passed.from_ms"), F.col("passed.until_ms"))
    condition = within
    for one in same:
        condition &= one
    return rows.join(F.broadcast(passed), condition, "left_anti")

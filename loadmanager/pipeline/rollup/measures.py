"""Measures over time, and the names of their columns in derived tables.

A measure ``x`` has the columns ``x_mean`` (weighted by time), ``x_max``, and, over longer
periods, ``x_p50``, ``x_p95``, ``x_p99``.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DoubleType, StructField

from loadmanager.core.history.schema import TRAFFIC
from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.contract import column

RATES: Final = tuple(one.name for one in TRAFFIC)
FRACTIONS: Final = tuple(f"{resource}_fraction" for resource in RESOURCES)
"""Usage over limit of each resource; null if it was not measured."""

PERCENTILES: Final = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))

_UNITS: Final = {
    **{one.name: one.meaning.rstrip(".") for one in TRAFFIC},
    **{
        name: f"Part of the {name.removesuffix('_fraction').replace('_', ' ')} that is used, of 1"
        for name in FRACTIONS
    },
}
_STATISTICS: Final = {
    "mean": "mean, weighted by time",
    "p50": "median",
    "p95": "95th percentile",
    "p99": "99th percentile",
    "max": "highest",
}


def statistics(measures: Sequence[str], kept: Sequence[str]) -> list[StructField]:
    """Return the columns of measures, for the statistics in ``kept`` (``mean``, ``p50``...)."""
    return [
        column(f"{measure}_{one}", DoubleType(), f"{_UNITS[measure]}: {_STATISTICS[one]}.")
        for measure in measures
        for one in kept
    ]


def percentiles(value: Column, measure: str) -> list[Column]:
    """Return aggregates: the 50th, 95th and 99th percentiles.

    They are exact; each is a value that occurred, or null without values.
    """
    in_order = F.sort_array(F.collect_list(value))
    return [
        F.get(in_order, F.ceil(F.size(in_order) * F.lit(part)).cast("int") - 1).alias(
            f"{measure}_{name}"
        )
        for name, part in PERCENTILES
    ]

"""Column expressions and operations on frames that several jobs share."""

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name


def weighted_mean(value: Column, weight: Column) -> Column:
    """Return an aggregate: the mean of ``value`` by ``weight``, over the rows that have one."""
    known = F.when(value.isNotNull(), weight)
    return F.try_divide(F.sum(value * weight), F.sum(known))


def union(frames: Iterable[DataFrame], *, missing_columns: bool = False) -> DataFrame:
    """Return the rows of all frames; with ``missing_columns`` a column may be missing, as null."""
    return reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=missing_columns), frames
    )

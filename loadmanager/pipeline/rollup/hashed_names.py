"""Hashes in place of long names, while rows are grouped, sorted and shuffled.

The name of a bundle has 50 characters or more, and grouping compares, copies and moves the keys.
Two hashes of 64 bits replace the name, which is joined to the (far fewer) resulting rows.

The probability that two of a million names have the same 128 bits is about 10^-27 (half the square
of their number over 2^128). The hashes do not resist an adversary: a client that can choose names
of bundles to corrupt tables can also send wrong loads.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

KEY: Final = ("key_1", "key_2")
"""The columns that together replace a name."""

_SEEDS: Final = (1, 2)


def keys_of(names: Sequence[str]) -> list[Column]:
    """Return the columns `KEY` for the columns ``names``, none of which may be null."""
    return [
        F.xxhash64(F.lit(seed), *names).alias(key) for key, seed in zip(KEY, _SEEDS, strict=True)
    ]


def names_in(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the distinct ``names`` in ``rows`` with their `KEY`."""
    return rows.select(*names).distinct().select(*keys_of(names), *names)


def with_names(rows: DataFrame, named: DataFrame) -> DataFrame:
    """Return ``rows`` with their names (`names_in`) in place of their `KEY`.

    All names are broadcast to the executors, about 200 bytes for each.
    """
    return rows.join(F.broadcast(named), list(KEY)).drop(*KEY)

"""Rows by two numbers in the place of long names, while they are grouped, sorted and shuffled.

The name of a bundle has fifty characters and more, and grouping compares, copies and
moves what it groups by. Two hashes of 64 bits do instead; the names are joined again to
what comes out, which is a row for many.

That two of a million names have the same 128 bits, so that they would be taken for one,
has odds of 1 to 10^27 (half the square of their number over 2^128). The hashes are
not made against an adversary: a client may choose names of bundles in order to spoil history's
tables may as well send loads that were never there.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

KEY: Final = ("key_1", "key_2")
"""Columns that stand for a name, together."""

_SEEDS: Final = (1, 2)


def keys_of(names: Sequence[str]) -> list[Column]:
    """Return the columns `KEY` of the columns that name something; none of them may be null."""
    return [
        F.xxhash64(F.lit(seed), *names).alias(key) for key, seed in zip(KEY, _SEEDS, strict=True)
    ]


def names_in(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return what is named in rows, each once, with its `KEY`."""
    return rows.select(*names).distinct().select(*keys_of(names), *names)


def with_names(rows: DataFrame, named: DataFrame) -> DataFrame:
    """Return rows that have a `KEY` with their names (`names_in`) in its place.

    All names are sent to all executors, instead of the rows to where their names are: that
    is some 200 bytes of memory for each.
    """
    return rows.join(F.broadcast(named), list(KEY)).drop(*KEY)

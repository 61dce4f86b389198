"""Statistics of hours and days, computed from minutes with arrays.

For percentiles Spark would collect lists value by value, which takes most of the time of a rollup.
Passing the rows to Python takes a fraction of that.

A measure ``x`` has the columns ``x_mean`` (weighted by time), ``x_max``, and, over longer
periods, ``x_p50``, ``x_p95``, ``x_p99``.

Two hashes of 64 bits stand in place of the name of a bundle (50 characters or more) while rows are
grouped, sorted and shuffled. The probability that two of a million names have the same 128 bits is
about 10^-27 (half the square of their number over 2^128). The hashes do not resist an adversary: a
client that can choose names of bundles to corrupt tables can also send wrong loads.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DoubleType, StructField

from loadmanager.core.bounds import DAY_MS, HOUR_MS
from loadmanager.core.history.schema import TRAFFIC
from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.contract import column

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DAY: Final = "day"
KEY: Final = ("key_1", "key_2")
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


"""A column of minutes: a hash of key and day."""

WITH_DEVIATION: Final = ("msgs", "bytes")
"""Rates whose standard deviation over minutes is computed, in and out together."""

_AT_ONCE: Final = 50_000
"""Minutes per call: some megabytes, and enough to make the overhead of numpy negligible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """The computation of hours and days from the minutes of each `KEY`.

    ``measures`` have columns ``x_mean``; those in ``with_max`` also have ``x_max``.
    """

    measures: tuple[str, ...]
    with_max: frozenset[str]

    @property
    def read(self) -> list[str]:
        """Return the input columns besides `KEY`, ``minute_ms`` and `DAY`."""
        means = [f"{measure}_mean" for measure in self.measures]
        highest = [f"{measure}_max" for measure in self.measures if measure in self.with_max]
        return ["seconds", *means, *highest]

    @property
    def schema(self) -> str:
        """Return the schema of `computed`."""
        names = ["mean", *(name for name, _ in PERCENTILES), "max"]
        doubles = [
            "seconds",
            *(f"{measure}_{name}" for measure in self.measures for name in names),
            *(f"{what}_per_s_std" for what in WITH_DEVIATION),
        ]
        numbers = [*KEY, "length_ms", "period_ms", "minutes"]
        return ", ".join(
            [*(f"{name} bigint" for name in numbers), *(f"{name} double" for name in doubles)]
        )

    def computed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each key and period; minutes of the same `DAY` have to be contiguous."""
        for minutes in _whole_days(batches):
            for length_ms in (HOUR_MS, DAY_MS):
                yield self._row_each(minutes, length_ms)

    def _row_each(self, minutes: pa.Table, length_ms: int) -> pa.RecordBatch:
        groups = _Groups.of(minutes, length_ms)
        seconds = _numbers(minutes, "seconds")
        columns: dict[str, IntArray | FloatArray] = {
            **{name: _integers(minutes, name)[groups.starts] for name in KEY},
            "length_ms": np.full(len(groups.starts), length_ms),
            "period_ms": _periods_of(minutes, length_ms)[groups.starts] * length_ms,
            "minutes": groups.sizes,
            "seconds": groups.sums(seconds),
        }
        for measure in self.measures:
            values = _numbers(minutes, f"{measure}_mean")
            known = _numbers(minutes, f"{measure}_max") if measure in self.with_max else values
            found = {"mean": groups.means(values, seconds), **groups.percentiles(values)}
            found["max"] = np.fmax.reduceat(known, groups.starts)
            columns |= {f"{measure}_{name}": each for name, each in found.items()}
        for what in WITH_DEVIATION:
            both = sum(_numbers(minutes, f"{what}_{way}_per_s_mean") for way in ("in", "out"))
            columns[f"{what}_per_s_std"] = groups.deviations(np.asarray(both), seconds)
        arrays = [pa.array(column, from_pandas=True) for column in columns.values()]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups of contiguous rows: the start and the size of each.

    NaN stands for values that were not measured; they are ignored.
    """

    starts: IntArray
    sizes: IntArray

    @classmethod
    def of(cls, minutes: pa.Table, length_ms: int) -> "_Groups":
        begins = np.zeros(minutes.num_rows, dtype=np.bool_)
        begins[0] = True
        for values in (
            *(_integers(minutes, name) for name in KEY),
            _periods_of(minutes, length_ms),
        ):
            begins[1:] |= values[1:] != values[:-1]
        starts = np.flatnonzero(begins)
        return cls(starts, np.diff(starts, append=minutes.num_rows))

    def sums(self, values: FloatArray) -> FloatArray:
        found: FloatArray = np.add.reduceat(values, self.starts)
        return found

    def means(self, values: FloatArray, weights: FloatArray) -> FloatArray:
        known = ~np.isnan(values)
        weight = self.sums(np.where(known, weights, 0.0))
        total = self.sums(np.where(known, values * weights, 0.0))
        none = np.full(len(total), np.nan)
        found: FloatArray = np.divide(total, weight, out=none, where=weight > 0)
        return found

    def deviations(self, values: FloatArray, weights: FloatArray) -> FloatArray:
        mean = self.means(values, weights)
        square: FloatArray = self.means(values * values, weights) - mean * mean
        return np.sqrt(np.maximum(square, 0.0))

    def percentiles(self, values: FloatArray) -> dict[str, FloatArray]:
        found = {name: np.full(len(self.starts), np.nan) for name, _ in PERCENTILES}
        # Groups of the same size are sorted together, one per row; most have 60 minutes.
        for size in np.unique(self.sizes):
            some = np.flatnonzero(self.sizes == size)
            rows = values[self.starts[some, np.newaxis] + np.arange(size)]
            in_order = np.sort(rows, axis=1)  # NaN comes last
            known = size - np.isnan(rows).sum(axis=1)
            for name, part in PERCENTILES:
                place = np.maximum(np.ceil(known * part).astype(np.int64) - 1, 0)
                found[name][some] = in_order[np.arange(len(some)), place]
        return found


def _whole_days(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in larger batches that do not divide a day of a key."""
    waiting: list[pa.Table] = []
    waiting_rows = 0
    for batch in batches:
        waiting.append(pa.Table.from_batches([batch]))
        waiting_rows += batch.num_rows
        if waiting_rows < _AT_ONCE:
            continue
        rows = pa.concat_tables(waiting)
        last = int(np.argmax(_integers(rows, DAY) == rows[DAY][-1].as_py()))
        if last:
            yield _in_order(rows.slice(0, last))
        waiting, waiting_rows = [rows.slice(last)], rows.num_rows - last
    rest = [one for one in waiting if one.num_rows]
    if rest:
        yield _in_order(pa.concat_tables(rest))


def _in_order(minutes: pa.Table) -> pa.Table:
    """Return rows sorted by key and time; two keys may have the same hash of their days."""
    order = np.lexsort([_integers(minutes, name) for name in ("minute_ms", *reversed(KEY))])
    return minutes.take(order)


def _periods_of(minutes: pa.Table, length_ms: int) -> IntArray:
    return _integers(minutes, "minute_ms") // length_ms


def _integers(rows: pa.Table, name: str) -> IntArray:
    found: IntArray = rows[name].to_numpy()
    return found


def _numbers(rows: pa.Table, name: str) -> FloatArray:
    found: FloatArray = rows[name].cast(pa.float64()).to_numpy()
    return found


def periods_of(measures: Sequence[str], columns: Sequence[str]) -> Periods:
    with_max = frozenset(measure for measure in measures if f"{measure}_max" in columns)
    return Periods(measures=tuple(measures), with_max=with_max)

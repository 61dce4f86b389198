"""Recomputes the leader's averages: samples added tick by tick, with the leader's arithmetic.

Works on arrays of Arrow and numpy, without Spark, one stretch (see `leader_averages`) at a time.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, add_samples
from loadmanager.core.history.schema import SHORT_AND_LONG
from loadmanager.pipeline.rollup.measures import RATES

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TERM: Final = ("cluster", "writer", "instance", "epoch")
STRETCH: Final = (*TERM, "round")
"""The key of a stretch: the base round at its beginning."""

START, LISTED = range(2)
"""The kind of a row: averages at the beginning, or a bundle in a report."""

AVERAGES: Final = tuple(one.name for one in SHORT_AND_LONG)
COUNTS: Final = ("short_samples", "long_samples", "topics")
NUMBERS: Final = ("from_tick", "until_tick", "line", "item")

STATES: Final = ", ".join(
    [
        *(f"{name} string" for name in STRETCH[:3]),
        *(f"{name} bigint" for name in STRETCH[3:]),
        "bundle string",
        *(f"{name} double" for name in AVERAGES),
        *(f"{name} bigint" for name in COUNTS),
    ]
)
"""The schema of `ended`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Averages of bundles, one per row; rates are (bundles, 4). Unknown without samples."""

    short: FloatArray
    long: FloatArray
    short_samples: IntArray
    long_samples: IntArray
    topics: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Listings:
    """Bundles listed by reports that count from ``from_tick`` to ``until_tick``, inclusive.

    ``rows`` are the bundles. They are in the order in which the leader processed the reports of
    a tick: if two list the same bundle, the later one counts.
    """

    rows: IntArray
    rates: FloatArray
    topics: IntArray
    from_tick: IntArray
    until_tick: IntArray


def replayed(state: State, listings: Listings, after_tick: int, until_tick: int) -> State:
    """Return the state after one sample of every listed bundle at each tick.

    The first sample is that of the tick after ``after_tick``, the last that of ``until_tick``.
    Bundles that no current report lists get no sample.
    """
    bundles = len(state.topics)
    by_begin = np.argsort(listings.from_tick, kind="stable")
    by_end = np.argsort(listings.until_tick, kind="stable")
    begins, ends = listings.from_tick[by_begin], listings.until_tick[by_end]
    listed = np.zeros(bundles, dtype=np.int64)
    rates, topics = np.zeros((bundles, 4)), np.zeros(bundles, dtype=np.int64)
    for tick in range(after_tick + 1, until_tick + 1):
        new = by_begin[np.searchsorted(begins, tick) : np.searchsorted(begins, tick, "right")]
        over = by_end[np.searchsorted(ends, tick - 1) : np.searchsorted(ends, tick - 1, "right")]
        rates[listings.rows[new]] = listings.rates[new]
        topics[listings.rows[new]] = listings.topics[new]
        listed += np.bincount(listings.rows[new], minlength=bundles)
        listed -= np.bincount(listings.rows[over], minlength=bundles)
        state = _sampled(state, rates, topics, listed > 0)
    return state


def _sampled(state: State, rates: FloatArray, topics: IntArray, listed: NDArray[np.bool_]) -> State:
    short, short_samples = add_samples(state.short, state.short_samples, rates, SHORT_SAMPLES)
    long, long_samples = add_samples(state.long, state.long_samples, rates, LONG_SAMPLES)
    every = listed[:, np.newaxis]
    return State(
        short=np.where(every, short, state.short),
        long=np.where(every, long, state.long),
        short_samples=np.where(listed, short_samples, state.short_samples),
        long_samples=np.where(listed, long_samples, state.long_samples),
        topics=np.where(listed, topics, state.topics),
    )


def ended(table: pa.Table) -> pa.Table:
    def column(name: str) -> NDArray[Any]:
        found: NDArray[Any] = table[name].fill_null(0).to_numpy()
        return found

    def matrix(names: tuple[str, ...], rows: IntArray) -> FloatArray:
        return np.column_stack([column(name)[rows] for name in names])

    encoded = table["bundle"].combine_chunks().dictionary_encode()
    names, bundle = encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)
    started = np.flatnonzero(column("what") == START)
    rates = np.zeros((len(names), len(AVERAGES)))
    rates[bundle[started]] = matrix(AVERAGES, started)
    counts = np.zeros((len(names), len(COUNTS)), dtype=np.int64)
    counts[bundle[started]] = matrix(COUNTS, started)
    short, long = np.hsplit(rates, 2)
    begin = State(short=short, long=long, **dict(zip(COUNTS, counts.T, strict=True)))
    listed = np.flatnonzero(column("what") == LISTED)
    listed = listed[np.lexsort((column("item")[listed], column("line")[listed]))]
    listings = Listings(
        rows=bundle[listed],
        rates=matrix(RATES, listed),
        **{
            name: column(name)[listed].astype(np.int64)
            for name in ("topics", "from_tick", "until_tick")
        },
    )
    state = replayed(begin, listings, int(column("tick")[0]), int(column("stretch_until")[0]))
    known = np.flatnonzero(state.short_samples > 0)
    averages = zip(AVERAGES, np.hstack([state.short, state.long])[known].T, strict=True)
    return pa.table(
        {
            **{name: pa.repeat(table[name][0], len(known)) for name in STRETCH},
            "bundle": names.take(pa.array(known)),
            **{name: pa.array(one) for name, one in averages},
            **{name: pa.array(getattr(state, name)[known]) for name in COUNTS},
        }
    )

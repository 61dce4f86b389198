"""Recomputes the leader's averages: samples added tick by tick, with the leader's arithmetic.

Works on arrays, without Spark. A *stretch* is the time from one base round, whose averages are
recorded, to a later tick of the same term.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, add_samples

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Averages of bundles, one per row; rates are (bundles, 4). Unknown without samples."""

    short: FloatArray
    long: FloatArray
    short_samples: IntArray
    long_samples: IntArray
    topics: IntArray

    @classmethod
    def unknown(cls, bundles: int) -> Self:
        """Return the state of bundles without samples."""
        none = np.zeros(bundles, dtype=np.int64)
        rates = np.zeros((bundles, 4))
        return cls(short=rates, long=rates, short_samples=none, long_samples=none, topics=none)

    def with_rows(self, rows: IntArray, other: Self) -> Self:
        """Return this state with ``rows`` replaced by those of ``other``, in order."""
        changed = {}
        for name in ("short", "long", "short_samples", "long_samples", "topics"):
            mine = getattr(self, name).copy()
            mine[rows] = getattr(other, name)
            changed[name] = mine
        return replace(self, **changed)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The agreement of two states; ``difference`` is the largest relative difference of a rate."""

    bundles: int
    equal: int
    difference: float


def agreement(ours: State, recorded: State, compared: NDArray[np.bool_]) -> Agreement:
    """Compare the ``compared`` bundles that have a sample in either state."""
    rows = np.flatnonzero(compared & ((ours.short_samples > 0) | (recorded.short_samples > 0)))
    same = np.ones(len(rows), dtype=np.bool_)
    difference = 0.0
    for name in ("short", "long"):
        mine, theirs = getattr(ours, name)[rows], getattr(recorded, name)[rows]
        same &= (mine == theirs).all(axis=1)
        apart, size = np.abs(mine - theirs), np.maximum(np.abs(theirs), np.finfo(np.float64).tiny)
        difference = max(difference, float((apart / size).max(initial=0.0, where=theirs != 0.0)))
    for name in ("short_samples", "long_samples", "topics"):
        same &= getattr(ours, name)[rows] == getattr(recorded, name)[rows]
    return Agreement(bundles=len(rows), equal=int(same.sum()), difference=difference)

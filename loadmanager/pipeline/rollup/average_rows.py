"""Conversion between rows of Spark and arrays of `average_replay`, one stretch at a time."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loadmanager.core.history.schema import SHORT_AND_LONG
from loadmanager.pipeline.rollup.average_replay import (
    Listings,
    State,
    agreement,
    replayed,
)
from loadmanager.pipeline.rollup.measures import RATES
from loadmanager.pipeline.rollup.stretches import STRETCH

START, LISTED, END, CUT = range(4)
"""The kind of a row: averages at the beginning, a bundle in a report, averages at the end, or a
bundle that was split or merged in between."""

AVERAGES: Final = tuple(one.name for one in SHORT_AND_LONG)
COUNTS: Final = ("short_samples", "long_samples", "topics")
NUMBERS: Final = ("from_tick", "until_tick", "line", "item")

_OF_STRETCH: Final = ", ".join(
    f"{name} {'string' if name in {'cluster', 'writer', 'instance'} else 'bigint'}"
    for name in STRETCH
)
STATES: Final = ", ".join(
    [
        _OF_STRETCH,
        "bundle string",
        *(f"{name} double" for name in AVERAGES),
        *(f"{name} bigint" for name in COUNTS),
    ]
)
"""The schema of `ended`."""

CHECKS: Final = f"{_OF_STRETCH}, bundles bigint, equal bigint, cut bigint, difference double"
"""The schema of `checked`."""


class _Rows:
    """The rows of some bundles of one stretch; bundles are numbered from 0."""

    def __init__(self, table: pa.Table) -> None:
        encoded = table["bundle"].combine_chunks().dictionary_encode()
        self.names = encoded.dictionary
        self._bundle = encoded.indices.to_numpy().astype(np.int64)
        self._table = table
        self._what = self._column("what")

    def bundles(self, what: int) -> NDArray[np.int64]:
        """Return the bundles of the rows of one kind."""
        found: NDArray[np.int64] = self._bundle[self._what == what]
        return found

    def state(self, what: int) -> State:
        """Return the averages in the rows of one kind."""
        some = self._what == what
        short, long = (self._matrix(AVERAGES[half], some) for half in (slice(4), slice(4, 8)))
        counts = {name: self._column(name)[some].astype(np.int64) for name in COUNTS}
        made = State(short=short, long=long, **counts)
        return State.unknown(len(self.names)).with_rows(self._bundle[some], made)

    def after_samples(self) -> State:
        """Return the state at the end, computed from the beginning and all reports."""
        some = np.flatnonzero(self._what == LISTED)
        taken = np.lexsort((self._column("item")[some], self._column("line")[some]))
        some = some[taken]
        ticks = {name: self._column(name)[some].astype(np.int64) for name in NUMBERS[:2]}
        listings = Listings(
            rows=self._bundle[some],
            rates=self._matrix(RATES, some),
            topics=self._column("topics")[some].astype(np.int64),
            **ticks,
        )
        after, until = (int(self._column(name)[0]) for name in ("tick", "stretch_until"))
        return replayed(self.state(START), listings, after, until)

    def _column(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = self._table[name].fill_null(0).to_numpy()
        return column

    def _matrix(self, names: tuple[str, ...], some: NDArray[Any]) -> NDArray[np.float64]:
        return np.column_stack([self._column(name)[some] for name in names])


def ended(table: pa.Table) -> pa.Table:
    """Return the averages (`STATES`) of bundles with samples at the end of a stretch."""
    rows = _Rows(table)
    state = rows.after_samples()
    known = np.flatnonzero(state.short_samples > 0)
    columns = dict(zip(AVERAGES, np.hstack([state.short, state.long])[known].T, strict=True))
    return pa.table(
        {
            **_stretch(table, len(known)),
            "bundle": rows.names.take(pa.array(known)),
            **{name: pa.array(column) for name, column in columns.items()},
            **{name: pa.array(getattr(state, name)[known]) for name in COUNTS},
        }
    )


def checked(table: pa.Table) -> pa.Table:
    """Return the agreement (`CHECKS`) of computed and recorded averages at the end."""
    rows = _Rows(table)
    compared = np.ones(len(rows.names), dtype=np.bool_)
    cut = np.unique(rows.bundles(CUT))
    compared[cut] = False
    found = agreement(rows.after_samples(), rows.state(END), compared)
    return pa.table(
        {
            **_stretch(table, 1),
            "bundles": [found.bundles],
            "equal": [found.equal],
            "cut": [len(cut)],
            "difference": [found.difference],
        }
    )


def _stretch(table: pa.Table, rows: int) -> dict[str, pa.Array]:
    return {name: pa.repeat(table[name][0], rows) for name in STRETCH}

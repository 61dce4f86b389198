"""The rows of the regression: minutes of brokers, and changes when bundles moved."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.scores import RESOURCES, FloatArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

RATES: Final = (
    "msgs_in_per_s",
    "msgs_out_per_s",
    "bytes_in_per_s",
    "bytes_out_per_s",
    "topics",
    "connections",
)
"""The rates that determine a bundle's cost, in the order of the columns of all arrays."""

RATE_COUNT: Final = len(RATES)
RESOURCE_COUNT: Final = len(RESOURCES)

FITS: Final = ("all", "training", "first", "last")
"""Fits to parts of the rows: for the tables, for validation on held-out blocks, for drift."""

ALL, TRAINING, FIRST, LAST = range(len(FITS))


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
    """Rows of the regression, by `unit` and then by `block`.

    A unit is one broker in one class. A row is a minute of it, or (``level`` False) the
    difference between after and before a change of its bundles. ``rates`` (n, 6) are in
    the order of `RATES`; ``usage`` and ``limit`` (n, 5) in that of `RESOURCES`, NaN if not
    measured. ``block`` is a
    period, usually a day, within which errors may be correlated; ``held_out`` blocks are not used
    for training; ``late`` is the second half of the history.
    """

    unit: Ints
    block: Ints
    level: Flags
    held_out: Flags
    late: Flags
    rates: FloatArray
    usage: FloatArray
    limit: FloatArray

    def __len__(self) -> int:
        return len(self.unit)

    def take(self, chosen: slice | Flags | Ints) -> "Rows":
        return Rows(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})

    @staticmethod
    def joined(parts: Iterable["Rows"]) -> "Rows":
        found = list(parts)
        return Rows(
            **{
                one.name: np.concatenate([getattr(part, one.name) for part in found])
                for one in fields(Rows)
            }
        )

    def of_fit(self, fit: int) -> Flags:
        masks = (np.ones(len(self), dtype=np.bool_), ~self.held_out, ~self.late, self.late)
        return masks[fit]


Sums = Mapping[int, FloatArray]
"""Sums by a key: a unit's number, or ``-1 - c`` for a whole class ``c``."""

Summing = Callable[[Iterator[Rows]], Iterator[tuple[int, FloatArray]]]
"""Reads the rows of some units once and yields summands by key."""


class Source(Protocol):
    """The place of the rows: Spark's tasks, or an array in tests."""

    def sums(self, summing: Summing) -> Sums:
        """Return the sums of yielded values; one call of ``summing`` gets all rows of a unit."""


def added(parts: Iterable[tuple[int, FloatArray]]) -> Sums:
    found: dict[int, FloatArray] = {}
    for key, part in parts:
        found[key] = found[key] + part if key in found else part
    return found


def by_unit(batches: Iterator[Rows]) -> Iterator[tuple[int, Rows]]:
    """Yield the rows of batches in pieces of one unit each."""
    for rows in batches:
        for piece in _pieces(rows, rows.unit):
            yield int(piece.unit[0]), piece


def by_block(batches: Iterator[Rows]) -> Iterator[tuple[int, Rows]]:
    """Yield complete blocks, each once, with their units."""
    kept: Rows | None = None
    for rows in batches:
        whole = rows if kept is None else Rows.joined([kept, rows])
        pieces = list(_pieces(whole, whole.unit, whole.block))
        kept = pieces.pop() if pieces else None
        for piece in pieces:
            yield int(piece.unit[0]), piece
    if kept is not None:
        yield int(kept.unit[0]), kept


def _pieces(rows: Rows, *keys: Ints) -> Iterator[Rows]:
    if not len(rows):
        return
    changes = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(rows)]
    for start, end in pairwise(starts):
        yield rows.take(slice(start, end))

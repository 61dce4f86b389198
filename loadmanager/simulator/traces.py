"""Traces: recorded rates of topics, read from a file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.scores import FloatArray
from loadmanager.simulator.errors import ScenarioError
from loadmanager.simulator.trace_csv import csv_parts
from loadmanager.simulator.trace_parquet import parquet_parts
from loadmanager.simulator.trace_rows import TraceColumns, TraceFaults, TraceRows

__all__ = ["ScenarioError", "Trace", "read_trace"]

_CSV: Final = (".csv", ".csv.gz")
_PARQUET: Final = (".parquet", ".pq")
_NAMED: Final = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """The recorded rates of N topics at T times.

    ``times_s`` ascend from 0: the first time in the file is the beginning of the scenario. Rates
    are valid until the next time, the last ones until the end. ``topics`` are full names. ``rates``
    (T, N, 4) are messages and bytes per second in the order of `core.averages`. The arrays are
    read-only, because many runs share them.
    """

    times_s: FloatArray
    topics: tuple[str, ...]
    rates: NDArray[np.float32]


def read_trace(path: Path) -> Trace:
    """Return the trace of a CSV or Parquet file; `docs/scenario-format.md` has the rules.

    The last trace is cached until its file changes: strategies are compared on the same trace.

    Raises:
        ScenarioError: it cannot be read or has faults: invalid rows or, if there are none,
            duplicate or missing rows.
    """
    try:
        stat = path.stat()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ScenarioError([f"{path}: {why}; expected a readable file"]) from None
    return _read(path, (stat.st_mtime_ns, stat.st_size, stat.st_ino))


@lru_cache(maxsize=1)
def _read(path: Path, _version: tuple[int, int, int]) -> Trace:
    name = path.name.lower()
    if not name.endswith((*_CSV, *_PARQUET)):
        expected = f"expected a file that ends in {', '.join((*_CSV, *_PARQUET))}"
        raise ScenarioError([f"{path}: {expected}"])
    faults = TraceFaults(path, rows_are_lines=name.endswith(_CSV))
    parts = csv_parts(path, faults) if faults.rows_are_lines else parquet_parts(path, faults)
    rows, topics = _gathered(parts, faults)
    if not len(rows.numbers) and not faults.found:
        faults.add(None, "no rows; expected one for each topic at each time")
    faults.check()
    return _trace(rows, topics, faults)


def _gathered(
    parts: Iterator[tuple[TraceColumns, TraceRows]], faults: TraceFaults
) -> tuple[TraceRows, tuple[str, ...]]:
    """Return all rows together, and record times that decrease."""
    found: list[TraceRows] = []
    topics: dict[str, int] = {}
    latest_s = -np.inf
    for columns, rows in parts:
        topics = columns.topics
        before = np.concatenate([[latest_s], rows.times_s[:-1]])
        for at in np.flatnonzero((rows.times_s < before) & (rows.times_s >= 0)).tolist():
            fault = (
                f"time_s = {rows.times_s[at]:g} after {before[at]:g}; expected times that ascend"
            )
            faults.add(int(rows.numbers[at]), fault)
        latest_s = rows.times_s[-1]
        found.append(rows)
    return _joined(found), tuple(topics)


def _joined(parts: Sequence[TraceRows]) -> TraceRows:
    empty = np.empty(0, dtype=np.int64)
    nothing = TraceRows(empty, np.empty(0), empty, np.empty((0, 4), dtype=np.float32))
    parts = parts or [nothing]
    return TraceRows(
        np.concatenate([part.numbers for part in parts]),
        np.concatenate([part.times_s for part in parts]),
        np.concatenate([part.topics for part in parts]),
        np.concatenate([part.rates for part in parts]),
    )


def _trace(rows: TraceRows, topics: tuple[str, ...], faults: TraceFaults) -> Trace:
    """Return the rows as times by topics, each cell once.

    Raises:
        ScenarioError: a cell is duplicate or missing.
    """
    is_new = np.diff(rows.times_s, prepend=-np.inf) > 0
    times_s = rows.times_s[is_new]
    # Cells are numbered by time and topic, the order of rows in most files.
    cells = (np.cumsum(is_new) - 1) * len(topics) + rows.topics
    order = np.argsort(cells, kind="stable")
    in_order = cells[order]
    again = np.flatnonzero(np.diff(in_order) == 0)
    for at in again.tolist():
        first, second = rows.numbers[order[at]], rows.numbers[order[at + 1]]
        what = f"{topics[rows.topics[order[at]]]} at {rows.times_s[order[at]]:g} s"
        faults.add(int(second), f"{what} again; expected it once, as in row {first}")
    if len(cells) - len(again) < len(times_s) * len(topics):
        _report_gaps(np.unique(in_order), rows, topics, faults)
    faults.check()
    times_s = times_s - times_s[0]
    rates = rows.rates[order].reshape(len(times_s), len(topics), 4)
    times_s.flags.writeable = rates.flags.writeable = False
    return Trace(times_s=times_s, topics=topics, rates=rates)


def _report_gaps(
    cells: NDArray[np.int64], rows: TraceRows, topics: tuple[str, ...], faults: TraceFaults
) -> None:
    """Record each time at which topics have no row; a topic without traffic needs rows of 0."""
    times = np.unique(rows.times_s)
    ends = np.searchsorted(cells, np.arange(len(times) + 1) * len(topics))
    for at in np.flatnonzero(np.diff(ends) < len(topics)).tolist():
        there = cells[ends[at] : ends[at + 1]] - at * len(topics)
        missing = np.setdiff1d(np.arange(len(topics)), there)
        named = ", ".join(topics[code] for code in missing[:_NAMED].tolist())
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        last = rows.numbers[np.searchsorted(rows.times_s, times[at], side="right") - 1]
        fault = f"nothing of {named}{more} at {times[at]:g} s"
        faults.add(int(last), f"{fault}; expected a row for each topic, of 0 if it has no traffic")

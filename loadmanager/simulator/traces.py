"""Traces: recorded rates of topics, read from a CSV or Parquet file.

Files are read in parts. Rows are lines of text in CSV, and numbered from 1 in Parquet.
"""

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.bounds import RATE
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import parse_topic
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.scenario import ScenarioError

__all__ = ["ScenarioError", "Trace", "read_trace"]

TIME: Final = "time_s"
TOPIC: Final = "topic"

RATES: Final = ("msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out")
"""The columns of traffic, in the order of `core.averages`."""

MESSAGE_BYTES: Final = 1024.0
"""The assumed message size if a file only has rates or only throughputs."""

MAX_ROWS: Final = 50_000_000
"""The most rows of a file: about 4 GiB of memory while it is read."""

_CSV: Final = (".csv", ".csv.gz")
_PARQUET: Final = (".parquet", ".pq")
_NAMED: Final = 3
_PART_ROWS: Final = 65_536
_MAX_FAULTS: Final = 20
_LIMITS: Final = {TIME: 1e11} | dict.fromkeys(RATES, RATE.most)


def _sources(place: int) -> list[tuple[str, float]]:
    """Return the columns from which that of a place is derived, the first first, and factors.

    They are itself, the other figure of its direction, the same of the other direction, the other
    of the other direction.
    """
    factor = 1 / MESSAGE_BYTES if place < 2 else MESSAGE_BYTES  # noqa: PLR2004 - rates, then bytes
    other, back = (place + 2) % 4, place ^ 1
    return [
        (RATES[place], 1.0),
        (RATES[other], factor),
        (RATES[back], 1.0),
        (RATES[other ^ 1], factor),
    ]


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


@dataclass(slots=True)
class TraceFaults:
    """The faults of a file so far; rows are lines of text, or numbered from 1."""

    path: Path
    rows_are_lines: bool
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, row: int | None, fault: str) -> None:
        """Add a fault of a row, or of the whole file.

        Raises:
            ScenarioError: there are too many faults to continue.
        """
        self.found.append((row or 0, f"{self._place(row)}: {fault}"))
        if len(self.found) >= _MAX_FAULTS:
            more = f"{self.path}: and perhaps more; only the first {_MAX_FAULTS} are looked for"
            raise ScenarioError([*self._in_order(), more])

    def check(self) -> None:
        """Raise the faults, if there are any.

        Raises:
            ScenarioError: there is a fault.
        """
        if self.found:
            raise ScenarioError(self._in_order())

    def _in_order(self) -> list[str]:
        return [fault for _, fault in sorted(self.found, key=lambda faults: faults[0])]

    def _place(self, row: int | None) -> str:
        if row is None:
            return str(self.path)
        return f"{self.path}:{row}" if self.rows_are_lines else f"{self.path}: row {row}"


@dataclass(frozen=True, eq=False, slots=True)
class TraceRows:
    """R rows of a file: their ``numbers``, codes of ``topics``, and ``rates`` (R, 4)."""

    numbers: NDArray[np.int64]
    times_s: FloatArray
    topics: NDArray[np.int64]
    rates: NDArray[np.float32]


class TraceColumns:
    def __init__(self, columns: Sequence[str], faults: TraceFaults, line: int | None) -> None:
        """Check the names of the columns, which are in ``line``.

        Raises:
            ScenarioError: a column is unknown, duplicate, or missing.
        """
        self.topics: dict[str, int] = {}
        """The code of each topic, by its full name."""
        self.faults = faults
        self._codes: dict[str, int] = {}
        self._rows = 0
        _check_names(columns, faults, line)
        self.numbers: Final = tuple(name for name in columns if name != TOPIC)
        self._sources = [
            next((name, factor) for name, factor in _sources(place) if name in columns)
            for place in range(len(RATES))
        ]

    def codes(self, names: Sequence[str], numbers: Sequence[int]) -> NDArray[np.int64]:
        """Return the codes of topics; ``numbers`` are the rows for messages."""
        for at, name in enumerate(names if not self._codes.keys() >= set(names) else ()):
            if name not in self._codes:
                self._codes[name] = self._new_code(name, numbers[at])
        found = map(self._codes.__getitem__, names)
        return np.fromiter(found, dtype=np.int64, count=len(names))

    def rows(
        self,
        numbers: NDArray[np.int64],
        topics: NDArray[np.int64],
        values: Mapping[str, FloatArray],
    ) -> TraceRows:
        self._rows += len(numbers)
        if self._rows > MAX_ROWS:
            self.faults.add(None, f"more rows; expected up to {MAX_ROWS}")
            self.faults.check()
        possible = {name: self._possible(name, values[name], numbers) for name in values}
        rates = np.empty((len(numbers), len(RATES)), dtype=np.float32)
        for at, (name, factor) in enumerate(self._sources):
            rates[:, at] = possible[name] * factor
        return TraceRows(numbers, values[TIME], topics, rates)

    def _possible(self, name: str, column: FloatArray, numbers: NDArray[np.int64]) -> FloatArray:
        """Return a column with 0 in place of invalid values, which are recorded."""
        limit = _LIMITS[name]
        bad = ~((column >= 0) & (column <= limit))
        for at in np.flatnonzero(bad).tolist():
            fault = f"{name} = {column[at]:g}; expected a number from 0 to {limit:g}"
            self.faults.add(int(numbers[at]), fault)
        return np.where(bad, 0.0, column)

    def _new_code(self, name: str, number: int) -> int:
        try:
            full = str(parse_topic(name))
        except InvalidName as error:
            self.faults.add(number, str(error))
            return 0
        return self.topics.setdefault(full, len(self.topics))


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
    parts = _csv_parts(path, faults) if faults.rows_are_lines else _parquet_parts(path, faults)
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


def _check_names(columns: Sequence[str], faults: TraceFaults, line: int | None) -> None:
    known = (TIME, TOPIC, *RATES)
    if not columns and not faults.found:
        faults.add(None, f"is empty; expected columns {', '.join(known)}")
    if not columns:
        faults.check()
    for at, name in enumerate(columns):
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            faults.add(line, f"column {name!r}; expected one of {', '.join(known)}{hint}")
        elif name in columns[:at]:
            faults.add(line, f"column {name!r} again; expected each column once")
    for name in (TIME, TOPIC):
        if name not in columns:
            faults.add(line, f"no column {name!r}; expected it besides the traffic")
    if not set(RATES).intersection(columns):
        faults.add(line, f"no traffic; expected at least one of {', '.join(RATES)}")
    faults.check()


def _csv_parts(path: Path, faults: TraceFaults) -> Iterator[tuple[TraceColumns, TraceRows]]:
    try:
        open_text = gzip.open if path.suffix == ".gz" else open
        with open_text(path, "rt", encoding="utf-8-sig", newline="") as opened:
            yield from _csv_rows(opened, faults)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        faults.add(None, f"{error}; expected a whole gzip file")
    except OSError as error:
        faults.add(None, f"{error.strerror}; expected a readable CSV file")


def _csv_rows(
    opened: Iterable[str], faults: TraceFaults
) -> Iterator[tuple[TraceColumns, TraceRows]]:
    reader = csv.reader(opened, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        columns = TraceColumns(header, faults, 1)
        # The last line of each row: one with a quoted line break has several.
        numbered = ((reader.line_num, row) for row in reader)
        while part := list(islice(numbered, _PART_ROWS)):
            whole = []
            for line, row in part:
                if len(row) == len(header):
                    whole.append((line, row))
                elif row:
                    fault = f"{len(row)} values; expected {len(header)}, one in each column"
                    faults.add(line, fault)
            if not whole:
                continue
            lines, rows = zip(*whole, strict=True)
            cells = dict(zip(header, zip(*rows, strict=True), strict=True))
            values = {name: _floats(name, cells[name], lines, faults) for name in columns.numbers}
            topics = columns.codes(cells[TOPIC], lines)
            yield columns, columns.rows(np.array(lines, dtype=np.int64), topics, values)
    except csv.Error as error:
        faults.add(reader.line_num, f"{error}; expected CSV")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        faults.add(None, f"the byte {byte:#04x} is not UTF-8; expected text in UTF-8")


def _floats(
    name: str, cells: Sequence[str], lines: Sequence[int], faults: TraceFaults
) -> FloatArray:
    try:
        return np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
    except ValueError:
        return np.array([_float(name, cell, lines[at], faults) for at, cell in enumerate(cells)])


def _float(name: str, cell: str, line: int, faults: TraceFaults) -> float:
    try:
        return float(cell)
    except ValueError:
        faults.add(line, f"{name} = {cell[:60]!r}; expected a number")
        return 0.0


def _parquet_parts(path: Path, faults: TraceFaults) -> Iterator[tuple[TraceColumns, TraceRows]]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra that other scenarios do without
        from pyarrow import parquet  # noqa: PLC0415 - the same
    except ImportError:
        text = "Parquet needs pyarrow; expected it installed: pip install 'loadmanager[simulator]'"
        raise ScenarioError([f"{path}: {text}"]) from None
    try:
        with parquet.ParquetFile(path) as opened:
            yield from _parquet_rows(opened, faults)
    except OSError as error:
        faults.add(None, f"{error.strerror or error}; expected a readable Parquet file")
    # pyarrow raises many different errors for a damaged file.
    except (pa.ArrowException, ValueError, OverflowError, MemoryError) as error:
        faults.add(None, f"{str(error).splitlines()[0]}; expected a Parquet file")


def _parquet_rows(opened: Any, faults: TraceFaults) -> Iterator[tuple[TraceColumns, TraceRows]]:
    schema = opened.schema_arrow
    columns = TraceColumns(schema.names, faults, None)
    _check_types(schema, faults)
    first = 1
    for batch in opened.iter_batches(batch_size=_PART_ROWS):
        numbers = np.arange(first, first + len(batch), dtype=np.int64)
        values = {name: _numbers(batch.column(name)) for name in columns.numbers}
        topics = _topic_codes(batch.column(TOPIC), columns, numbers)
        yield columns, columns.rows(numbers, topics, values)
        first += len(batch)


def _check_types(schema: Any, faults: TraceFaults) -> None:
    from pyarrow import types  # noqa: PLC0415 - an extra

    for column in schema:
        plain = column.type.value_type if types.is_dictionary(column.type) else column.type
        if column.name == TOPIC and not (types.is_string(plain) or types.is_large_string(plain)):
            faults.add(None, f"column {TOPIC} is of type {column.type}; expected texts")
        elif column.name != TOPIC and not (types.is_integer(plain) or types.is_floating(plain)):
            faults.add(None, f"column {column.name} is of type {column.type}; expected numbers")
    faults.check()


def _numbers(column: Any) -> FloatArray:
    """Return numbers of any type as floats; null is NaN."""
    found: FloatArray = _plain(column).cast("float64", safe=False).to_numpy(zero_copy_only=False)
    return found


def _topic_codes(
    column: Any, columns: TraceColumns, numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    encoded = _plain(column).dictionary_encode(null_encoding="encode")
    inside = encoded.indices.to_numpy()
    names = ["" if name is None else name for name in encoded.dictionary.to_pylist()]
    first = np.unique(inside, return_index=True)[1]
    codes = columns.codes(names, numbers[first].tolist())
    return np.asarray(codes[inside])


def _plain(column: Any) -> Any:
    from pyarrow import types  # noqa: PLC0415 - an extra

    return column.dictionary_decode() if types.is_dictionary(column.type) else column

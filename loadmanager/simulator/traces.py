"""Traces: recorded rates of topics, read from a CSV or Parquet file.

Files are read in parts. Rows are lines of text in CSV, and numbered from 1 in Parquet.
"""

import csv
import gzip
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


def read_trace(path: Path) -> Trace:
    """Return the trace of a CSV or Parquet file; `docs/scenario-format.md` has the rules.

    The last trace is cached until its file changes: strategies are compared on the same trace.
    Raises `ScenarioError`: it cannot be read or has faults: invalid rows or, if there are none,
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
    rows = _Rows(path, lines=name.endswith(_CSV))
    if rows.lines:
        _read_csv(rows)
    else:
        _read_parquet(rows)
    return rows.trace()


class _Rows:
    """The rows of a file, its topics, and the faults so far.

    Rows are ``lines`` of text, or numbered from 1.
    """

    def __init__(self, path: Path, *, lines: bool) -> None:
        self.path = path
        self.lines = lines
        self.columns: tuple[str, ...] = ()
        """The columns of numbers."""
        self._faults: list[tuple[int, str]] = []
        self._topics: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._count = 0
        empty = np.empty(0, dtype=np.int64)
        # Numbers of rows, times, codes of topics, rates.
        self._parts = [(empty, np.empty(0), empty, np.empty((0, 4), dtype=np.float32))]

    def fault(self, row: int | None, fault: str) -> None:
        """Add a fault of a row or the file. Raises `ScenarioError`: there are too many of them."""
        place = f"{self.path}"
        if row is not None:
            place += f":{row}" if self.lines else f": row {row}"
        self._faults.append((row or 0, f"{place}: {fault}"))
        if len(self._faults) >= _MAX_FAULTS:
            more = f"{self.path}: and perhaps more; only the first {_MAX_FAULTS} are looked for"
            raise ScenarioError([*self._in_order(), more])

    def check(self) -> None:
        if self._faults:
            raise ScenarioError(self._in_order())

    def _in_order(self) -> list[str]:
        return [fault for _, fault in sorted(self._faults, key=lambda one: one[0])]

    def begin(self, columns: Sequence[str]) -> None:
        """Take the names of the columns. Raises `ScenarioError`: they are not those expected."""
        known, line = (TIME, TOPIC, *RATES), 1 if self.lines else None
        if not columns:
            self.fault(None, f"is empty; expected columns {', '.join(known)}")
            self.check()
        for at, name in enumerate(columns):
            if name not in known:
                close = get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]}?" if close else ""
                self.fault(line, f"column {name!r}; expected one of {', '.join(known)}{hint}")
            elif name in columns[:at]:
                self.fault(line, f"column {name!r} again; expected each column once")
        for name in (TIME, TOPIC):
            if name not in columns:
                self.fault(line, f"no column {name!r}; expected it besides the traffic")
        if not set(RATES).intersection(columns):
            self.fault(line, f"no traffic; expected at least one of {', '.join(RATES)}")
        self.check()
        self.columns = tuple(name for name in columns if name != TOPIC)

    def codes(self, names: Sequence[str], numbers: Sequence[int]) -> NDArray[np.int64]:
        """Return the codes of topics; ``numbers`` are the rows for messages."""
        for at, name in enumerate(names if not self._codes.keys() >= set(names) else ()):
            if name not in self._codes:
                try:
                    full = str(parse_topic(name))
                except InvalidName as error:
                    self.fault(numbers[at], str(error))
                    continue
                self._codes[name] = self._topics.setdefault(full, len(self._topics))
        found = (self._codes.get(name, 0) for name in names)
        return np.fromiter(found, dtype=np.int64, count=len(names))

    def add(
        self,
        numbers: NDArray[np.int64],
        topics: NDArray[np.int64],
        values: Mapping[str, FloatArray],
    ) -> None:
        """Add rows with ``values`` by column; times that decrease are faults."""
        self._count += len(numbers)
        if self._count > MAX_ROWS:
            self.fault(None, f"more rows; expected up to {MAX_ROWS}")
            self.check()
        latest_s = self._parts[-1][1][-1:] if len(self._parts) > 1 else [-np.inf]
        possible = {}
        for name, column in values.items():
            limit = _LIMITS[name]
            bad = ~((column >= 0) & (column <= limit))
            for at in np.flatnonzero(bad).tolist():
                fault = f"{name} = {column[at]:g}; expected a number from 0 to {limit:g}"
                self.fault(int(numbers[at]), fault)
            possible[name] = np.where(bad, 0.0, column)
        rates = np.empty((len(numbers), len(RATES)), dtype=np.float32)
        for place in range(len(RATES)):
            sources = ((name, factor) for name, factor in _sources(place) if name in possible)
            name, factor = next(sources)
            rates[:, place] = possible[name] * factor
        times_s = values[TIME]
        before = np.concatenate([latest_s, times_s[:-1]])
        for at in np.flatnonzero((times_s < before) & (times_s >= 0)).tolist():
            fault = f"time_s = {times_s[at]:g} after {before[at]:g}; expected times that ascend"
            self.fault(int(numbers[at]), fault)
        self._parts.append((numbers, times_s, topics, rates))

    def trace(self) -> Trace:
        """Return the rows as times by topics, each cell once.

        Raises `ScenarioError`: there is a fault; a cell is duplicate or missing.
        """
        if not self._count and not self._faults:
            self.fault(None, "no rows; expected one for each topic at each time")
        self.check()
        numbers, row_times_s, codes, rates = map(np.concatenate, zip(*self._parts, strict=True))
        topics = tuple(self._topics)
        is_new = np.diff(row_times_s, prepend=-np.inf) > 0
        times_s = row_times_s[is_new]
        # Cells are numbered by time and topic, the order of rows in most files.
        cells = (np.cumsum(is_new) - 1) * len(topics) + codes
        order = np.argsort(cells, kind="stable")
        in_order = cells[order]
        for at in np.flatnonzero(np.diff(in_order) == 0).tolist():
            first, second = numbers[order[at]], numbers[order[at + 1]]
            what = f"{topics[codes[order[at]]]} at {row_times_s[order[at]]:g} s"
            self.fault(int(second), f"{what} again; expected it once, as in row {first}")
        there = np.unique(in_order)
        # A topic without traffic needs rows of 0.
        ends = np.searchsorted(there, np.arange(len(times_s) + 1) * len(topics))
        for at in np.flatnonzero(np.diff(ends) < len(topics)).tolist():
            known = there[ends[at] : ends[at + 1]] - at * len(topics)
            missing = np.setdiff1d(np.arange(len(topics)), known)
            named = ", ".join(topics[code] for code in missing[:_NAMED].tolist())
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            last = numbers[np.searchsorted(row_times_s, times_s[at], side="right") - 1]
            fault = f"nothing of {named}{more} at {times_s[at]:g} s"
            self.fault(
                int(last), f"{fault}; expected a row for each topic, of 0 if it has no traffic"
            )
        self.check()
        times_s = times_s - times_s[0]
        rates = rates[order].reshape(len(times_s), len(topics), 4)
        times_s.flags.writeable = rates.flags.writeable = False
        return Trace(times_s=times_s, topics=topics, rates=rates)


def _read_csv(rows: _Rows) -> None:
    try:
        open_text = gzip.open if rows.path.suffix == ".gz" else open
        with open_text(rows.path, "rt", encoding="utf-8-sig", newline="") as opened:
            _read_lines(opened, rows)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        rows.fault(None, f"{error}; expected a whole gzip file")
    except OSError as error:
        rows.fault(None, f"{error.strerror}; expected a readable CSV file")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        rows.fault(None, f"the byte {byte:#04x} is not UTF-8; expected text in UTF-8")


def _read_lines(opened: Iterable[str], rows: _Rows) -> None:
    reader = csv.reader(opened, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        rows.begin(header)
        # The last line of each row: one with a quoted line break has several.
        numbered = ((reader.line_num, row) for row in reader)
        while part := list(islice(numbered, _PART_ROWS)):
            whole = []
            for line, row in part:
                if len(row) == len(header):
                    whole.append((line, row))
                elif row:
                    fault = f"{len(row)} values; expected {len(header)}, one in each column"
                    rows.fault(line, fault)
            if not whole:
                continue
            lines, parsed = zip(*whole, strict=True)
            cells = dict(zip(header, zip(*parsed, strict=True), strict=True))
            values = {name: _floats(name, cells[name], lines, rows) for name in rows.columns}
            rows.add(np.array(lines, dtype=np.int64), rows.codes(cells[TOPIC], lines), values)
    except csv.Error as error:
        rows.fault(reader.line_num, f"{error}; expected CSV")


def _floats(name: str, cells: Sequence[str], lines: Sequence[int], rows: _Rows) -> FloatArray:
    try:
        return np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
    except ValueError:
        found = np.zeros(len(cells))
    for at, cell in enumerate(cells):
        try:
            found[at] = float(cell)
        except ValueError:
            rows.fault(lines[at], f"{name} = {cell[:60]!r}; expected a number")
    return found


def _read_parquet(rows: _Rows) -> None:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra that other scenarios do without
        from pyarrow import parquet  # noqa: PLC0415 - the same
    except ImportError:
        text = "Parquet needs pyarrow; expected it installed: pip install 'loadmanager[simulator]'"
        raise ScenarioError([f"{rows.path}: {text}"]) from None
    try:
        with parquet.ParquetFile(rows.path) as opened:
            _read_batches(opened, rows, pa.types)
    except OSError as error:
        rows.fault(None, f"{error.strerror or error}; expected a readable Parquet file")
    # pyarrow raises many different errors for a damaged file.
    except (pa.ArrowException, ValueError, OverflowError, MemoryError) as error:
        rows.fault(None, f"{str(error).splitlines()[0]}; expected a Parquet file")


def _read_batches(opened: Any, rows: _Rows, types: Any) -> None:
    schema = opened.schema_arrow
    rows.begin(schema.names)
    for column in schema:
        plain = column.type.value_type if types.is_dictionary(column.type) else column.type
        if column.name == TOPIC and not (types.is_string(plain) or types.is_large_string(plain)):
            rows.fault(None, f"column {TOPIC} is of type {column.type}; expected texts")
        elif column.name != TOPIC and not (types.is_integer(plain) or types.is_floating(plain)):
            rows.fault(None, f"column {column.name} is of type {column.type}; expected numbers")
    rows.check()
    first = 1
    for batch in opened.iter_batches(batch_size=_PART_ROWS):
        cells = {
            name: one.dictionary_decode() if types.is_dictionary(one.type) else one
            for name, one in zip(batch.schema.names, batch.columns, strict=True)
        }
        numbers = np.arange(first, first + len(batch), dtype=np.int64)
        # Of any type of numbers; null is NaN.
        values = {
            name: cells[name].cast("float64", safe=False).to_numpy(zero_copy_only=False)
            for name in rows.columns
        }
        encoded = cells[TOPIC].dictionary_encode(null_encoding="encode")
        inside = encoded.indices.to_numpy()
        names = ["" if name is None else name for name in encoded.dictionary.to_pylist()]
        first_rows = np.unique(inside, return_index=True)[1]
        codes = rows.codes(names, numbers[first_rows].tolist())
        rows.add(numbers, np.asarray(codes[inside]), values)
        first += len(batch)

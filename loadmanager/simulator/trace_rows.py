"""Rows of recorded traffic as arrays, for all file formats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.bounds import RATE
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import parse_topic
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.errors import ScenarioError

TIME: Final = "time_s"
TOPIC: Final = "topic"

RATES: Final = ("msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out")
"""The columns of traffic, in the order of `core.averages`."""

MESSAGE_BYTES: Final = 1024.0
"""The assumed message size if a file only has rates or only throughputs."""

MAX_ROWS: Final = 50_000_000
"""The most rows of a file: about 4 GiB of memory while it is read."""

_ROW_BYTES: Final = 80
_MAX_FAULTS: Final = 20
_LIMITS: Final = {TIME: 1e11} | dict.fromkeys(RATES, RATE.most)

_RATE_IN, _RATE_OUT, _BYTES_IN, _BYTES_OUT = RATES
# The source of each column of a trace: the first of these that the file has, and its factor.
_SOURCES: Final[Mapping[str, Sequence[tuple[str, float]]]] = {
    _RATE_IN: (
        (_RATE_IN, 1.0),
        (_BYTES_IN, 1 / MESSAGE_BYTES),
        (_RATE_OUT, 1.0),
        (_BYTES_OUT, 1 / MESSAGE_BYTES),
    ),
    _RATE_OUT: (
        (_RATE_OUT, 1.0),
        (_BYTES_OUT, 1 / MESSAGE_BYTES),
        (_RATE_IN, 1.0),
        (_BYTES_IN, 1 / MESSAGE_BYTES),
    ),
    _BYTES_IN: (
        (_BYTES_IN, 1.0),
        (_RATE_IN, MESSAGE_BYTES),
        (_BYTES_OUT, 1.0),
        (_RATE_OUT, MESSAGE_BYTES),
    ),
    _BYTES_OUT: (
        (_BYTES_OUT, 1.0),
        (_RATE_OUT, MESSAGE_BYTES),
        (_BYTES_IN, 1.0),
        (_RATE_IN, MESSAGE_BYTES),
    ),
}


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
            next((name, factor) for name, factor in _SOURCES[rate] if name in columns)
            for rate in RATES
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
            gib = self._rows * _ROW_BYTES / 2**30
            self.faults.add(None, f"needs {gib:.1f} GiB and more; expected up to {MAX_ROWS} rows")
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

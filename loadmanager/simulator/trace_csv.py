"""Reads recorded traffic in CSV, plain or compressed, in parts."""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import IO, Final

import numpy as np

from loadmanager.core.scores import FloatArray
from loadmanager.simulator.trace_rows import TOPIC, TraceColumns, TraceFaults, TraceRows

_PART_ROWS: Final = 65_536
_BOM: Final = "\ufeff"
_BLOCK_BYTES: Final = 1 << 20
_MAX_LINE_CHARACTERS: Final = 1 << 16


def csv_parts(path: Path, faults: TraceFaults) -> Iterator[tuple[TraceColumns, TraceRows]]:
    """Yield the rows of a CSV file in parts, with the codes of topics.

    Raises:
        ScenarioError: the file has too many faults.
    """
    is_packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if is_packed else path.open("rb") as opened:
            yield from _csv_parts(_texts(opened, faults), faults)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        faults.add(None, f"{error}; expected a whole gzip file")
    except OSError as error:
        faults.add(None, f"{error.strerror}; expected a readable CSV file")


def _texts(opened: "IO[bytes] | gzip.GzipFile", faults: TraceFaults) -> Iterator[str]:
    number = 1
    for block in _blocks(opened):
        good, fault = _decoded(block)
        lines = good.count("\n")
        if len(good) - good.rfind("\n") > _MAX_LINE_CHARACTERS:
            fault = f"a line without end; expected at most {_MAX_LINE_CHARACTERS} characters"
        else:
            yield from io.StringIO(good.removeprefix(_BOM) if number == 1 else good, newline="\n")
        number += lines
        if fault:
            faults.add(number, fault)
            return


def _decoded(block: bytes) -> tuple[str, str]:
    """Return the text of a block up to the first line that is not UTF-8, and the fault."""
    try:
        return block.decode("utf-8"), ""
    except UnicodeDecodeError as error:
        before = block[: block.rfind(b"\n", 0, error.start) + 1]
        fault = f"the byte {block[error.start]:#04x} is not UTF-8; expected text in UTF-8"
        return before.decode("utf-8"), fault


def _blocks(opened: "IO[bytes] | gzip.GzipFile") -> Iterator[bytes]:
    """Yield a file in blocks of whole lines, unless a line is too long."""
    while block := opened.read(_BLOCK_BYTES):
        yield block + opened.readline(2 * _MAX_LINE_CHARACTERS)


def _csv_parts(
    texts: Iterator[str], faults: TraceFaults
) -> Iterator[tuple[TraceColumns, TraceRows]]:
    reader = csv.reader(texts, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        columns = TraceColumns(header, faults, 1)
        before = reader.line_num
        while part := list(islice(reader, _PART_ROWS)):
            lines = _lines(part, before, reader.line_num)
            before = reader.line_num
            rows, lines = _whole(part, lines, len(header), faults)
            if rows:
                yield columns, _csv_rows(columns, header, rows, lines)
    except csv.Error as error:
        faults.add(reader.line_num, f"{error}; expected CSV")


def _lines(part: Sequence[Sequence[str]], before: int, last: int) -> Sequence[int]:
    """Return the last line of each row; a row with a quoted line break has several lines."""
    if last - before == len(part):
        return range(before + 1, last + 1)
    spans = (1 + sum(cell.count("\n") for cell in row) for row in part)
    return list(islice(accumulate(spans, initial=before), 1, None))


def _whole(
    part: Sequence[Sequence[str]], lines: Sequence[int], width: int, faults: TraceFaults
) -> tuple[Sequence[Sequence[str]], Sequence[int]]:
    """Return the rows with a value in each column; blank lines are ignored."""
    if {len(row) for row in part} == {width}:
        return part, lines
    for line, row in zip(lines, part, strict=True):
        if len(row) not in {0, width}:
            faults.add(line, f"{len(row)} values; expected {width}, one in each column")
    at = [at for at, row in enumerate(part) if len(row) == width]
    return [part[i] for i in at], [lines[i] for i in at]


def _csv_rows(
    columns: TraceColumns,
    header: Sequence[str],
    part: Sequence[Sequence[str]],
    lines: Sequence[int],
) -> TraceRows:
    cells = dict(zip(header, zip(*part, strict=True), strict=True))
    values = {name: _floats(name, cells[name], lines, columns.faults) for name in columns.numbers}
    topics = columns.codes(cells[TOPIC], lines)
    return columns.rows(np.array(lines, dtype=np.int64), topics, values)


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

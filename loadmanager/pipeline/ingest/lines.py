"""Where lines are read and judged: in Spark's Python workers, by the strict reader of the core.

JSON is parsed once, here: so what is a line of history is decided in one place for the whole
project. Bundles, of which there are a hundred times as many as lines, become columns for
their table; all else of a line becomes JSON of the known fields, for Spark to parse.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from loadmanager.core.errors import MalformedContent
from loadmanager.core.history.reading import read_line
from loadmanager.core.history.schema import ENVELOPE, KINDS, Type
from loadmanager.pipeline.tables import BUNDLE_LOAD, columns_of

BUNDLES: Final = "bundle_load"
LINES: Final = "lines"
FILES: Final = "files"

CONTENT: Final = StructType(
    [
        StructField("kind", StringType()),
        StructField("digest", LongType()),
        StructField("fault", StringType()),
        StructField("text", StringType()),
    ]
)


LONGEST_LINE_BYTES: Final = 64 << 20
"""Far above the length of any line that a sidecar writes; protects the memory."""

_CHUNK_BYTES: Final = 64 << 10
"""Small enough for the decompressed chunk to fit into memory: gzip reaches at most 1000 to 1."""

_GZIP: Final = 31


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its line feed; ``fault`` says why it cannot be read."""

    content: bytes
    fault: str | None = None


class _Damaged(Exception):
    """The file is not gzip from here on; ``unpacked`` was decompressed before the fault."""

    def __init__(self, reason: str, unpacked: bytes = b"") -> None:
        super().__init__(reason)
        self.unpacked = unpacked


def lines_of(packed: memoryview) -> Iterator[Line]:
    """Yield the lines of a file; for a damaged file, the last line has a fault.

    The rest after the last line feed is a line as well.
    """
    rest = b""
    skipping = False
    chunks = _unpacked(packed)
    damage: str | None = None
    while damage is None:
        try:
            chunk = next(chunks)
        except StopIteration:
            break
        except _Damaged as damaged:
            chunk, damage = damaged.unpacked, str(damaged)
        *whole, rest = (rest + chunk).split(b"\n")
        if whole and skipping:
            whole, skipping = whole[1:], False
        for content in whole:
            yield Line(content)
        if len(rest) > LONGEST_LINE_BYTES or skipping:
            if not skipping:
                yield Line(rest, f"a line of more than {LONGEST_LINE_BYTES} bytes")
            rest, skipping = b"", True
    if damage is not None:
        yield Line(rest, damage)
    elif rest:
        yield Line(rest)


def _unpacked(packed: memoryview) -> Iterator[bytes]:
    size = len(packed)
    if size == 0:
        raise _Damaged("the file is empty; expected gzip")
    position = 0
    while position < size:
        decoder = zlib.decompressobj(wbits=_GZIP)
        while not decoder.eof:
            chunk = packed[position : position + _CHUNK_BYTES]
            if not chunk:
                raise _Damaged(f"the file ends within a gzip member, after {size} bytes")
            before = decoder.copy()
            try:
                yield decoder.decompress(chunk)
            except zlib.error as error:
                text = f"the file is damaged between bytes {position} and {position + len(chunk)}"
                raise _Damaged(
                    f"{text} of {size}: {error}; expected gzip", _decompressed_prefix(before, chunk)
                ) from None
            position += len(chunk) - len(decoder.unused_data)
        if not any(packed[position : position + _CHUNK_BYTES]):
            # Zeros after the last member are padding.
            return


def _decompressed_prefix(decoder: "zlib._Decompress", chunk: memoryview) -> bytes:
    found = bytearray()
    try:
        for position in range(len(chunk)):
            found += decoder.decompress(chunk[position : position + 1])
    except zlib.error:
        pass
    return bytes(found)


"""What is kept of a line: its JSON with a bundle count for its bundles, or why not."""

_OF_LINE: Final = ("cluster", "writer", "instance", "seq", "at_ms")
_OF_REPORT: Final = ("broker", "broker_class", "reported_at_ms", "interval_s", "window_s")
_OF_BUNDLE: Final = columns_of("report", "bundles").fields
_READ_NAMES: Final = (*_OF_LINE, *_OF_REPORT, *(one.name for one in _OF_BUNDLE))

READ: Final = StructType(
    [
        StructField("part", StringType()),
        StructField("file", StringType()),
        StructField("line", LongType()),
        *(BUNDLE_LOAD.schema[name] for name in _READ_NAMES),
        StructField("content", CONTENT),
    ]
)
"""What `parts_of` returns, distinguished by ``part``.

Rows of the table ``bundle_load``; one for each line; one for each file, with its last line.
"""

SHOWN_CHARACTERS: Final = 2000
"""The length to which the text of a quarantined line is cut."""

_ROWS_AT_ONCE: Final = 20_000
_TEXT_AT_ONCE: Final = 4 << 20
_SCHEMA: Final = to_arrow_schema(READ)
_OF_LINES: Final = pa.schema(
    [_SCHEMA.field(name) for name in ("file", "line", *_OF_LINE, "content")]
)
_OF_FILES: Final = pa.schema([_SCHEMA.field(name) for name in ("file", "line")])
_KNOWN: Final = {
    kind.name: tuple(one.name for one in (*ENVELOPE, *kind.fields)) for kind in KINDS.values()
}

Part = tuple[str, pa.RecordBatch]
"""The name of a part of `READ`, and rows with the columns of that part."""


def parts_of(files: Iterator[pa.RecordBatch]) -> Iterator[Part]:
    """Yield parts of `READ` for rows of ``binaryFile`` (``path``, ``content``), texts encoded."""
    bundles, lines = _Bundles(), _Lines()
    for batch in files:
        for path, content in zip(batch["path"], batch["content"], strict=True):
            name = "/".join(path.as_py().split("/")[-3:])
            number = 0
            for number, line in enumerate(lines_of(memoryview(content.as_buffer())), start=1):
                _take(name, number, line, bundles, lines)
                if bundles.rows >= _ROWS_AT_ONCE:
                    yield from bundles.emptied()
                if lines.characters >= _TEXT_AT_ONCE:
                    yield from lines.emptied()
            lines.read_to_its_end(name, number)
    yield from bundles.emptied()
    yield from lines.emptied()


def _take(name: str, number: int, line: Line, bundles: "_Bundles", lines: "_Lines") -> None:
    if line.fault is not None:
        lines.refuse(name, number, line.content, line.fault)
        return
    try:
        found = read_line("", line.content)
    except MalformedContent as error:
        lines.refuse(name, number, line.content, str(error).removeprefix(": "))
        return
    if found["kind"] == "report":
        bundles.add(name, number, found)
    lines.add(name, number, line.content, found)


class _Lines:
    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._files: list[dict[str, Any]] = []
        self.characters = 0

    def add(self, file: str, number: int, content: bytes, found: Mapping[str, Any]) -> None:
        digest = int.from_bytes(blake2b(content, digest_size=8).digest(), signed=True)
        kind = found["kind"]
        text = json.dumps(_plain(kind, found), separators=(",", ":"))
        row = {"kind": kind, "digest": digest, "fault": None, "text": text}
        self._put(file, number, row, {name: found[name] for name in _OF_LINE})

    def refuse(self, file: str, number: int, content: bytes, fault: str) -> None:
        # A character is at most four bytes.
        text = content[: 4 * SHOWN_CHARACTERS].decode(errors="replace")[:SHOWN_CHARACTERS]
        self._put(file, number, {"kind": None, "digest": None, "fault": fault, "text": text}, {})

    def read_to_its_end(self, file: str, last: int) -> None:
        self._files.append({"file": file, "line": last})

    def emptied(self) -> Iterator[Part]:
        if self._rows:
            yield LINES, pa.RecordBatch.from_pylist(self._rows, schema=_OF_LINES)
        if self._files:
            yield FILES, pa.RecordBatch.from_pylist(self._files, schema=_OF_FILES)
        self._begin()

    def _put(
        self, file: str, number: int, content: Mapping[str, Any], more: Mapping[str, Any]
    ) -> None:
        self._rows.append({"file": file, "line": number, "content": content, **more})
        self.characters += len(content["text"]) + 100


class _Bundles:
    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.rows = 0
        self._sizes: list[int] = []
        self._lines: list[tuple[Any, ...]] = []
        self._columns: list[list[Any]] = [[] for _ in _OF_BUNDLE]

    def add(self, file: str, number: int, found: Mapping[str, Any]) -> None:
        bundles = found["bundles"]
        size = len(bundles["bundle"])
        self._sizes.append(size)
        self._lines.append((file, number, *(found[name] for name in (*_OF_LINE, *_OF_REPORT))))
        for column, one in zip(self._columns, _OF_BUNDLE, strict=True):
            column.extend(bundles[one.name])
        self.rows += size

    def emptied(self) -> Iterator[Part]:
        if self.rows:
            of_row = pa.array(np.repeat(np.arange(len(self._sizes), dtype=np.int32), self._sizes))
            names = ("file", "line", *_OF_LINE, *_OF_REPORT)
            arrays = {
                name: _repeated(pa.array(values, _SCHEMA.field(name).type), of_row)
                for name, values in zip(names, zip(*self._lines, strict=True), strict=True)
            }
            for one, column in zip(_OF_BUNDLE, self._columns, strict=True):
                arrays[one.name] = _array(one.type, column, _SCHEMA.field(one.name).type)
            yield BUNDLES, pa.RecordBatch.from_pydict(arrays)
        self._begin()


def _repeated(of_line: pa.Array, of_row: pa.Array) -> pa.Array:
    if not pa.types.is_string(of_line.type):
        return of_line.take(of_row)
    coded = of_line.dictionary_encode()
    return pa.DictionaryArray.from_arrays(coded.indices.take(of_row), coded.dictionary)


def _array(kind: Type, values: list[Any], to: pa.DataType) -> pa.Array:
    if kind is Type.TEXT:
        return pa.array(values, to).dictionary_encode()
    if kind is Type.COUNT:
        return pa.array(np.array(values, dtype=np.int64), to)  # in half the time
    try:
        return pa.array(values, to)
    except pa.ArrowInvalid:
        # Arrow rejects an integer that has no exact float for a rate.
        return pa.array(np.array(values, dtype=np.float64), to)


def _plain(kind: str, found: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: found[name] for name in _KNOWN[kind]}
    if kind == "report":
        fields["bundle_count"] = len(fields.pop("bundles")["bundle"])
    return fields

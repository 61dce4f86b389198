"""Files of a topic's log: written by one owner, sealed by the next.

A segment is named after the grant under which it was written: the bundle's fencing token, the
number of the opening under that token, and the number of the file of that opening. The names sort
in the order of the log.

There is no lock. An owner that opens a log first creates its own file in the folder, then searches
for a name that sorts after it (if there is one, this owner is stale and gives up), then takes the
write permission from all earlier files, and only then reads them. A writer checks *after* each
write that its file still has the permission, and acknowledges nothing if not. So everything
acknowledged was written before the seal, and the next owner reads it; what is written after a seal
is never acknowledged. A process that is frozen at any point of this delays no other one.

A write is in the kernel when `Writer.append` returns: it survives the death of this process,
not that of the machine.
"""

import os
import re
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from loadmanager.core.errors import LoadManagerError

_HEAD: Final = Struct(">II")
_NAME: Final = re.compile(r"(\d{19})-(\d{6})-(\d{6})\.log")
_WRITABLE: Final = 0o600
_SEALED: Final = 0o400
_CLOSED: Final = -1


class Fenced(LoadManagerError):
    """A newer owner has opened the log; this one must neither write to it nor acknowledge."""


class RecordKind(IntEnum):
    """The kind of a record of a segment: its first byte."""

    HEADER = 1
    ENTRY = 2
    CURSOR = 3
    CURSOR_GONE = 4


class SegmentName(NamedTuple):
    """The name of a file of a log; names sort in the order of the log."""

    token: int
    opening: int
    number: int

    def __str__(self) -> str:
        """Return the file name."""
        return f"{self.token:019d}-{self.opening:06d}-{self.number:06d}.log"


class Record(NamedTuple):
    """One record: its kind, its body, and the offset of the body in the file."""

    kind: RecordKind
    body: bytes
    offset: int


class Writer:
    """One segment, open for appending.

    Raises:
        Fenced: on construction, this file or a later one exists already.
        OSError: on construction or in `append`, the file cannot be written.
    """

    def __init__(self, folder: Path, name: SegmentName) -> None:
        self.name = name
        self.size_bytes = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        path = folder / str(name)
        try:
            self._file = os.open(path, flags, _WRITABLE)
        except FileExistsError:
            raise Fenced(f"{path} exists already: another process opened it") from None
        if any(other > name for other in names_in(folder)):
            self.close()
            path.unlink(missing_ok=True)
            raise Fenced(f"{path}: a later owner has opened this log")

    def append(self, kind: RecordKind, *parts: bytes) -> int:
        """Append a record; return the offset of its body.

        Raises:
            Fenced: this writer is closed, or the segment was sealed; then it is not known whether
                the record counts.
        """
        self._require_open()
        body = b"".join((bytes((kind,)), *parts))
        data = _HEAD.pack(len(body), google_crc32c.value(body)) + body
        written = os.write(self._file, data)
        if written != len(data):
            os.ftruncate(self._file, self.size_bytes)
            raise OSError(f"{self.name}: wrote {written} of {len(data)} bytes; disk full?")
        if not os.fstat(self._file).st_mode & 0o200:
            raise Fenced(f"{self.name} was sealed by a later owner")
        offset = self.size_bytes + _HEAD.size + 1
        self.size_bytes += len(data)
        return offset

    def read(self, offset: int, length: int) -> bytes:
        """Return a part of the file.

        Raises:
            Fenced: this writer is closed.
        """
        self._require_open()
        return os.pread(self._file, length, offset)

    def close(self) -> None:
        """Close the file; it stays writable until another owner seals it."""
        if self._file != _CLOSED:
            os.close(self._file)
            self._file = _CLOSED

    def _require_open(self) -> None:
        """Check first, because the descriptor of a closed file may be that of another file."""
        if self._file == _CLOSED:
            raise Fenced(f"{self.name} is closed")


def names_in(folder: Path) -> list[SegmentName]:
    """Return the segments in a folder, in order."""
    found = map(_NAME.fullmatch, os.listdir(folder))  # noqa: PTH208 - names alone
    return sorted(SegmentName(*map(int, name.groups())) for name in found if name is not None)


def seal(path: Path) -> bytes:
    """Have no append to this segment acknowledged from now on, and return its content."""
    path.chmod(_SEALED)
    return path.read_bytes()


def records_of(data: bytes) -> Iterator[Record]:
    """Yield the records of a segment up to the first that is incomplete.

    A process that died during a write leaves an incomplete record, which it did not acknowledge.
    """
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        begin = at + _HEAD.size
        record = data[begin : begin + length]
        if not length or len(record) < length or google_crc32c.value(record) != checksum:
            return
        if record[0] in RecordKind.__members__.values():
            yield Record(RecordKind(record[0]), record[1:], begin + 1)
        at = begin + length

"""Files of a topic's log: written by one owner, sealed by the next.

A segment is named for the grant it was written under: the bundle's fencing token, the
how manieth opening under that token, the how manieth file of that opening. The names sort
as the log runs.

There is no lock. An owner that opens a log first puts its own file into the folder, then looks for
a name that sorts after it (if there is one, it is the stale one and gives up), then takes
the write permission off all earlier files, and only then reads them. A writer looks
whether its file still has the permission *after* each write, and acknowledges nothing if
not. So whatever was acknowledged was written before the seal, and the next owner reads it; what
is written after a seal is never acknowledged. A process that is frozen anywhere in
between delays no other one.

A write is in the kernel when `Writer.append` returns: it survives the death of this process,
not that of the machine.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Final

import google_crc32c

from loadmanager.core.errors import LoadManagerError

_HEAD: Final = Struct(">II")
_NAME: Final = re.compile(r"(\d{19})-(\d{6})-(\d{6})\.log")
_WRITABLE: Final = 0o600
_SEALED: Final = 0o400
_CLOSED: Final = -1


class Fenced(LoadManagerError):
    """A newer owner has the log; this one must neither write to it nor acknowledge."""


class RecordKind(IntEnum):
    """What a record of a segment is: its first byte."""

    HEADER = 1
    ENTRY = 2
    CURSOR = 3
    CURSOR_GONE = 4


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """Which file of a log: they sort as the log runs."""

    token: int
    opening: int
    number: int

    @classmethod
    def parse(cls, text: str) -> "SegmentName | None":
        """Return the name that ``text`` is, None if it is none."""
        found = _NAME.fullmatch(text)
        return None if found is None else cls(int(found[1]), int(found[2]), int(found[3]))

    def __str__(self) -> str:
        """Return the file's name."""
        return f"{self.token:019d}-{self.opening:06d}-{self.number:06d}.log"


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its kind, what it holds, and where that lies in the file."""

    kind: RecordKind
    body: memoryview
    offset: int


class Writer:
    """One segment, open for appending.

    Raises:
        Fenced: on construction, the file is there already or a later one is.
        OSError: on construction or in `append`, when the disk cannot take it.
    """

    def __init__(self, folder: Path, name: SegmentName) -> None:
        self.name = name
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        path = folder / str(name)
        try:
            self._file = os.open(path, flags, _WRITABLE)
        except FileExistsError:
            raise Fenced(f"{path} exists already: another process opened it") from None
        self._size = 0
        if any(other > name for other in names_in(folder)):
            os.close(self._file)
            path.unlink(missing_ok=True)
            raise Fenced(f"{path}: a later owner has opened this log")

    @property
    def size_bytes(self) -> int:
        """The length of the file, in bytes."""
        return self._size

    def append(self, kind: RecordKind, *parts: bytes) -> int:
        """Append a record; return where its body lies.

        Raises:
            Fenced: the segment was sealed, and whether the record counts is not known; or
                this writer is closed.
        """
        self._require_open()
        body = b"".join((bytes((kind,)), *parts))
        data = _HEAD.pack(len(body), google_crc32c.value(body)) + body
        written = os.write(self._file, data)
        if written != len(data):
            os.ftruncate(self._file, self._size)
            raise OSError(f"{self.name}: wrote {written} of {len(data)} bytes; disk full?")
        if not os.fstat(self._file).st_mode & 0o200:
            raise Fenced(f"{self.name} was sealed by a later owner")
        offset = self._size + _HEAD.size + 1
        self._size += len(data)
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
        """Refuse what comes too late: the number of a closed file may be another file's."""
        if self._file == _CLOSED:
            raise Fenced(f"{self.name} is closed")


def names_in(folder: Path) -> list[SegmentName]:
    """Return the segments in a folder, in order."""
    found = (SegmentName.parse(entry) for entry in os.listdir(folder))  # noqa: PTH208 - names alone
    return sorted(name for name in found if name is not None)


def seal(path: Path) -> None:
    """Acknowledge no append to this segment from now on."""
    path.chmod(_SEALED)


def records_of(data: bytes) -> Iterator[Record]:
    """Yield the records of a segment up to the first that is not whole.

    That is what a process leaves which died in the middle of a write; it acknowledged
    nothing of it.
    """
    view = memoryview(data)
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        begin, end = at + _HEAD.size, at + _HEAD.size + length
        if not length or end > len(data) or google_crc32c.value(data[begin:end]) != checksum:
            return
        if data[begin] in RecordKind.__members__.values():
            yield Record(RecordKind(data[begin]), view[begin + 1 : end], begin + 1)
        at = end

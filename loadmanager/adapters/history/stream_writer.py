import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from loadmanager.adapters.history.storage import GZIP_WBITS, Disk
from loadmanager.config.sections import HistorySettings
from loadmanager.core.history.files import FileName, hour_of, partition
from loadmanager.core.history.records import Origin, Record, encode
from loadmanager.core.history.schema import Stream


@dataclass(frozen=True, slots=True)
class Member:
    """Compressed lines of one hour. ``first_seq`` is the number of the first line."""

    hour: int
    first_seq: int
    lines: int
    data: bytes


log = structlog.get_logger()

_MIB: Final = 1 << 20
_MEMBER_BYTES: Final = _MIB
"""Bytes of lines in a member, enough for gzip to find repetitions."""


@dataclass(slots=True)
class _OpenFile:
    fd: int
    path: Path
    hour: int
    opened_s: float
    size: int = 0
    lines: int = 0
    is_synced: bool = True


class StreamWriter:
    """Writes the records of one stream, in order.

    Lines that cannot be written now are kept and written later: `flush` raises `OSError` and may
    be called again. Lines are numbered when they are added, so the numbers of written lines
    have no gap.
    """

    def __init__(
        self,
        stream: Stream,
        origin: Origin,
        top: Path,
        disk: Disk,
        settings: HistorySettings,
        *,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.stream = stream
        self._origin = origin
        self._top = top
        self._disk = disk
        self._settings = settings
        self._monotonic_s = monotonic_s
        self._seq = 0
        self._lines: list[bytes] = []
        self._lines_bytes = 0
        self._hour = 0
        self._members: deque[Member] = deque()
        self._file: _OpenFile | None = None
        self.backlog_bytes = 0
        self.lines_written = 0
        self.bytes_written = 0
        self.files_finished = 0

    def add(self, records: Iterable[Record]) -> None:
        """Raises `ValueError`: a number is not finite; the records before it are added."""
        for record in records:
            line = encode(record, self._origin, self._seq + 1)
            hour = hour_of(record.at_ms)
            if self._lines and hour != self._hour:
                self._seal()
            self._hour = hour
            self._seq += 1
            self._lines.append(line)
            self._lines_bytes += len(line)
            self.backlog_bytes += len(line)
            if self._lines_bytes >= _MEMBER_BYTES:
                self._seal()

    def flush(self) -> None:
        """Write and sync all lines, in files that are readable up to there."""
        self._seal()
        while self._members:
            self._write(self._members[0])
            self._members.popleft()
        if self._file is not None:
            self._sync(self._file)
            if self._is_due(self._file):
                self.finish()
        self.backlog_bytes = self._lines_bytes

    def finish(self) -> None:
        file = self._file
        if file is None:
            return
        if self._vanished(file):
            return
        whole = file.path.with_name(file.path.name.removeprefix("_"))
        self._disk.publish(file.fd, file.size, file.path, whole)
        self._file = None
        self.files_finished += 1
        log.debug("history.file.finished", path=str(whole), lines=file.lines, size_bytes=file.size)

    @property
    def unwritten(self) -> int:
        return len(self._lines) + sum(member.lines for member in self._members)

    def _seal(self) -> None:
        if not self._lines:
            return
        first_seq = self._seq - len(self._lines) + 1
        level = self._settings.compression_level
        data = zlib.compress(b"".join(self._lines), level, wbits=GZIP_WBITS)
        self._members.append(Member(self._hour, first_seq, len(self._lines), data))
        self._lines, self._lines_bytes = [], 0

    def _write(self, member: Member) -> None:
        file = self._file
        if file is not None and (file.hour != member.hour or self._is_due(file)):
            self._sync(file)
            self.finish()
        if self._file is not None:
            self._vanished(self._file)
        file = self._file = self._file or self._opened(member)
        file.is_synced = False
        self._disk.append(file.fd, member.data, file.size)
        file.size += len(member.data)
        file.lines += member.lines
        self.lines_written += member.lines
        self.bytes_written += len(member.data)

    def _sync(self, file: _OpenFile) -> None:
        if not file.is_synced:
            self._disk.sync(file.fd)
            file.is_synced = True

    def _opened(self, member: Member) -> _OpenFile:
        whole = FileName.of(self.stream, self._origin, member.first_seq)
        path = self._top / partition(member.hour) / f"_{whole}"
        return _OpenFile(self._disk.create(path), path, member.hour, self._monotonic_s())

    def _is_due(self, file: _OpenFile) -> bool:
        age_s = self._monotonic_s() - file.opened_s
        settings = self._settings
        return file.size >= round(settings.roll_mib * _MIB) or age_s >= settings.roll_interval_s

    def _vanished(self, file: _OpenFile) -> bool:
        if self._disk.is_there(file.fd, file.path):
            return False
        log.error("history.file.missing", path=str(file.path), lines=file.lines)
        self._file = None
        self._disk.close(file.fd)
        return True

"""The file operations of the history writer, in one class that tests can make fail."""

import contextlib
import fcntl
import gzip
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from loadmanager.core.errors import MalformedContent
from loadmanager.core.history.files import FileName, hour_of_partition
from loadmanager.core.history.kinds import KINDS
from loadmanager.core.history.reading import read_line


@dataclass(frozen=True, slots=True)
class Found:
    path: Path
    hour: int
    name: FileName
    size_bytes: int


class Disk:
    """The writer's operations on files of this host. All raise `OSError`."""

    def create(self, path: Path) -> int:
        """Create a file with its folders, and lock it against adoption by others.

        The kernel releases the lock when the process ends.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return fd

    def adopt(self, path: Path) -> int | None:
        """Open a file that a killed writer left; None while its writer is alive."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def append(self, fd: int, data: bytes, offset: int) -> None:
        """Write all of ``data`` at ``offset``, over the remains of a failed attempt."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(fd, rest, offset)
            rest, offset = rest[written:], offset + written

    def sync(self, fd: int) -> None:
        """Return when all written data would survive a power failure."""
        os.fsync(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def is_there(self, fd: int, path: Path) -> bool:
        try:
            named = path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(fd))

    def publish(self, fd: int, size: int, path: Path, whole: Path) -> None:
        os.ftruncate(fd, size)
        os.fsync(fd)
        path.rename(whole)
        os.close(fd)
        # The file is renamed; not every file system can make that survive a power failure.
        with contextlib.suppress(OSError):
            folder = os.open(whole.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def close(self, fd: int) -> None:
        os.close(fd)

    def remove(self, path: Path) -> None:
        """Delete a file, and its folders if they are empty."""
        path.unlink()
        for folder in (path.parent, path.parent.parent):
            # Another writer may have files in it; if it just came empty, that is enough, too.
            with contextlib.suppress(OSError):
                folder.rmdir()

    def find(self, top: Path) -> Iterator[Found]:
        """Yield every file of history below ``top``, of any writer, oldest hour first."""
        for date in _sorted(top, "date="):
            for folder in _sorted(date, "hour="):
                hour = hour_of_partition(f"{date.name}/{folder.name}")
                if hour is not None:
                    yield from _found_in(folder, hour)


def _sorted(top: Path, beginning: str) -> list[Path]:
    try:
        return sorted(one for one in top.iterdir() if one.name.startswith(beginning))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _found_in(folder: Path, hour: int) -> Iterator[Found]:
    for path in _sorted(folder, ""):
        name = FileName.parse(path.name)
        if name is not None:
            # It may be renamed or deleted by its owner, at any moment.
            with contextlib.suppress(FileNotFoundError):
                yield Found(path, hour, name, path.stat().st_size)


_MOST_SHOWN: Final = 20

_Series = tuple[str, str, str]
_Run = tuple[int, int]


@dataclass(slots=True)
class Findings:
    """The result of a check. ``faults`` are unreadable files and lines, with their places.

    ``missing`` and ``repeated`` count lines by their numbers. Lines before the first file of a
    writer were deleted by retention, and do not count as missing.
    """

    files: int = 0
    unfinished: int = 0
    lines: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    given_up: int = 0
    missing: int = 0
    repeated: int = 0
    faults: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "kinds": dict(sorted(self.kinds.items()))}

    def summary(self) -> Iterator[str]:
        yield f"{self.files} files, and {self.unfinished} that are being written"
        yield f"{self.lines} lines"
        yield from (f"{count:>10}  {kind}" for kind, count in sorted(self.kinds.items()))
        yield f"{self.missing} lines missing, {self.repeated} there twice"
        yield f"{self.given_up} records given up by their writers"
        yield f"{len(self.faults)} files or lines that cannot be read"
        yield from self.faults[:_MOST_SHOWN]


def check_history(directory: Path) -> Findings:
    found = Findings()
    runs: dict[_Series, list[_Run]] = {}
    for file in Disk().find(directory):
        if file.name.is_open:
            found.unfinished += 1
            continue
        found.files += 1
        for line in _lines(file.path, found):
            found.lines += 1
            found.kinds[line["kind"]] += 1
            kind = KINDS[line["kind"]]
            found.given_up += line["records"] if kind.name.startswith("lost_") else 0
            series = (line["writer"], line["instance"], kind.stream.value)
            _count(runs.setdefault(series, []), line["seq"])
    for each in runs.values():
        missing, repeated = _gaps_and_overlaps(each)
        found.missing += missing
        found.repeated += repeated
    return found


def _count(runs: list[_Run], seq: int) -> None:
    if runs and runs[-1][1] + 1 == seq:
        runs[-1] = (runs[-1][0], seq)
    else:
        runs.append((seq, seq))


def _gaps_and_overlaps(runs: list[_Run]) -> tuple[int, int]:
    runs = sorted(runs)
    missing, repeated, reached = 0, 0, runs[0][0] - 1
    for first, last in runs:
        missing += max(first - reached - 1, 0)
        repeated += max(min(last, reached) - first + 1, 0)
        reached = max(reached, last)
    return missing, repeated


def _lines(path: Path, found: Findings) -> Iterator[Any]:
    number = 0
    try:
        with gzip.open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield read_line(f"{path}:{number}", line)
                except MalformedContent as error:
                    found.faults.append(str(error))
    except (OSError, EOFError, zlib.error) as error:
        found.faults.append(f"{path}: after line {number}: {error}")

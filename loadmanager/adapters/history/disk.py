"""The file operations of the history writer, in one class that tests can make fail."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadmanager.core.history.files import FileName, hour_of_partition


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

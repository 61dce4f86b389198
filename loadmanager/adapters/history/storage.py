"""The file operations of the history writer, in one class that tests can make fail."""

import contextlib
import fcntl
import gzip
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from loadmanager.config.sections import HistorySettings
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.history.files import FileName, hour_of, hour_of_partition, partition
from loadmanager.core.history.reading import read_line
from loadmanager.core.history.schema import KINDS


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
                if hour is None:
                    continue
                for path in _sorted(folder, ""):
                    name = FileName.parse(path.name)
                    if name is not None:
                        # It may be renamed or deleted by its owner, at any moment.
                        with contextlib.suppress(FileNotFoundError):
                            yield Found(path, hour, name, path.stat().st_size)


def _sorted(top: Path, beginning: str) -> list[Path]:
    try:
        return sorted(one for one in top.iterdir() if one.name.startswith(beginning))
    except (FileNotFoundError, NotADirectoryError):
        return []


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


log = structlog.get_logger()


GZIP_WBITS: Final = 31
_CHUNK_BYTES: Final = 1 << 20
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Recovered:
    """A file that a killed writer left, cut to its complete lines, which all flushed ones are."""

    path: Path
    kept_bytes: int
    cut_bytes: int


def whole_bytes(chunks: Iterator[bytes]) -> int:
    """Return the size of the complete members of complete lines in a file, read in ``chunks``.

    The rest is part of a member, or, after a power failure, arbitrary data.
    """
    good, position, last = 0, 0, b""
    member = zlib.decompressobj(GZIP_WBITS)
    for chunk in chunks:
        rest = chunk
        while rest:
            try:
                last = member.decompress(rest)[-1:] or last
            except zlib.error:
                return good
            position += len(rest) - len(member.unused_data)
            rest = member.unused_data
            if not member.eof:
                break
            if last != b"\n":
                return good
            good, last = position, b""
            member = zlib.decompressobj(GZIP_WBITS)
    return good


def recover(disk: Disk, top: Path, writer: str | None = None) -> list[Recovered]:
    """Finish the open files of dead writers, only of ``writer`` if it is given.

    A file without a complete line is deleted. Raises `OSError`.
    """
    files = disk.find(top)
    left = [one for one in (files if writer is None else own(files, writer)) if one.name.is_open]
    tried = [_recovered(disk, found) for found in left]
    return [one for one in tried if one is not None]


def _recovered(disk: Disk, found: Found) -> Recovered | None:
    fd = disk.adopt(found.path)
    if fd is None:
        return None
    size = whole_bytes(_chunks(disk, fd))
    if size == 0:
        disk.close(fd)
        disk.remove(found.path)
    else:
        disk.publish(fd, size, found.path, found.path.with_name(found.path.name.removeprefix("_")))
    return Recovered(found.path, size, found.size_bytes - size)


def expired(finished: Iterable[Found], settings: HistorySettings, now_ms: int) -> Iterator[Found]:
    """Yield the files to delete: those that are too old, then the oldest above the total size."""
    most_bytes = round(settings.max_size_gib * _GIB)
    oldest_first = sorted(finished, key=lambda one: (one.hour, one.name.first_seq))
    kept = []
    for found in oldest_first:
        ended_ago_days = (hour_of(now_ms) - found.hour) / 24
        if settings.max_age_days and ended_ago_days > settings.max_age_days:
            yield found
        else:
            kept.append(found)
    total = sum(one.size_bytes for one in kept)
    for found in kept:
        if not most_bytes or total <= most_bytes:
            return
        total -= found.size_bytes
        yield found


def own(files: Iterable[Found], writer: str) -> Iterator[Found]:
    return (one for one in files if one.name.writer == writer)


def _chunks(disk: Disk, fd: int) -> Iterator[bytes]:
    offset = 0
    while chunk := disk.read(fd, _CHUNK_BYTES, offset):
        yield chunk
        offset += len(chunk)


class HistoryUnavailable(LoadManagerError):
    """History cannot be written as configured."""


class Unreachable(OSError):
    """A remote address could not be read or written now."""


class Storage:
    """The finished files of one writer, which stay where they were written.

    All methods raise `OSError`.
    """

    def __init__(self, disk: Disk, top: Path, writer: str) -> None:
        self._disk = disk
        self._top = top
        self.writer = writer

    def store(self) -> int:
        return 0

    def finished(self) -> Iterator[Found]:
        found = own(self._disk.find(self._top), self.writer)
        return (one for one in found if not one.name.is_open)

    def delete(self, found: Found) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(found.path)


class RemoteStorage(Storage):
    """Files are written to a spool on this host, and uploaded when they are complete.

    An upload has a name that readers ignore until it is complete. Files that cannot be uploaded
    stay in the spool, and their upload is retried, also after a restart.
    """

    def __init__(
        self, settings: HistorySettings, spool: Storage, wall_ms: Callable[[], int]
    ) -> None:
        self._spool = spool
        self.writer = spool.writer
        self._settings = settings
        self._wall_ms = wall_ms
        url = settings.dir
        try:
            import fsspec  # noqa: PLC0415 - installed only for URLs
        except ImportError:
            raise HistoryUnavailable(f"[history] dir = {url}: needs fsspec; {_HOW}") from None
        try:
            files, top = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise HistoryUnavailable(f"[history] dir = {url}: {error}; {_HOW}") from None
        self._files, self._url = files, str(top).rstrip("/")

    def store(self) -> int:
        """Upload the files in the spool, oldest first.

        While uploads fail, retention limits the spool.
        """
        waiting = list(self._spool.finished())
        try:
            return self._upload(waiting)
        except OSError:
            for found in expired(waiting, self._settings, self._wall_ms()):
                self._spool.delete(found)
                log.error("history.upload.abandoned", path=str(found.path))  # noqa: TRY400 - of it
            raise

    def _upload(self, waiting: Iterable[Found]) -> int:
        count = 0
        for found in waiting:
            folder = f"{self._url}/{partition(found.hour)}"
            self._asked("makedirs", folder, exist_ok=True)
            self._asked("put_file", str(found.path), f"{folder}/_{found.name}")
            self._asked("mv", f"{folder}/_{found.name}", f"{folder}/{found.name}")
            self._spool.delete(found)
            count += 1
        return count

    def finished(self) -> Iterator[Found]:
        self._asked("invalidate_cache")
        for path, status in sorted(self._asked("find", self._url, detail=True).items()):
            place = Path(path)
            name = FileName.parse(place.name)
            hour = hour_of_partition(f"{place.parent.parent.name}/{place.parent.name}")
            if name is None or hour is None or name.is_open or name.writer != self.writer:
                continue
            yield Found(place, hour, name, int(status.get("size") or 0))

    def delete(self, found: Found) -> None:
        self._asked("rm_file", str(found.path))

    def _asked(self, name: str, *given: Any, **options: Any) -> Any:
        try:
            return getattr(self._files, name)(*given, **options)
        except OSError:
            raise
        except Exception as error:
            # Each file system has its own kinds of errors.
            raise Unreachable(f"{name}: {type(error).__name__}: {error}") from error


_HOW: Final = (
    "pip install 'loadmanager[history]', and the package of that file system (s3fs, gcsfs)"
)

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from loadmanager.adapters.history.disk import Disk, Found
from loadmanager.adapters.history.stream_writer import whole_bytes
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.history.files import FileName, hour_of, hour_of_partition, partition

log = structlog.get_logger()


_CHUNK_BYTES: Final = 1 << 20
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits on the age and total size of a writer's files; None for no limit."""

    max_age_s: float | None
    max_bytes: int | None


@dataclass(frozen=True, slots=True)
class Recovered:
    """A file that a killed writer left, cut to its complete lines, which all flushed ones are."""

    path: Path
    kept_bytes: int
    cut_bytes: int


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


def expired(finished: Iterable[Found], retention: Retention, now_ms: int) -> Iterator[Found]:
    """Yield the files to delete: those that are too old, then the oldest above the total size."""
    oldest_first = sorted(finished, key=lambda one: (one.hour, one.name.first_seq))
    kept = []
    for found in oldest_first:
        ended_ago_s = (hour_of(now_ms) - found.hour) * _HOUR_S
        if retention.max_age_s is not None and ended_ago_s > retention.max_age_s:
            yield found
        else:
            kept.append(found)
    total = sum(one.size_bytes for one in kept)
    for found in kept:
        if retention.max_bytes is None or total <= retention.max_bytes:
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
        try:
            self._disk.remove(found.path)
        except FileNotFoundError:
            return


class RemoteStorage(Storage):
    """Files are written to a spool on this host, and uploaded when they are complete.

    An upload has a name that readers ignore until it is complete. Files that cannot be uploaded
    stay in the spool, and their upload is retried, also after a restart.
    """

    def __init__(
        self, url: str, spool: Storage, retention: Retention, wall_ms: Callable[[], int]
    ) -> None:
        self._spool = spool
        self.writer = spool.writer
        self._retention = retention
        self._wall_ms = wall_ms
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
            for found in expired(waiting, self._retention, self._wall_ms()):
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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadmanager.adapters.history.disk import Disk, Found
from loadmanager.adapters.history.stream_writer import whole_bytes
from loadmanager.core.history.files import hour_of

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

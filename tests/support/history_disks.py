"""A disk that fails when it is told to, and readers of what was written to it."""

import errno
import gzip
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadmanager.adapters.history.disk import Disk
from loadmanager.core.history.reading import read_line


@dataclass
class FailingDisk(Disk):
    """The local disk, with room for ``free_bytes`` more and calls that fail by name."""

    free_bytes: int = 1 << 40
    failing: set[str] = field(default_factory=set)

    def _fail(self, call: str) -> None:
        if call in self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO), call)

    def create(self, path: Path) -> int:
        self._fail("create")
        return super().create(path)

    def append(self, fd: int, data: bytes, offset: int) -> None:
        self._fail("append")
        super().append(fd, data[: self.free_bytes], offset)
        if len(data) > self.free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.free_bytes -= len(data)

    def sync(self, fd: int) -> None:
        self._fail("sync")
        super().sync(fd)

    def publish(self, fd: int, size: int, path: Path, whole: Path) -> None:
        self._fail("publish")
        super().publish(fd, size, path, whole)


def finished(top: Path) -> list[Path]:
    return sorted(top.glob("date=*/hour=*/[!_]*"), key=lambda path: path.name)


def unfinished(top: Path) -> list[Path]:
    return sorted(top.glob("date=*/hour=*/_*"))


def lines_in(*paths: Path) -> Iterator[Mapping[str, Any]]:
    for path in paths:
        for number, line in enumerate(gzip.decompress(path.read_bytes()).splitlines(), start=1):
            yield read_line(f"{path.name}:{number}", line)


def seqs_in(*paths: Path) -> list[int]:
    return [line["seq"] for line in lines_in(*paths)]

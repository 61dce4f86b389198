"""A sink that keeps what it is offered, as the lines that a writer would have made of it."""

import errno
import gzip
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadmanager.adapters.history.storage import Disk
from loadmanager.common.context import Context
from loadmanager.core.history.reading import read_line
from loadmanager.core.history.records import Origin, Record, encode
from loadmanager.core.history.schema import KINDS, Stream
from loadmanager.core.ids import BrokerId


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


@dataclass(slots=True)
class KeptHistory:
    """The `HistorySink` of one sidecar; ``wanted`` are the streams it keeps."""

    writer: BrokerId
    wanted: frozenset[Stream] = frozenset(Stream)
    trouble: str = ""
    records: list[Record] = field(default_factory=list)

    def wants(self, stream: Stream) -> bool:
        return stream in self.wanted

    def offer(self, stream: Stream, at_ms: int, make: Callable[[], Iterable[Record]]) -> None:
        assert at_ms > 0
        if stream in self.wanted:
            made = list(make())
            assert {KINDS[one.kind].stream for one in made} <= {stream}
            self.records += made

    def count(self, kind: str) -> int:
        return sum(record.kind == kind for record in self.records)

    def lines(self, *kinds: str) -> list[Mapping[str, Any]]:
        origin = Origin("test", self.writer, "ab12")
        return [
            read_line(f"line {seq}", encode(record, origin, seq))
            for seq, record in enumerate(self.records, start=1)
            if not kinds or record.kind in kinds
        ]


@dataclass(slots=True)
class Archive:
    sinks: list[KeptHistory] = field(default_factory=list)

    def kept(self, context: Context) -> Context:
        sink = KeptHistory(context.identity.broker)
        self.sinks.append(sink)
        return replace(context, history=sink)

    def count(self, kind: str) -> int:
        return sum(sink.count(kind) for sink in self.sinks)

    def lines(self, *kinds: str) -> Iterator[Mapping[str, Any]]:
        for sink in self.sinks:
            yield from sink.lines(*kinds)

"""A sink that keeps what it is offered, as the lines that a writer would have made of it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loadmanager.common.context import Context
from loadmanager.core.history.kinds import KINDS
from loadmanager.core.history.reading import read_line
from loadmanager.core.history.records import Origin, Record, encode
from loadmanager.core.history.schema import Stream
from loadmanager.core.ids import BrokerId


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

"""Reading what earlier owners of a topic's log left, after sealing it.

The header of each segment says how long the segments before it were when they were read.
What a fenced owner wrote beyond that was never acknowledged, and every later owner
leaves it out as the first one did: else entries would turn up in the middle of the log.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loadmanager.testbed.pulsar_protocol.segments import (
    Record,
    RecordKind,
    SegmentName,
    names_in,
    records_of,
    seal,
)

NO_LIMIT: Final = 2**63


@dataclass(slots=True)
class Segment:
    """One file. Its first entry is ``first_number`` in the log, ``first_entry`` in its ledger.

    ``offsets`` and ``lengths`` say where its entries lie.
    """

    name: SegmentName
    first_number: int
    first_entry: int
    size_bytes: int
    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    @property
    def end_number(self) -> int:
        """One beyond its last entry's number in the log."""
        return self.first_number + len(self.offsets)


@dataclass(slots=True)
class Recovered:
    """What earlier segments hold: entries, and how far each subscription has come."""

    segments: list[Segment] = field(default_factory=list)
    saved: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """How much of each segment counts, for the header of the next one."""
        return {str(one.name): one.size_bytes for one in self.segments}


def recover(folder: Path, before: SegmentName) -> Recovered:
    """Seal the segments before this one, and return what they hold."""
    contents: list[tuple[SegmentName, bytes]] = []
    for name in names_in(folder):
        if name < before:
            try:
                seal(folder / str(name))
                contents.append((name, (folder / str(name)).read_bytes()))
            except FileNotFoundError:
                # All had consumed it: its owner dropped it just now.
                continue
    limits = _limits(contents)
    found = Recovered()
    for name, data in contents:
        _replay(found, name, data[: limits.get(str(name), NO_LIMIT)])
    return found


def header(first_entry: int, recovered: Recovered) -> bytes:
    """Return the body of a segment's first record.

    One record: a file that was begun by half must not hide what earlier ones say.
    """
    document = {"first": first_entry, "cursors": recovered.saved, "sizes": recovered.sizes}
    return json.dumps(document).encode()


def _limits(contents: list[tuple[SegmentName, bytes]]) -> dict[str, int]:
    """Return how much of each segment counts; the first owner that reads it records that."""
    limits: dict[str, int] = {}
    for _, data in contents:
        first = next(records_of(data), None)
        if first is not None and first.kind is RecordKind.HEADER:
            for name, size in json.loads(bytes(first.body))["sizes"].items():
                limits.setdefault(name, size)
    return limits


def _replay(found: Recovered, name: SegmentName, data: bytes) -> None:
    first_number = found.segments[-1].end_number if found.segments else 0
    segment = Segment(name, first_number, 0, len(data))
    for record in records_of(data):
        _apply(found, segment, record)
    if segment.offsets:
        found.segments.append(segment)


def _apply(found: Recovered, segment: Segment, record: Record) -> None:
    if record.kind is RecordKind.ENTRY:
        segment.offsets.append(record.offset)
        segment.lengths.append(len(record.body))
    elif record.kind is RecordKind.HEADER:
        document = json.loads(bytes(record.body))
        segment.first_entry, found.saved = document["first"], document["cursors"]
    elif record.kind is RecordKind.CURSOR:
        saved = json.loads(bytes(record.body))
        found.saved[saved["name"]] = saved
    else:
        found.saved.pop(bytes(record.body).decode(), None)

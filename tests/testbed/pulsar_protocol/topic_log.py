"""The log of one topic: its messages, and how far each subscription has consumed them.

It models what BookKeeper does for a real broker: the brokers of one machine share the folder, and
at any time only the newest owner can append (see `segments`). A message id consists of the fencing
token under which its segment was written, and of a number that counts on under that token. The
positions of subscriptions are written to the same log, so they are fenced with it.

The header of each segment has the sizes of the segments before it, as they were when they were
read. What a fenced owner wrote after that was never acknowledged, and every later owner ignores it
as the first one did: otherwise entries would appear in the middle of the log.
"""

import json
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple, Self

from loadmanager.core.errors import LoadManagerError
from tests.testbed.pulsar_protocol.cursor import Cursor
from tests.testbed.pulsar_protocol.segments import (
    Fenced,
    RecordKind,
    SegmentName,
    Writer,
    names_in,
    records_of,
    seal,
)

ROLL_BYTES: Final = 4 * 1024 * 1024
MAX_LOG_BYTES: Final = 256 * 1024 * 1024
_MAX_RANGES: Final = 10_000
_FACTS: Final = Struct(">QI")
_SIGN: Final = 2**63


class LogFull(LoadManagerError):
    """The topic has as much unconsumed content as one topic may have."""


class Position(NamedTuple):
    """A message id; they sort in the order of the log."""

    ledger: int
    entry: int

    @classmethod
    def of(cls, message_id: Any) -> Self:
        """Return the position of a message id; clients send -1, "the earliest", as unsigned."""
        numbers = message_id.ledger_id, message_id.entry_id
        return cls(*(one - 2 * _SIGN if one >= _SIGN else one for one in numbers))

    @property
    def fields(self) -> dict[str, int]:
        """The fields of the message id."""
        return {"ledger_id": self.ledger % (2 * _SIGN), "entry_id": self.entry % (2 * _SIGN)}


@dataclass(frozen=True, slots=True)
class Entry:
    """What one send appended to the log: a message, or a batch of them."""

    position: Position
    publish_time_ms: int
    messages: int
    payload: bytes


@dataclass(slots=True)
class _Segment:
    """One file. Its first entry is ``first_number`` in the log, ``first_entry`` in its ledger.

    ``entries`` are the offset and length of each.
    """

    name: SegmentName
    first_number: int
    first_entry: int = 0
    size_bytes: int = 0
    entries: list[tuple[int, int]] = field(default_factory=list)

    @property
    def end_number(self) -> int:
        """The number in the log after its last entry."""
        return self.first_number + len(self.entries)

    @property
    def end_entry(self) -> int:
        """The number in the ledger after its last entry."""
        return self.first_entry + len(self.entries)


class TopicLog:
    """The log of one topic, opened for writing under ``token``.

    Entries are numbered from 0, the oldest one that was kept at the opening.

    Raises:
        Fenced: on construction, and in all methods that write: a newer owner has the log.
        OSError: the files cannot be read or written.
    """

    def __init__(
        self,
        folder: Path,
        token: int,
        *,
        roll_bytes: int = ROLL_BYTES,
        max_bytes: int = MAX_LOG_BYTES,
    ) -> None:
        self._folder = folder
        self._roll_bytes = roll_bytes
        self._max_bytes = max_bytes
        self.full = False
        """Whether the last append found no room."""
        self._segments: list[_Segment] = []
        self._saved: dict[str, dict[str, Any]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        before = names_in(folder)
        opening = 1 + max((name.opening for name in before if name.token == token), default=0)
        self._writer = Writer(folder, SegmentName(token, opening, 0))
        try:
            self._recover()
            self._begin_segment()
        except BaseException:
            self._writer.close()
            raise

    @property
    def first_number(self) -> int:
        """The oldest entry that is kept."""
        return self._segments[0].first_number

    @property
    def end_number(self) -> int:
        """One beyond the newest entry."""
        return self._segments[-1].end_number

    @property
    def cursors(self) -> dict[str, Cursor]:
        """The saved subscriptions, as of the last `save`."""
        return {name: self._cursor_of(saved) for name, saved in self._saved.items()}

    def append(self, publish_time_ms: int, messages: int, payload: bytes) -> Entry:
        """Append an entry; after the return it may be acknowledged.

        Raises:
            LogFull: too much is not consumed.
        """
        self._make_room(len(payload))
        facts = _FACTS.pack(publish_time_ms, messages)
        offset = self._append(RecordKind.ENTRY, facts, payload)
        number = self.end_number
        self._segments[-1].entries.append((offset, _FACTS.size + len(payload)))
        return Entry(self.position(number), publish_time_ms, messages, payload)

    def read(self, number: int) -> Entry:
        """Return the entry with this number, which must be kept."""
        data = self._read(number)
        publish_time_ms, messages = _FACTS.unpack_from(data)
        return Entry(self.position(number), publish_time_ms, messages, data[_FACTS.size :])

    def position(self, number: int) -> Position:
        """Return the message id of the entry with this number, which may be the next one."""
        segment = self._segment_of(number)
        return Position(segment.name.token, segment.first_entry + number - segment.first_number)

    def number(self, position: Position) -> int:
        """Return the first kept entry whose message id is not before ``position``."""
        for segment in self._segments:
            token = segment.name.token
            if position < (token, segment.end_entry):
                skipped = position.entry - segment.first_entry if position.ledger == token else 0
                return segment.first_number + max(0, skipped)
        return self.end_number

    def number_at(self, publish_time_ms: int) -> int:
        """Return the first entry that was published at this time or later."""
        for number in range(self.first_number, self.end_number):
            (published_ms, _) = _FACTS.unpack(self._read(number, _FACTS.size))
            if published_ms >= publish_time_ms:
                return number
        return self.end_number

    def holds(self, position: Position) -> int | None:
        """Return the number of the entry with exactly this message id, if it is kept."""
        number = self.number(position)
        found = number < self.end_number and self.position(number) == position
        return number if found else None

    def save(self, name: str, cursor: Cursor) -> None:
        """Write what a subscription has acknowledged."""
        below = self.position(max(cursor.acked_below, self.first_number))
        ranges = [
            [*self.position(first), last - first + 1]
            for first, last in cursor.ranges(_MAX_RANGES)
            if first >= self.first_number
        ]
        self._saved[name] = {"name": name, "below": [*below], "acked": ranges}
        self._append(RecordKind.CURSOR, json.dumps(self._saved[name]).encode())
        self._trim()

    def forget(self, name: str) -> None:
        """Write that a subscription does not exist any more."""
        if self._saved.pop(name, None) is not None:
            self._append(RecordKind.CURSOR_GONE, name.encode())

    def close(self) -> None:
        """Close the file; what was appended stays for the next owner."""
        self._writer.close()

    def _recover(self) -> None:
        """Seal the segments before the writer's, and read them."""
        contents: dict[SegmentName, bytes] = {}
        for name in names_in(self._folder):
            if name < self._writer.name:
                try:
                    contents[name] = seal(self._folder / str(name))
                except FileNotFoundError:
                    # It was consumed, and its owner has just dropped it.
                    continue
        # The first owner that reads a segment records how much of it counts.
        sizes: dict[str, int] = {}
        for data in contents.values():
            first = next(records_of(data), None)
            if first is not None and first.kind is RecordKind.HEADER:
                sizes = json.loads(first.body)["sizes"] | sizes
        for name, data in contents.items():
            self._replay(name, data[: sizes.get(str(name))])

    def _replay(self, name: SegmentName, data: bytes) -> None:
        segment = _Segment(name, self.end_number if self._segments else 0, size_bytes=len(data))
        for kind, body, offset in records_of(data):
            if kind is RecordKind.ENTRY:
                segment.entries.append((offset, len(body)))
            elif kind is RecordKind.HEADER:
                document = json.loads(body)
                segment.first_entry, self._saved = document["first"], document["cursors"]
            elif kind is RecordKind.CURSOR:
                saved = json.loads(body)
                self._saved[saved["name"]] = saved
            else:
                self._saved.pop(body.decode(), None)
        if segment.entries:
            self._segments.append(segment)

    def _begin_segment(self) -> None:
        """Begin the writer's file, and delete those without entries.

        The header is one record: a file that was begun and not finished must not hide what earlier
        ones say.
        """
        name, segments = self._writer.name, self._segments
        before = segments[-1] if segments else None
        continued = before is not None and before.name.token == name.token
        first_entry = before.end_entry if before and continued else 0
        sizes = {str(one.name): one.size_bytes for one in segments}
        header = {"first": first_entry, "cursors": self._saved, "sizes": sizes}
        self._writer.append(RecordKind.HEADER, json.dumps(header).encode())
        segments.append(_Segment(name, before.end_number if before else 0, first_entry))
        self._trim()
        named = {one.name for one in segments}
        for empty in names_in(self._folder):
            if empty < name and empty not in named:
                (self._folder / str(empty)).unlink(missing_ok=True)

    def _append(self, kind: RecordKind, *parts: bytes) -> int:
        if self._writer.size_bytes > self._roll_bytes:
            name = self._writer.name
            following = Writer(self._folder, name._replace(number=name.number + 1))
            self._writer.close()
            self._writer = following
            self._begin_segment()
        offset = self._writer.append(kind, *parts)
        self._segments[-1].size_bytes = self._writer.size_bytes
        return offset

    def _make_room(self, payload_bytes: int) -> None:
        while sum(one.size_bytes for one in self._segments) + payload_bytes > self._max_bytes:
            if self._saved or len(self._segments) == 1:
                self.full = True
                raise LogFull(f"{self._folder}: {self._max_bytes} bytes are not consumed")
            self._drop_first()

    def _trim(self) -> None:
        """Drop the files whose entries all subscriptions have acknowledged.

        Without subscriptions all entries are kept for the first one, up to the limit of the log.
        """
        if not self._saved:
            return
        needed = min(self.number(Position(*saved["below"])) for saved in self._saved.values())
        while len(self._segments) > 1 and self._segments[0].end_number <= needed:
            self._drop_first()

    def _drop_first(self) -> None:
        self.full = False
        (self._folder / str(self._segments.pop(0).name)).unlink(missing_ok=True)

    def _read(self, number: int, length: int | None = None) -> bytes:
        segment = self._segment_of(number)
        offset, whole = segment.entries[number - segment.first_number]
        length = whole if length is None else length
        if segment is self._segments[-1]:
            return self._writer.read(offset, length)
        with (self._folder / str(segment.name)).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def _segment_of(self, number: int) -> _Segment:
        index = bisect_right(self._segments, number, key=lambda one: one.first_number)
        return self._segments[max(0, index - 1)]

    def _cursor_of(self, saved: dict[str, Any]) -> Cursor:
        acked: list[int] = []
        for ledger, entry, count in saved["acked"]:
            first = self.number(Position(ledger, entry))
            acked += range(first, first + count)
        return Cursor(self.number(Position(*saved["below"])), acked)


__all__ = ["Entry", "Fenced", "LogFull", "Position", "TopicLog"]

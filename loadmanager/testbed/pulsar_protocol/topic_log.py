"""The log of one topic: its messages, and how far each subscription has come.

It models what BookKeeper does for a real broker: brokers of one machine share the folder,
and at any time the newest owner alone can append (see `segments`). A message id is the
fencing token its segment was written under and a number that counts on under that token.
How far a subscription has come is written into the same log, so it is fenced with it.
"""

import json
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from loadmanager.core.errors import LoadManagerError
from loadmanager.testbed.pulsar_protocol.cursor import Cursor
from loadmanager.testbed.pulsar_protocol.recovery import Recovered, Segment, header, recover
from loadmanager.testbed.pulsar_protocol.segments import (
    Fenced,
    RecordKind,
    SegmentName,
    Writer,
    names_in,
)

ROLL_BYTES: Final = 4 * 1024 * 1024
MAX_LOG_BYTES: Final = 256 * 1024 * 1024
_MAX_RANGES: Final = 10_000
_FACTS: Final = Struct(">QI")


class LogFull(LoadManagerError):
    """The topic holds as much unconsumed content as one topic may."""


class Position(NamedTuple):
    """A message id: they sort as the log runs."""

    ledger: int
    entry: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What one send put into the log: a message, or a batch of them."""

    position: Position
    publish_time_ms: int
    messages: int
    payload: bytes


class TopicLog:
    """One topic's log, opened for writing under ``token``.

    Entries are numbered from 0, the oldest there was at the opening.

    Raises:
        Fenced: on construction, and in all that writes: a newer owner has the log.
        OSError: the disk cannot be read or written.
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
        folder.mkdir(parents=True, exist_ok=True)
        before = names_in(folder)
        opening = 1 + max((name.opening for name in before if name.token == token), default=0)
        self._writer = Writer(folder, SegmentName(token, opening, 0))
        self._held = Recovered()
        try:
            self._held = recover(folder, self._writer.name)
            self._begin_segment()
        except BaseException:
            self._writer.close()
            raise

    @property
    def _segments(self) -> list[Segment]:
        return self._held.segments

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
        """The subscriptions that are kept, as they were saved last."""
        return {name: self._cursor_of(saved) for name, saved in self._held.saved.items()}

    def append(self, publish_time_ms: int, messages: int, payload: bytes) -> Entry:
        """Append an entry; once this returns it may be acknowledged.

        Raises:
            LogFull: too much is unconsumed.
        """
        self._make_room(len(payload))
        facts = _FACTS.pack(publish_time_ms, messages)
        offset = self._append(RecordKind.ENTRY, facts, payload)
        segment = self._segments[-1]
        number = segment.end_number
        segment.offsets.append(offset)
        segment.lengths.append(_FACTS.size + len(payload))
        return Entry(self.position(number), publish_time_ms, messages, payload)

    def read(self, number: int) -> Entry:
        """Return the entry with this number, which must be one that is kept."""
        data = self._read(number)
        publish_time_ms, messages = _FACTS.unpack_from(data)
        return Entry(self.position(number), publish_time_ms, messages, data[_FACTS.size :])

    def position(self, number: int) -> Position:
        """Return the message id of the entry with this number, be it there or the next one."""
        segment = self._segment_of(number)
        entry = segment.first_entry + number - segment.first_number
        return Position(segment.name.token, entry)

    def number(self, position: Position) -> int:
        """Return the first entry that is kept whose message id is not before ``position``."""
        for segment in self._segments:
            token = segment.name.token
            if position < (token, segment.first_entry + len(segment.offsets)):
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
        """Write down how far a subscription has come."""
        below = self.position(max(cursor.acked_below, self.first_number))
        ranges = [
            [*self.position(first), last - first + 1]
            for first, last in cursor.ranges(_MAX_RANGES)
            if first >= self.first_number
        ]
        self._held.saved[name] = {"name": name, "below": [*below], "acked": ranges}
        self._append(RecordKind.CURSOR, json.dumps(self._held.saved[name]).encode())
        self._trim()

    def forget(self, name: str) -> None:
        """Write down that there is no such subscription any more."""
        if self._held.saved.pop(name, None) is not None:
            self._append(RecordKind.CURSOR_GONE, name.encode())

    def close(self) -> None:
        """Close the file; what was appended stays for the next owner."""
        self._writer.close()

    def _begin_segment(self) -> None:
        """Begin the writer's file; drop those that have nothing in them any more."""
        name, segments = self._writer.name, self._segments
        before = segments[-1] if segments else None
        goes_on = before is not None and before.name.token == name.token
        first_entry = before.first_entry + len(before.offsets) if before and goes_on else 0
        self._writer.append(RecordKind.HEADER, header(first_entry, self._held))
        segments.append(Segment(name, before.end_number if before else 0, first_entry, 0))
        self._trim()
        named = {one.name for one in segments}
        for empty in names_in(self._folder):
            if empty < name and empty not in named:
                (self._folder / str(empty)).unlink(missing_ok=True)

    def _append(self, kind: RecordKind, *parts: bytes) -> int:
        if self._writer.size_bytes > self._roll_bytes:
            self._roll()
        offset = self._writer.append(kind, *parts)
        self._segments[-1].size_bytes = self._writer.size_bytes
        return offset

    def _roll(self) -> None:
        name = self._writer.name
        following = Writer(self._folder, SegmentName(name.token, name.opening, name.number + 1))
        self._writer.close()
        self._writer = following
        self._begin_segment()

    def _make_room(self, payload_bytes: int) -> None:
        while sum(one.size_bytes for one in self._segments) + payload_bytes > self._max_bytes:
            if self._held.saved or len(self._segments) == 1:
                self.full = True
                raise LogFull(f"{self._folder}: {self._max_bytes} bytes are not consumed")
            self._drop_first()

    def _trim(self) -> None:
        """Drop the files whose entries all subscriptions have acknowledged.

        Without any subscription all is kept for the first that comes, up to the log's bound.
        """
        if not self._held.saved:
            return
        needed = min(self.number(Position(*saved["below"])) for saved in self._held.saved.values())
        while len(self._segments) > 1 and self._segments[0].end_number <= needed:
            self._drop_first()

    def _drop_first(self) -> None:
        self.full = False
        (self._folder / str(self._segments.pop(0).name)).unlink(missing_ok=True)

    def _read(self, number: int, length: int | None = None) -> bytes:
        segment = self._segment_of(number)
        index = number - segment.first_number
        offset = segment.offsets[index]
        length = segment.lengths[index] if length is None else length
        if segment is self._segments[-1]:
            return self._writer.read(offset, length)
        with (self._folder / str(segment.name)).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def _segment_of(self, number: int) -> Segment:
        index = bisect_right(self._segments, number, key=lambda one: one.first_number)
        return self._segments[max(0, index - 1)]

    def _cursor_of(self, saved: dict[str, Any]) -> Cursor:
        acked: list[int] = []
        for ledger, entry, count in saved["acked"]:
            first = self.number(Position(ledger, entry))
            acked += range(first, first + count)
        return Cursor(self.number(Position(*saved["below"])), acked)


__all__ = ["Entry", "Fenced", "LogFull", "Position", "TopicLog"]

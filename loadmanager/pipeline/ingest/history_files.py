"""Classification of the files in a history directory: which to read, and what the others are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from loadmanager.core.history.files import MOST_ROLL_MIB, OPEN, FileName, hour_of_partition
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.files import StoredFile

LARGEST_BYTES: Final = (MOST_ROLL_MIB + 32) << 20
"""A file is read as a whole. A finished one may exceed its configured size by one write."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR: Final = timedelta(hours=1)
_HIDDEN: Final = (".", OPEN)


class Listing(Protocol):
    """The part of `Files` that is used here."""

    def exists(self, where: str) -> bool:
        """Return whether a file or a folder exists."""

    def listed(self, folder: str) -> list[StoredFile]:
        """Return the entries of a folder in order of name."""


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """A file with its name below the history directory; the same state means the same content."""

    name: str
    path: str
    size_bytes: int
    changed_ms: int

    @property
    def state(self) -> list[int]:
        """Return values that change when the file changes."""
        return [self.size_bytes, self.changed_ms]


@dataclass(slots=True, kw_only=True)
class Found:
    """The content of a history directory. ``new`` files are to be read, in the order of hours.

    ``changed`` ones of them were read before in another state. ``known`` were read before,
    ``outside`` are of hours outside the bounds, ``being_written`` are still open.
    ``foreign`` are not files of history or in the wrong place; ``too_large`` cannot be read.
    """

    new: list[HistoryFile] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    known: int = 0
    outside: int = 0
    being_written: int = 0
    foreign: list[str] = field(default_factory=list)
    too_large: list[str] = field(default_factory=list)

    @property
    def has_history(self) -> bool:
        return bool(self.new or self.known or self.outside or self.being_written or self.too_large)

    def add_foreign(self, name: str, one: StoredFile) -> None:
        """Record a foreign file or folder; hidden ones are ignored."""
        if not one.name.startswith(_HIDDEN):
            self.foreign.append(f"{name}/" if one.is_folder else name)

    def add(
        self, name: str, one: StoredFile, read: Mapping[str, Sequence[int]], *, within: bool
    ) -> None:
        """Classify an entry of the folder of an hour; ``read`` has the states of known files."""
        parsed = None if one.is_folder else FileName.parse(one.name)
        if parsed is None:
            self.add_foreign(name, one)
        elif parsed.is_open:
            self.being_written += 1
        elif not within:
            self.outside += 1
        elif list(read.get(name, ())) == [one.size_bytes, one.changed_ms]:
            self.known += 1
        elif one.size_bytes > LARGEST_BYTES:
            self.too_large.append(name)
        else:
            if name in read:
                self.changed.append(name)
            self.new.append(HistoryFile(name, one.path, one.size_bytes, one.changed_ms))


@dataclass(frozen=True, slots=True)
class Bounds:
    """From ``since`` (inclusive) to ``until`` (exclusive), in UTC; None means no bound."""

    since: datetime | None = None
    until: datetime | None = None

    def hold(self, hour: int) -> bool:
        """Return whether any part of an hour, counted from 1970, is within the bounds."""
        start = _EPOCH + hour * _HOUR
        after = self.since is not None and self.since - start >= _HOUR
        return not after and (self.until is None or start < self.until)


def find_files(
    files: Listing, history: str, read: Mapping[str, Sequence[int]], bounds: Bounds
) -> Found:
    """Classify the files in ``history``; ``read`` has the state of each file read before.

    Raises:
        PipelineError: the directory does not exist.
    """
    if not files.exists(history):
        raise PipelineError(f"{history}: there is no such directory; expected one with history")
    found = Found()
    for day in files.listed(history):
        for hour, folder in _hours(files, day, found):
            within = bounds.hold(hour)
            for one in files.listed(folder.path):
                found.add(f"{day.name}/{folder.name}/{one.name}", one, read, within=within)
    return found


def _hours(files: Listing, day: StoredFile, found: Found) -> Iterator[tuple[int, StoredFile]]:
    """Yield the hours of a day with their folders; other entries are foreign."""
    if not day.is_folder or hour_of_partition(f"{day.name}/hour=00") is None:
        found.add_foreign(day.name, day)
        return
    for folder in files.listed(day.path):
        name = f"{day.name}/{folder.name}"
        hour = hour_of_partition(name)
        if hour is None or not folder.is_folder:
            found.add_foreign(name, folder)
        else:
            yield hour, folder

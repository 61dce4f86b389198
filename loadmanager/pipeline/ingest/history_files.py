"""Which files of a history directory are to be read, and what the others are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from loadmanager.core.history.files import MOST_ROLL_MIB, OPEN, FileName, hour_of_partition
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.files import StoredFile

LARGEST_BYTES: Final = (MOST_ROLL_MIB + 32) << 20
"""A file is read as a whole. Lines that come at once may take a finished one over its size."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR: Final = timedelta(hours=1)
_HIDDEN: Final = (".", OPEN)


class Listing(Protocol):
    """What is asked of a file system; see `Files`."""

    def exists(self, where: str) -> bool:
        """Return whether there is anything."""

    def listed(self, folder: str) -> list[StoredFile]:
        """Return what is in a folder, by name."""


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """A file by its name below the history directory; two with the same state are the same."""

    name: str
    path: str
    size_bytes: int
    changed_ms: int

    @property
    def state(self) -> list[int]:
        """Return what changes if the file does."""
        return [self.size_bytes, self.changed_ms]


@dataclass(slots=True, kw_only=True)
class Found:
    """What is in a history directory. ``new`` are to be read, in the order of their hours.

    ``changed`` of them were read before and are different now. ``known`` were read before,
    ``outside`` are of other hours than those asked for, ``being_written`` belong to a writer.
    ``foreign`` are no files of history, or not where one is; ``too_large`` cannot be read.
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
        """Return whether there is any file of history at all."""
        return bool(self.new or self.known or self.outside or self.being_written or self.too_large)

    def add_foreign(self, name: str, one: StoredFile) -> None:
        """Note what is not of history; hidden files are not of history."""
        if not one.name.startswith(_HIDDEN):
            self.foreign.append(f"{name}/" if one.is_folder else name)

    def add(
        self, name: str, one: StoredFile, read: Mapping[str, Sequence[int]], *, within: bool
    ) -> None:
        """Sort a file of an hour."""
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
    """From ``since`` (inclusive) to ``until`` (exclusive); None is no bound. Both are in UTC."""

    since: datetime | None = None
    until: datetime | None = None

    def hold(self, hour: int) -> bool:
        """Return whether any moment of an hour, counted since 1970, is within."""
        start = _EPOCH + hour * _HOUR
        after = self.since is not None and self.since - start >= _HOUR
        return not after and (self.until is None or start < self.until)


def find_files(
    files: Listing, history: str, read: Mapping[str, Sequence[int]], bounds: Bounds
) -> Found:
    """Sort all that is in ``history``; ``read`` has the state of each file that was read.

    Raises:
        PipelineError: there is no such directory.
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
    """Yield the hours of a day with their folders; what is none of them is foreign."""
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

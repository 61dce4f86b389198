import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from loadmanager.core.bounds import HOUR_MS
from loadmanager.core.history.records import Origin
from loadmanager.core.history.schema import Stream

OPEN: Final = "_"
"""Prefix of the name of a file that is still being written; Spark ignores such files."""

MOST_ROLL_MIB: Final = 256
"""The largest allowed size at which writers roll a file; the pipeline reads files as a whole."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAME: Final = re.compile(
    r"(?P<open>_?)(?P<stream>reports|rounds)-(?P<writer>.+)-(?P<instance>[0-9a-z]+)-"
    r"(?P<first_seq>\d{12,})\.jsonl\.gz"
)
_PARTITION: Final = re.compile(r"date=(\d{4})-(\d\d)-(\d\d)/hour=(\d\d)")


def hour_of(at_ms: int) -> int:
    return at_ms // HOUR_MS


def partition(hour: int) -> str:
    """Return the folder of an hour: ``date=2026-11-21/hour=22``, in UTC."""
    return f"{_EPOCH + timedelta(hours=hour):date=%Y-%m-%d/hour=%H}"


def hour_of_partition(folder: str) -> int | None:
    """Return the hour of a folder, None if it is not a partition."""
    found = _PARTITION.fullmatch(folder)
    if found is None:
        return None
    try:
        year, month, day, hour = (int(digits) for digits in found.groups())
        moment = datetime(year, month, day, hour, tzinfo=UTC)
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class FileName:
    """The name of a file; ``is_open`` while it is being written or if its writer was killed."""

    stream: Stream
    writer: str
    instance: str
    first_seq: int
    is_open: bool = False

    @classmethod
    def of(cls, stream: Stream, origin: Origin, first_seq: int) -> Self:
        return cls(stream, writer_word(origin.writer), origin.instance, first_seq)

    @classmethod
    def parse(cls, name: str) -> Self | None:
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return cls(
            Stream(found["stream"]),
            found["writer"],
            found["instance"],
            int(found["first_seq"]),
            is_open=bool(found["open"]),
        )

    def __str__(self) -> str:
        mark = OPEN if self.is_open else ""
        return f"{mark}{self.stream}-{self.writer}-{self.instance}-{self.first_seq:012}.jsonl.gz"


def writer_word(writer: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", writer)

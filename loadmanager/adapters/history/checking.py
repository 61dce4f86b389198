import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from loadmanager.adapters.history.disk import Disk
from loadmanager.core.errors import MalformedContent
from loadmanager.core.history.kinds import KINDS
from loadmanager.core.history.reading import read_line

_MOST_SHOWN: Final = 20

_Series = tuple[str, str, str]
_Run = tuple[int, int]


@dataclass(slots=True)
class Findings:
    """The result of a check. ``faults`` are unreadable files and lines, with their places.

    ``missing`` and ``repeated`` count lines by their numbers. Lines before the first file of a
    writer were deleted by retention, and do not count as missing.
    """

    files: int = 0
    unfinished: int = 0
    lines: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    given_up: int = 0
    missing: int = 0
    repeated: int = 0
    faults: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "kinds": dict(sorted(self.kinds.items()))}

    def summary(self) -> Iterator[str]:
        yield f"{self.files} files, and {self.unfinished} that are being written"
        yield f"{self.lines} lines"
        yield from (f"{count:>10}  {kind}" for kind, count in sorted(self.kinds.items()))
        yield f"{self.missing} lines missing, {self.repeated} there twice"
        yield f"{self.given_up} records given up by their writers"
        yield f"{len(self.faults)} files or lines that cannot be read"
        yield from self.faults[:_MOST_SHOWN]


def check_history(directory: Path) -> Findings:
    found = Findings()
    runs: dict[_Series, list[_Run]] = {}
    for file in Disk().find(directory):
        if file.name.is_open:
            found.unfinished += 1
            continue
        found.files += 1
        for line in _lines(file.path, found):
            found.lines += 1
            found.kinds[line["kind"]] += 1
            kind = KINDS[line["kind"]]
            found.given_up += line["records"] if kind.name.startswith("lost_") else 0
            series = (line["writer"], line["instance"], kind.stream.value)
            _count(runs.setdefault(series, []), line["seq"])
    for each in runs.values():
        missing, repeated = _gaps_and_overlaps(each)
        found.missing += missing
        found.repeated += repeated
    return found


def _count(runs: list[_Run], seq: int) -> None:
    if runs and runs[-1][1] + 1 == seq:
        runs[-1] = (runs[-1][0], seq)
    else:
        runs.append((seq, seq))


def _gaps_and_overlaps(runs: list[_Run]) -> tuple[int, int]:
    runs = sorted(runs)
    missing, repeated, reached = 0, 0, runs[0][0] - 1
    for first, last in runs:
        missing += max(first - reached - 1, 0)
        repeated += max(min(last, reached) - first + 1, 0)
        reached = max(reached, last)
    return missing, repeated


def _lines(path: Path, found: Findings) -> Iterator[Any]:
    number = 0
    try:
        with gzip.open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield read_line(f"{path}:{number}", line)
                except MalformedContent as error:
                    found.faults.append(str(error))
    except (OSError, EOFError, zlib.error) as error:
        found.faults.append(f"{path}: after line {number}: {error}")

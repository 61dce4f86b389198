"""The summary of an ingest, which mentions everything that was skipped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.ingest.history_files import LARGEST_BYTES, Found

SHOWN: Final = 5
"""The most names listed of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Counts of lines: ``read`` is the sum of the next three.

    ``gone`` files were deleted before they were read. ``doubled`` are some of the brokers that two
    sidecars reported on at once.

    Raises:
        PipelineError: lines were lost or counted twice.
    """

    read: int = 0
    kept: int = 0
    quarantined: int = 0
    duplicate: int = 0
    gone: int = 0
    doubled: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the sum; each of the numbers was counted independently."""
        if self.read != self.kept + self.quarantined + self.duplicate:
            text = ", ".join(f"{count} {name}" for name, count in self.lines.items())
            expected = "read = kept + quarantined + duplicate; this is a fault of the pipeline"
            raise PipelineError(f"ingest: lines: {text}; expected {expected}")

    def __add__(self, other: "Taken") -> "Taken":
        """Return the sum of both; ``other`` is the later one."""
        return Taken(
            read=self.read + other.read,
            kept=self.kept + other.kept,
            quarantined=self.quarantined + other.quarantined,
            duplicate=self.duplicate + other.duplicate,
            gone=self.gone + other.gone,
            doubled=other.doubled or self.doubled,
        )

    @property
    def lines(self) -> dict[str, int]:
        names = ("read", "kept", "quarantined", "duplicate")
        return {name: getattr(self, name) for name in names}


def nothing_there(history: str, found: Found) -> str:
    text = f"{history}: there is no file of history in it"
    if found.foreign:
        text += f", but {_some(found.foreign)}"
    return f"{text}; expected date=*/hour=*/reports-*.jsonl.gz"


def messages_of_files(found: Found) -> Iterator[str]:
    """Yield the number of files of each class, and the names of unexpected ones."""
    yield f"files: {len(found.new)} to be read, {found.known} read before"
    if found.outside:
        yield f"outside of --since and --until, left for later: {found.outside}"
    if found.being_written:
        yield f"being written, left for later: {found.being_written}"
    if found.changed:
        yield f"changed since they were read, and read again: {_some(found.changed)}"
    if found.foreign:
        yield f"not of history, left alone: {_some(found.foreign)}"
    if found.too_large:
        most = f"at most {LARGEST_BYTES >> 20} MiB; [history] roll_mib makes smaller ones"
        yield f"too large to be read: {_some(found.too_large)}; expected {most}"


def messages_of_lines(taken: Taken) -> Iterator[str]:
    if taken.gone:
        yield f"gone before they were read: {taken.gone} files"
    yield (
        f"lines: {taken.read} read = {taken.kept} kept + {taken.quarantined} quarantined + "
        f"{taken.duplicate} duplicate"
    )
    if taken.quarantined:
        yield "the table quarantine has file, line, reason and text of each that was refused"
    if taken.doubled:
        yield (
            f"brokers that two sidecars reported on at once: {_some(taken.doubled)}; "
            "the reports of the one that began later stand, the table doubled has when"
        )


def _some(names: Sequence[str]) -> str:
    many = "more than " if len(names) > SHOWN and isinstance(names, tuple) else ""
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return f"{many}{min(len(names), SHOWN) if many else len(names)}: {shown}"

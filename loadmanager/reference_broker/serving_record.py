"""The record of an in-memory broker: when it served which bundle, for an independent checker.

One JSON object per line, written at once, so that the kernel has it even if the process is
killed right afterwards. Times are seconds of CLOCK_MONOTONIC, which all processes of one machine
share; they cannot be compared between machines or across a reboot.
"""

import math
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId
from loadmanager.reference_broker.changes import (
    BundleLoaded,
    Change,
    EndReason,
    LeaseGranted,
    ServingEnded,
    ServingInterval,
    Started,
    Stopped,
)

_PERMITTING: Final = (Started, LeaseGranted, BundleLoaded)
"""The changes after which a broker may serve more than before."""

_LINE: Final = TypeAdapter[Change](Annotated[Change, Field(discriminator="event")])


class RecordFile:
    """Appends each change to a file as one line.

    On a full disk changes that begin serving raise an error, so the broker serves nothing new.
    Changes that end serving take effect, and are written when there is room again.

    Raises:
        OSError: on construction, if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        # With O_APPEND and one write per line, lines of two processes do not mix.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._owed: list[bytes] = []

    def write(self, change: Change) -> None:
        """Append ``change``; on return it survives a kill of this process, unless it is postponed.

        Raises:
            OSError: the change begins serving, and cannot be written.
        """
        line = _LINE.dump_json(change) + b"\n"
        try:
            while self._owed:
                self._append(self._owed[0])
                del self._owed[0]
            self._append(line)
        except OSError:
            if isinstance(change, _PERMITTING):
                raise
            self._owed.append(line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, line: bytes) -> None:
        size_bytes = os.fstat(self._file).st_size
        written = os.write(self._file, line)
        if written != len(line):
            os.ftruncate(self._file, size_bytes)
            raise OSError(f"serving record: wrote {written} of {len(line)} bytes; disk full?")


def read_record(path: Path, died_at_s: float | None) -> list[ServingInterval]:
    """Return the intervals in a broker's record, in order of their starts.

    An incomplete last line, as a killed process leaves it, is ignored. A file may contain
    several processes of a broker, one after another; ``died_at_s`` is about the last one.

    Args:
        path: the file of a `RecordFile`.
        died_at_s: a monotonic time at which the process had certainly ended; None if it is alive
            or ended by itself.

    Raises:
        MalformedContent: a complete line is not one of a record.
        OSError: the file cannot be read.
    """
    lines = path.read_bytes().split(b"\n")[:-1]
    changes = [_parsed(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    return intervals_of(changes, died_at_s)


def intervals_of(changes: Sequence[Change], died_at_s: float | None) -> list[ServingInterval]:
    """Return the intervals in which a broker served bundles, from its changes. Pure.

    An interval without an end lasts until the process died, but never beyond its lease, which is
    checked before each request is accepted.
    """
    starts = [number for number, one in enumerate(changes) if isinstance(one, Started)]
    if changes and starts[:1] != [0]:
        raise MalformedContent("serving record", f"change 1 is {changes[0]}", "a start")
    intervals: list[ServingInterval] = []
    for start, end in pairwise([*starts, len(changes)]):
        dead_at_s = changes[end].at_s if end < len(changes) else died_at_s
        intervals += _intervals_of_process(
            changes[start:end], math.inf if dead_at_s is None else dead_at_s
        )
    return sorted(intervals, key=lambda one: (one.start_s, one.bundle, one.end_s))


def _intervals_of_process(changes: Sequence[Change], dead_at_s: float) -> Iterator[ServingInterval]:
    """Yield the intervals of one process; those that have no end in the record come last.

    The process lived at least until its last line, even if ``dead_at_s`` is earlier.
    """
    started = changes[0]
    assert isinstance(started, Started)  # noqa: S101 - processes are separated at their starts

    def interval(
        of: BundleLoaded | ServingEnded, start_s: float, end_s: float, why: EndReason
    ) -> ServingInterval:
        return ServingInterval(
            broker=started.broker,
            incarnation=started.incarnation,
            bundle=of.bundle,
            fencing_token=of.fencing_token,
            agent_epoch=of.agent_epoch,
            start_s=start_s,
            end_s=end_s,
            why=why,
        )

    loaded: dict[BundleId, BundleLoaded] = {}
    leases: dict[int, float] = {}
    for change in changes:
        if isinstance(change, BundleLoaded):
            loaded[change.bundle] = change
        elif isinstance(change, LeaseGranted):
            leases[change.agent_epoch] = change.until_s
        elif isinstance(change, ServingEnded):
            loaded.pop(change.bundle, None)
            yield interval(change, change.start_s, change.end_s, change.why)
        elif isinstance(change, Stopped):
            loaded.clear()
    dead_at_s = max(dead_at_s, changes[-1].at_s)
    for load in loaded.values():
        end_s = min(dead_at_s, leases.get(load.agent_epoch, math.inf))
        yield interval(load, load.at_s, end_s, EndReason.NOT_RECORDED)


def _parsed(line: bytes, where: str) -> Change:
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        what = f"{'.'.join(map(str, first['loc'])) or 'line'} in {line[:80]!r}"
        raise MalformedContent(where, what, first["msg"]) from None

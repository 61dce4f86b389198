"""The record of an in-memory broker: when it served which bundle, for an independent checker.

One JSON object per line, written at once, so that the kernel has it even if the process is
killed right afterwards. Times are seconds of CLOCK_MONOTONIC, which all processes of one machine
share; they cannot be compared between machines or across a reboot.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId
from loadmanager.testbed.broker.changes import (
    BundleLoaded,
    Change,
    EndReason,
    LeaseGranted,
    ServingEnded,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingInterval:
    """One broker process served one bundle from ``start_s`` up to ``end_s``.

    ``end_s`` is infinite if its end is not recorded.
    """

    broker: str
    incarnation: str
    bundle: BundleId
    fencing_token: int
    agent_epoch: int
    start_s: float
    end_s: float
    why: EndReason

    @property
    def ended_by_command(self) -> bool:
        """Whether it ended by a command of the agent, not by the loss of a lease or process."""
        return self.why in {EndReason.UNLOADED, EndReason.REGRANTED}


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
    lives = list(_lives(changes))
    intervals: list[ServingInterval] = []
    for life, following in zip_longest(lives, lives[1:]):
        dead_at_s = died_at_s if following is None else following.started.at_s
        intervals += life.closed
        intervals += life.cut_off(math.inf if dead_at_s is None else dead_at_s)
    return sorted(intervals, key=lambda one: (one.start_s, one.bundle, one.end_s))


def _parsed(line: bytes, where: str) -> Change:
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        what = f"{'.'.join(map(str, first['loc'])) or 'line'} in {line[:80]!r}"
        raise MalformedContent(where, what, first["msg"]) from None


@dataclass(slots=True)
class _Life:
    """The state of one process while its changes are replayed."""

    started: Started
    last_at_s: float
    closed: list[ServingInterval] = field(default_factory=list)
    loaded: dict[BundleId, BundleLoaded] = field(default_factory=dict)
    leases: dict[int, float] = field(default_factory=dict)

    def take(self, change: Change) -> None:
        self.last_at_s = change.at_s
        if isinstance(change, BundleLoaded):
            self.loaded[change.bundle] = change
        elif isinstance(change, LeaseGranted):
            self.leases[change.agent_epoch] = change.until_s
        elif isinstance(change, ServingEnded):
            self.loaded.pop(change.bundle, None)
            self.closed.append(self._interval(change, change.start_s, change.end_s, change.why))
        elif isinstance(change, Stopped):
            self.loaded.clear()

    def cut_off(self, dead_at_s: float) -> Iterator[ServingInterval]:
        """Yield the intervals that have no end in the record.

        The process lived at least until its last line, even if ``dead_at_s`` is earlier.
        """
        dead_at_s = max(dead_at_s, self.last_at_s)
        for load in self.loaded.values():
            end_s = min(dead_at_s, self.leases.get(load.agent_epoch, math.inf))
            yield self._interval(load, load.at_s, end_s, EndReason.NOT_RECORDED)

    def _interval(
        self, of: BundleLoaded | ServingEnded, start_s: float, end_s: float, why: EndReason
    ) -> ServingInterval:
        return ServingInterval(
            broker=self.started.broker,
            incarnation=self.started.incarnation,
            bundle=of.bundle,
            fencing_token=of.fencing_token,
            agent_epoch=of.agent_epoch,
            start_s=start_s,
            end_s=end_s,
            why=why,
        )


def _lives(changes: Sequence[Change]) -> Iterator[_Life]:
    life: _Life | None = None
    for number, change in enumerate(changes, start=1):
        if isinstance(change, Started):
            if life is not None:
                yield life
            life = _Life(change, change.at_s)
        elif life is None:
            raise MalformedContent("serving record", f"change {number} is {change}", "a start")
        else:
            life.take(change)
    if life is not None:
        yield life

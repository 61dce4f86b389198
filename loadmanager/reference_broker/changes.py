"""Changes of an in-memory broker, and its record of them for an independent checker.

The record has one JSON object per line, written at once, so that the kernel has it even if the
process is killed right afterwards. Times are seconds of CLOCK_MONOTONIC, which all processes of
one machine share; they cannot be compared between machines or across a reboot.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId, namespace_of, range_of
from loadmanager.ports.broker import BrokerRefused


class EndReason(StrEnum):
    UNLOADED = "unloaded"
    LEASE_LOST = "lease_lost"
    # The same broker continues under a newer token or for a newer agent, without a gap.
    REGRANTED = "regranted"
    STOPPED = "stopped"
    # Without a line: the process died, was still alive, or the record is incomplete.
    NOT_RECORDED = "not_recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A broker process began; it serves nothing yet."""

    at_s: float
    broker: str
    incarnation: str
    event: Literal["start"] = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGranted:
    """The agent with this epoch granted a lease until ``until_s``."""

    at_s: float
    agent_epoch: int
    until_s: float
    event: Literal["lease"] = "lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost:
    """The lease expired at ``until_s``; the broker noticed at ``at_s``."""

    at_s: float
    agent_epoch: int
    until_s: float
    event: Literal["lease_lost"] = "lease_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLoaded:
    at_s: float
    bundle: BundleId
    fencing_token: int
    agent_epoch: int
    event: Literal["load"] = "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadBegun:
    """The bundle accepts no new requests; those in service are being finished."""

    at_s: float
    bundle: BundleId
    fencing_token: int
    event: Literal["unload"] = "unload"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEnded:
    """The bundle was served to ``end_s``: before ``at_s`` if a frozen process lost its lease."""

    at_s: float
    bundle: BundleId
    fencing_token: int
    agent_epoch: int
    start_s: float
    end_s: float
    why: EndReason
    event: Literal["interval"] = "interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The broker process ended by itself, and serves no bundles any more."""

    at_s: float
    event: Literal["stop"] = "stop"


Change = Started | LeaseGranted | LeaseLost | BundleLoaded | UnloadBegun | ServingEnded | Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingInterval:
    """One broker process served one bundle under one grant; it has no end if none is recorded.

    Its ``incarnation`` is drawn at each start. Times are on a clock that all processes share.
    """

    broker: str
    incarnation: str
    bundle: BundleId
    fencing_token: int
    agent_epoch: int
    start_s: float
    end_s: float
    why: EndReason


class StaleToken(BrokerRefused):
    """The fencing token is older than one seen for this bundle, or was ended by an unload."""


class NotNow(BrokerRefused):
    """The command is not possible in the broker's current state; the agent may retry."""


class NotServed(BrokerRefused):
    """The requested bundle is not served here."""


class NoLease(BrokerRefused):
    """The message was not accepted, because the broker has no valid lease."""


class TopicNotServed(BrokerRefused):
    """The message was not accepted, because its topic is not served here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The message was accepted at ``clock_s``, under the grant with this token."""

    bundle: BundleId
    fencing_token: int
    clock_s: float


_PERMITTING: Final = (Started, LeaseGranted, BundleLoaded)
"""The changes after which a broker may serve more than before."""

_LINE: Final = TypeAdapter[Change](Annotated[Change, Field(discriminator="event")])


class RecordFile:
    """Appends each change to a file as one line.

    On a full disk changes that begin serving raise an error; others are written when there is room.
    """

    def __init__(self, path: Path) -> None:
        # With O_APPEND and one write per line, lines of two processes do not mix.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._owed: list[bytes] = []

    def write(self, change: Change) -> None:
        """Append ``change``: it survives a kill of this process, unless it is postponed."""
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
        os.close(self._file)

    def _append(self, line: bytes) -> None:
        size_bytes = os.fstat(self._file).st_size
        written = os.write(self._file, line)
        if written != len(line):
            os.ftruncate(self._file, size_bytes)
            raise OSError(f"serving record: wrote {written} of {len(line)} bytes; disk full?")


def read_record(path: Path, died_at_s: float | None) -> list[ServingInterval]:
    """Return the intervals in a broker's record, in order of their starts.

    An incomplete last line is ignored. ``died_at_s`` is about the last process in the file.
    """
    lines = path.read_bytes().split(b"\n")[:-1]
    changes = [_parsed(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    return intervals_of(changes, died_at_s)


def intervals_of(changes: Sequence[Change], died_at_s: float | None) -> list[ServingInterval]:
    """Return the intervals in which a broker served bundles, from its changes. Pure.

    One without an end lasts until the process died, but never beyond its lease.
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
    """Yield the intervals of one process, which lived at least until its last line."""
    started = changes[0]
    assert isinstance(started, Started)  # noqa: S101 - processes are separated at their starts

    def made(of: BundleLoaded | ServingEnded, **times: Any) -> ServingInterval:
        held = {key: getattr(of, key) for key in ("bundle", "fencing_token", "agent_epoch")}
        broker, incarnation = started.broker, started.incarnation
        return ServingInterval(broker=broker, incarnation=incarnation, **held, **times)

    loaded: dict[BundleId, BundleLoaded] = {}
    leases: dict[int, float] = {}
    for change in changes:
        if isinstance(change, BundleLoaded):
            loaded[change.bundle] = change
        elif isinstance(change, LeaseGranted):
            leases[change.agent_epoch] = change.until_s
        elif isinstance(change, ServingEnded):
            loaded.pop(change.bundle, None)
            yield made(change, start_s=change.start_s, end_s=change.end_s, why=change.why)
        elif isinstance(change, Stopped):
            loaded.clear()
    dead_at_s = max(dead_at_s, changes[-1].at_s)
    for load in loaded.values():
        end_s = min(dead_at_s, leases.get(load.agent_epoch, math.inf))
        yield made(load, start_s=load.at_s, end_s=end_s, why=EndReason.NOT_RECORDED)


def _parsed(line: bytes, where: str) -> Change:
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        what = f"{'.'.join(map(str, first['loc'])) or 'line'} in {line[:80]!r}"
        raise MalformedContent(where, what, first["msg"]) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Two broker processes served a common part of the hash circle at the same time."""

    first: ServingInterval
    second: ServingInterval
    start_s: float
    end_s: float

    def __str__(self) -> str:
        return (
            f"{self.second.bundle} was served by {self.first.broker} (token "
            f"{self.first.fencing_token}) and {self.second.broker} (token "
            f"{self.second.fencing_token}) from {self.start_s:.3f} s to {self.end_s:.3f} s"
        )


def overlaps(intervals: Iterable[ServingInterval]) -> list[Overlap]:
    """Return every pair in which two processes served a common position, in order of time.

    A bundle and a half of it have common positions. One process may serve both, as during a split.
    """
    found: list[Overlap] = []
    ordered = sorted(intervals, key=lambda one: (namespace_of(one.bundle), range_of(one.bundle)))
    for _, of_namespace in groupby(ordered, key=lambda one: namespace_of(one.bundle)):
        found += _overlaps_by_position(of_namespace)
    return sorted(found, key=lambda overlap: overlap.start_s)


def _overlaps_by_position(ordered: Iterator[ServingInterval]) -> Iterator[Overlap]:
    """Yield the overlaps within a namespace; the intervals are ordered by their lower bounds."""
    open_ones: list[ServingInterval] = []
    for interval in ordered:
        lower = range_of(interval.bundle)[0]
        open_ones = [one for one in open_ones if range_of(one.bundle)[1] > lower]
        for other in open_ones:
            earlier, later = sorted((other, interval), key=lambda one: one.start_s)
            end_s = min(earlier.end_s, later.end_s)
            if earlier.incarnation != later.incarnation and end_s > later.start_s:
                yield Overlap(first=earlier, second=later, start_s=later.start_s, end_s=end_s)
        open_ones.append(interval)

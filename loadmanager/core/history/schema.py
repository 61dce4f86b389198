"""Schema of the lines of history: one declaration for writer, reader, Spark and documents.

A line is one JSON object. Lists that belong together are columns: an object of lists of one
length, ``{"bundle": [...], "msgs_in_per_s": [...]}``, which is a third of the text of a list
of objects and takes a third of the time to read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from types import MappingProxyType
from typing import Final

from loadmanager.core.bounds import TIME_MS, TOTAL, TOTAL_COUNT, Bound

VERSION: Final = 1
"""Grows when a reader of the former version would misread a line; new fields do not."""


class Type(StrEnum):
    """Type of a field. Spark: string, bigint, bigint, double, boolean."""

    TEXT = "text"
    COUNT = "count"
    """A whole number within `TOTAL_COUNT`."""
    TIME = "time"
    """Milliseconds since 1970, a whole number within `TIME_MS`."""
    RATE = "rate"
    """A finite number within `TOTAL`."""
    FLAG = "flag"


BOUNDS: Final[Mapping[Type, Bound]] = MappingProxyType(
    {Type.COUNT: TOTAL_COUNT, Type.TIME: TIME_MS, Type.RATE: TOTAL}
)
"""The bounds of each type of number: sums over bundles are recorded as well as single figures."""


class Stream(StrEnum):
    """The files that have a kind of line; each writer numbers the lines of each stream."""

    REPORTS = "reports"
    ROUNDS = "rounds"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a line.

    ``nullable`` fields are null where a value is unknown or does not apply; the field
    itself is always present. ``listed`` is a list of such values. Lines that were written
    before a field was ``added`` lack it, and it is read as null.
    """

    name: str
    meaning: str
    type: Type
    nullable: bool = False
    listed: bool = False
    added: bool = False


@dataclass(frozen=True, slots=True)
class Columns:
    """Several lists of one length, one for each field: a table inside a line."""

    name: str
    fields: tuple[Field, ...]
    meaning: str


@dataclass(frozen=True)
class Kind:
    name: str
    stream: Stream
    fields: tuple[Field | Columns, ...]
    meaning: str

    @cached_property
    def added(self) -> tuple[str, ...]:
        """The fields that lines of earlier versions lack; they are read as null."""
        return tuple(one.name for one in self.fields if isinstance(one, Field) and one.added)


text = partial(Field, type=Type.TEXT)
count = partial(Field, type=Type.COUNT)
time = partial(Field, type=Type.TIME)
rate = partial(Field, type=Type.RATE)
flag = partial(Field, type=Type.FLAG)

ENVELOPE: Final = (
    count("schema", "Version of this format."),
    text("kind", "Kind of the line."),
    text("cluster", "Name of the cluster."),
    text("writer", "Broker id of the sidecar that wrote the line; attach-HOST:0 of attach."),
    text("instance", "Generated at each start of the writer."),
    count("seq", "From 1 and without a gap for each writer, instance and stream."),
    time("at_ms", "When it happened: milliseconds since 1970 on the writer's wall clock."),
)
"""The first fields of every line, in this order."""

TRAFFIC: Final = (
    rate("msgs_in_per_s", "Messages per second from producers."),
    rate("msgs_out_per_s", "Messages per second to consumers."),
    rate("bytes_in_per_s", "Bytes per second from producers."),
    rate("bytes_out_per_s", "Bytes per second to consumers."),
)

RESOURCES: Final = tuple(
    rate(f"{resource}_{part}", f"{what}, {unit}.{note}")
    for resource, unit in (
        ("cpu", "percent of one core"),
        ("memory", "MiB"),
        ("direct_memory", "MiB"),
        ("bandwidth_in", "kbit/s"),
        ("bandwidth_out", "kbit/s"),
    )
    for part, what, note in (
        ("usage", "Usage", ""),
        ("limit", "Limit", " 0: not measured."),
    )
)

VARIED: Final = tuple(
    rate(f"{resource}_{part}", what, nullable=True, added=True)
    for resource in ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")
    for part, what in (
        ("mean", "Mean usage of the samples since the bundles changed; null if there is only one."),
        ("variance", "Variance of usage over the same samples, in its unit squared."),
    )
)

TERM: Final = (
    count("epoch", "Epoch of the leader's term."),
    count("round", "Rounds of this term so far, including the current one; 0 before the first."),
)

AT_TICK: Final = count(
    "tick", "Ticks of this term before the decision; null from simulations.", nullable=True
)

SHORT_AND_LONG: Final = tuple(
    rate(f"{length}_{name}", f"{label} average of the {what}.")
    for length, label in (("short", "Short-term"), ("long", "Long-term"))
    for name, what in (
        ("msgs_in_per_s", "messages in"),
        ("msgs_out_per_s", "messages out"),
        ("bytes_in_per_s", "bytes in"),
        ("bytes_out_per_s", "bytes out"),
    )
)

MOVING: Final = (
    text("source", "Previous broker; null if none.", nullable=True),
    text("target", "Next broker."),
)


def by_name(kinds: tuple[Kind, ...]) -> Mapping[str, Kind]:
    return MappingProxyType({kind.name: kind for kind in kinds})

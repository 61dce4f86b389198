"""Codec of the state that a new leader inherits: memories, recent moves, averages.

Large JSON is compressed. Averages are those of the heaviest bundles, rounded to six
digits: a bundle that is missing starts with no sample, as a new one does.
"""

import heapq
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average, BundleAverages, Running
from loadmanager.core.bounds import COUNT, RATE, TIME_MS, TIME_S, TOTAL, Bound
from loadmanager.core.fields import At, Fields, Form, packed, unpacked_object
from loadmanager.core.ids import BrokerId, BundleId, parse_broker, parse_bundle
from loadmanager.core.memory import ROUND_MEMORY, RoundMemory
from loadmanager.core.optimality import BalancePoint, course_from_fields, course_to_json
from loadmanager.core.rates import Rates, six_digits

DEFAULT_BUNDLES: Final = 5000

_LARGEST_UNPACKED_BYTES: Final = 16 * 1024 * 1024
_ROW: Final = 11
_RUNNING_ROW: Final = 3


@dataclass(frozen=True, slots=True)
class Standby:
    """The state of a leader, as stored for its successor.

    ``running`` are brokers' averages, ``departed_at_s`` the times at which brokers left
    recently, and ``split_rests_s`` the times until which bundles that could not be split are
    not split again; times are on the clock of the memory. ``joint`` is the learned state of the
    joint strategy as encoded by `core.joint.document`, empty without one. ``course`` is the
    balance of the last hour on the wall clock. Older versions wrote only the first two.
    """

    memory: RoundMemory
    averages: Mapping[BundleId, BundleAverages]
    running: Mapping[BrokerId, Running] = field(default_factory=lambda: MappingProxyType({}))
    departed_at_s: Mapping[BrokerId, float] = field(default_factory=lambda: MappingProxyType({}))
    split_rests_s: Mapping[BundleId, float] = field(default_factory=lambda: MappingProxyType({}))
    joint: bytes = b""
    course: Sequence[BalancePoint] = ()


def encode_standby(state: Standby, most_bundles: int = DEFAULT_BUNDLES) -> bytes:
    """Return the state compressed, with the averages of the ``most_bundles`` heaviest."""
    heaviest = heapq.nlargest(
        most_bundles, state.averages.items(), key=lambda item: item[1].short.rates.bytes_per_s
    )
    return packed(_STANDBY.encode(replace(state, averages=dict(heaviest))))


def decode_standby(where: str, data: bytes) -> Standby:
    """Raises `MalformedContent`: it is not compressed JSON of that form."""
    return _STANDBY.read(Fields(where, unpacked_object(where, data, _LARGEST_UNPACKED_BYTES)))


def _sorted(
    bound: Bound | None = None,
    read: Callable[[Fields, str], Any] | None = None,
    parse: Callable[[str], Any] = parse_broker,
    write: Callable[[Any], Any] = lambda value: value,
) -> At:
    return At(
        bound=bound,
        read=read and (lambda fields, name: fields.mapped(name, parse, read)),
        write=lambda every: {name: write(one) for name, one in sorted(every.items())},
    )


def _bytes(fields: Fields, name: str) -> bytes:
    try:
        return b64decode(fields.text(name, ""), validate=True)
    except ValueError:
        fields.refuse(name, "bytes in base64")


def _running(running: Fields, name: str) -> Running:
    row = running.rates(name, bound=TOTAL)
    if len(row) != _RUNNING_ROW:
        running.refuse(name, f"{_RUNNING_ROW} numbers: start in ms, load, bytes per second")
    if not TIME_MS.holds(int(row[0])):
        running.refuse(name, f"first {TIME_MS.expected}")
    return Running(row[1], row[2], int(row[0]))


def _to_row(averages: BundleAverages) -> list[float]:
    rates = (*averages.short.rates.row(), *averages.long.rates.row())
    counts = (averages.short.samples, averages.long.samples, averages.topics)
    return [*counts, *(six_digits(rate) for rate in rates)]


def _from_row(averages: Fields, name: str) -> BundleAverages:
    row = averages.rates(name, bound=RATE)
    if len(row) != _ROW:
        averages.refuse(name, f"{_ROW} numbers: samples short and long, topics, eight rates")
    if not COUNT.holds(int(row[2])):
        averages.refuse(name, f"third {COUNT.expected}")
    short = Average(SHORT_SAMPLES, min(int(row[0]), SHORT_SAMPLES), Rates(*row[3:7]))
    long = Average(LONG_SAMPLES, min(int(row[1]), LONG_SAMPLES), Rates(*row[7:11]))
    return BundleAverages(short, long, int(row[2]))


_STANDBY: Final = Form(
    Standby,
    memory=ROUND_MEMORY.at(),
    averages=_sorted(read=_from_row, parse=parse_bundle, write=_to_row),
    running=_sorted(
        read=_running, write=lambda one: [one.started_at_ms, one.load, one.bytes_per_s]
    ),
    departed_at_s=_sorted(bound=TIME_S),
    split_rests_s=_sorted(bound=TIME_S),
    joint=At(read=_bytes, write=lambda joint: b64encode(joint).decode("ascii")),
    course=At(
        read=lambda fields, name: course_from_fields(fields.inner(name)), write=course_to_json
    ),
)

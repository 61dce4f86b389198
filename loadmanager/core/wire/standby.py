"""What a new leader needs to carry on: memories, recent moves, averages. Ours alone.

The JSON is compressed. Averages are those of the heaviest bundles, rounded to six
digits: a bundle that is missing starts with no sample, as a new one does.
"""

import heapq
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from loadmanager.core.averages import (
    LONG_SAMPLES,
    SHORT_SAMPLES,
    Average,
    BundleAverages,
    Rates,
)
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.ids import BundleId, parse_bundle
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.wire.fields import Fields, parse_object

DEFAULT_BUNDLES: Final = 5000
_LARGEST_BYTES: Final = 64 * 1024 * 1024
_ROW: Final = 11


@dataclass(frozen=True, slots=True)
class Standby:
    """The leader's state as its successor finds it."""

    memory: RoundMemory
    averages: Mapping[BundleId, BundleAverages]


def encode_standby(state: Standby, most_bundles: int = DEFAULT_BUNDLES) -> bytes:
    """Return the state compressed, with the averages of the ``most_bundles`` heaviest."""
    heaviest = heapq.nlargest(
        most_bundles, state.averages.items(), key=lambda item: item[1].short.rates.bytes_per_s
    )
    document = {
        "memory": state.memory.to_json(),
        "averages": {bundle: _to_row(averages) for bundle, averages in sorted(heaviest)},
    }
    return zlib.compress(json.dumps(document, separators=(",", ":"), allow_nan=False).encode())


def decode_standby(where: str, data: bytes) -> Standby:
    """Return the state in the node.

    Raises:
        MalformedContent: it is not compressed JSON of that form.
    """
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, _LARGEST_BYTES)
    except zlib.error:
        raise MalformedContent(where, f"{len(data)} bytes", "zlib-compressed JSON") from None
    if not unpacker.eof:
        raise MalformedContent(where, f"{len(data)} bytes", "a whole zlib stream up to 64 MiB")
    found = parse_object(where, text)
    averages = Fields(where, found).inner("averages")
    return Standby(
        RoundMemory.from_json(f"{where}: memory", found.get("memory", {})),
        {_name(where, name): _from_row(averages, name) for name in averages.names()},
    )


def _to_row(averages: BundleAverages) -> list[float]:
    rates = (*averages.short.rates.row(), *averages.long.rates.row())
    counts = (averages.short.samples, averages.long.samples, averages.topics)
    return [*counts, *(float(f"{rate:.6g}") for rate in rates)]


def _from_row(averages: Fields, name: str) -> BundleAverages:
    row = averages.rates(name)
    if len(row) != _ROW:
        averages.refuse(name, f"{_ROW} numbers: samples short and long, topics, eight rates")
    short = Average(SHORT_SAMPLES, min(int(row[0]), SHORT_SAMPLES), Rates(*row[3:7]))
    long = Average(LONG_SAMPLES, min(int(row[1]), LONG_SAMPLES), Rates(*row[7:11]))
    return BundleAverages(short, long, int(row[2]))


def _name(where: str, text: str) -> BundleId:
    try:
        return parse_bundle(text)
    except InvalidName as problem:
        raise MalformedContent(where, f"averages of {ascii(text)[:80]}", problem.expected) from None

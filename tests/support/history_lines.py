"""Files of history with exactly the lines that a test wants, and ways to spoil a line."""

import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from loadmanager.core.bounds import TIMES_END_MS
from loadmanager.core.history.files import FileName, hour_of, partition
from loadmanager.core.history.records import Origin, Record, encode, record_of
from loadmanager.core.history.schema import CUT, Stream
from loadmanager.core.ids import BrokerId, BundleId

NOON_MS: Final = 1_767_614_400_000
"""2026-01-05 12:00 UTC."""

BROKER: Final = BrokerId("b1:8080")
ORIGIN: Final = Origin("test", BROKER, "ab12")
BUNDLES: Final = (BundleId("t/n/0x00000000_0x80000000"), BundleId("t/n/0x80000000_0xffffffff"))


def report(
    seq: int, *, at_ms: int = NOON_MS, origin: Origin = ORIGIN, **changed: object
) -> dict[str, Any]:
    size = len(BUNDLES)
    return {
        "schema": 1,
        "kind": "report",
        "cluster": origin.cluster,
        "writer": origin.writer,
        "instance": origin.instance,
        "seq": seq,
        "at_ms": at_ms,
        "broker": origin.writer,
        "broker_class": "small",
        "started_at_ms": NOON_MS - 1000,
        "reported_at_ms": at_ms,
        "version": "1",
        "due": "age",
        "interval_s": 60.0,
        "window_s": 5,
        "draining": False,
        "healthy": True,
        "persistent_topics": True,
        "non_persistent_topics": True,
        **{
            f"{resource}_{part}": 1.5
            for resource in ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")
            for part in ("usage", "limit")
        },
        **dict.fromkeys(_TRAFFIC, 2.0),
        "topics": 2,
        "producers": 2,
        "consumers": 2,
        "bundles": {
            "bundle": list(BUNDLES),
            **{name: [0.1 * seq, 1] for name in _TRAFFIC},
            **{name: [1] * size for name in ("topics", "producers", "consumers", "cache_bytes")},
        },
        "gains": [],
        "losses": ["t/n/0x00000000_0xffffffff"],
        **changed,
    }


_TRAFFIC: Final = ("msgs_in_per_s", "msgs_out_per_s", "bytes_in_per_s", "bytes_out_per_s")


def cut(seq: int) -> bytes:
    record: Record = record_of(
        CUT,
        NOON_MS,
        epoch=1,
        action="split",
        whole=BundleId("t/n/0x00000000_0xffffffff"),
        parts=BUNDLES,
    )
    return encode(record, ORIGIN, seq)[:-1]


def line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def packed(lines: Iterable[bytes]) -> bytes:
    return b"".join(gzip.compress(one + b"\n", 1, mtime=0) for one in lines)


def put(
    top: Path,
    lines: Iterable[bytes] | bytes,
    *,
    first_seq: int = 1,
    at_ms: int = NOON_MS,
    stream: Stream = Stream.REPORTS,
    origin: Origin = ORIGIN,
    being_written: bool = False,
) -> str:
    name = FileName.of(stream, origin, first_seq)
    called = f"_{name}" if being_written else str(name)
    file = top / partition(hour_of(at_ms)) / called
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lines if isinstance(lines, bytes) else packed(lines))
    return str(file.relative_to(top))


Spoil = Callable[[dict[str, Any]], bytes]


def _with(*path: str, value: object) -> Spoil:
    def spoil(fields: dict[str, Any]) -> bytes:
        place = fields
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        if value is _ABSENT:
            del place[path[-1]]
        return line(fields)

    return spoil


_ABSENT: Final = object()
_without = partial(_with, value=_ABSENT)


def _replaced(before: bytes, after: bytes) -> Spoil:
    def spoil(fields: dict[str, Any]) -> bytes:
        assert before in line(fields)
        return line(fields).replace(before, after, 1)

    return spoil


SPOILT: Final[Mapping[str, Spoil]] = {
    "nothing": lambda _fields: b"",
    "no JSON": lambda _fields: b"hello",
    "no object": lambda _fields: b"[1,2]",
    "no UTF-8": lambda fields: line(fields).replace(b"small", b"\xff\xfe"),
    "half a line": lambda fields: line(fields)[:-40],
    "two lines in one": lambda fields: line(fields) * 2,
    "something behind": lambda fields: line(fields) + b"]",
    "brackets beyond measure": lambda _fields: b"[" * 100_000,
    "a later version": _with("schema", value=2),
    "an earlier version": _with("schema", value=0),
    "a version in a text": _with("schema", value="1"),
    "no version": _without("schema"),
    "another kind": _with("kind", value="gossip"),
    "no kind": _without("kind"),
    "no cluster": _without("cluster"),
    "a number for a text": _with("broker", value=8080),
    "a text for a number": _with("cpu_usage", value="1.5"),
    "a text for a flag": _with("healthy", value="true"),
    "a number for a flag": _with("healthy", value=1),
    "a flag for a number": _with("topics", value=True),
    "a fraction for a count": _with("topics", value=2.5),
    "a whole fraction for a count": _with("topics", value=2.0),
    "a negative count": _with("seq", value=-1),
    "a count beyond its bound": _with("seq", value=2**60 + 1),
    "a clock far ahead": _with("at_ms", value=2**63 - 1),
    "a clock of the year 2100": _with("at_ms", value=TIMES_END_MS),
    "a sample of the year 2100": _with("reported_at_ms", value=TIMES_END_MS),
    "a fraction for a time": _with("at_ms", value=1.5),
    "a negative rate": _with("msgs_in_per_s", value=-0.5),
    "a rate beyond 64 bits": _with("msgs_in_per_s", value=2**64),
    "a rate beyond its bound": _with("msgs_in_per_s", value=1.1e24),
    "NaN": _with("cpu_usage", value=float("nan")),
    "infinity": _with("cpu_usage", value=float("inf")),
    "a number too large": _replaced(b'"cpu_usage":1.5', b'"cpu_usage":1e999'),
    "null where none may be": _with("cpu_usage", value=None),
    "half of a character": _with("broker", value="\ud800"),
    "no lists": _without("bundles"),
    "null for lists": _with("bundles", value=None),
    "a list for lists": _with("bundles", value=[]),
    "a list is missing": _without("bundles", "topics"),
    "lists of different lengths": _with("bundles", "topics", value=[1]),
    "no list": _with("bundles", "topics", value=1),
    "a negative rate in a list": _with("bundles", "bytes_in_per_s", value=[1.0, -1.0]),
    "NaN in a list": _with("bundles", "bytes_in_per_s", value=[1.0, float("nan")]),
    "null in a list": _with("bundles", "topics", value=[1, None]),
    "a text in a list": _with("bundles", "topics", value=[1, "2"]),
    "a flag in a list": _with("bundles", "topics", value=[1, True]),
    "a fraction in a list of counts": _with("bundles", "topics", value=[1, 1.0]),
    "a number in a list of texts": _with("losses", value=["t/n/0x00000000_0xffffffff", 1]),
    "half of a character in a list": _with("losses", value=["\udc00"]),
}
"""Lines that are none, by what is wrong with them."""

UNUSUAL: Final[Mapping[str, Spoil]] = {
    "white space around": lambda fields: b"  " + line(fields) + b"\r",
    "white space within": lambda fields: json.dumps(fields, indent=None).encode(),
    "another order": lambda fields: line(dict(sorted(fields.items()))),
    "a field of a later version": _with("weather", value={"sun": [1, None, "\ud800", 1e300]}),
    "a field twice": _replaced(b'"topics":2', b'"topics":"x","topics":2'),
    "null where it may be": _with("interval_s", value=None),
    "whole numbers for rates": _with("cpu_usage", value=2**63 - 1),
    "a great rate": _with("cpu_usage", value=1e24),
    "minus nothing": _with("cpu_usage", value=-0.0),
    "the largest count": _with("topics", value=2**60),
    "great whole numbers in a list": _with("bundles", "bytes_in_per_s", value=[2**62 + 1, 0.5]),
    "great rates in a list": _with("bundles", "bytes_in_per_s", value=[1e24, 5e-324]),
    "no bundles": _with("bundles", value={name: [] for name in report(1)["bundles"]}),
    "letters of the world": _with("broker_class", value="größer 大 \N{PILE OF POO}"),
    "letters in a list": _with("bundles", "bundle", value=["ä/ö/ü", "大/小/x"]),
    "escapes": _with("broker_class", value='"\\\n\t\u2028'),
    "a clock of the last moment": _with("at_ms", value=TIMES_END_MS - 1),
    "a clock far behind": _with("at_ms", value=0),
}
"""Lines that look odd and are sound."""

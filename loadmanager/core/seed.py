"""Initial averages for a new leader, from the file that the rollup writes.

The file is gzip of JSON lines: a head, one line per bundle, and an end with their number, so
that an incomplete file is detected. Lines are read one by one, and only one hour of the weekly
profile is kept, so that a large file takes little memory.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average, BundleAverages
from loadmanager.core.bounds import HOUR_MS, RATE, TIME_MS
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import Fields, parse_fields, to_json
from loadmanager.core.ids import BundleId, Namespace, namespace_of, parse_bundle, range_of
from loadmanager.core.rates import Rates, six_digits

FORMAT: Final = 1
HOURS: Final = 168
MOST_BUNDLES: Final = 1_000_000
MOST_LINE_BYTES: Final = 16_384
_PIECE_BYTES: Final = 2**20
_GZIP: Final = 31
_THURSDAY_HOURS: Final = 72  # 1970-01-01 was a Thursday; weeks begin on Monday.


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedHead:
    cluster: str
    made_at_ms: int
    since_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleSeed:
    """Rates of one bundle in history.

    ``long`` is the leader's long-term average at the end of the history, over ``long_samples``
    samples. ``mean`` is the time-weighted mean over the whole history. ``hours`` are the message
    rates of each `hour_of_week` relative to the mean: 168 factors, None for an hour without
    history; empty without a profile.
    """

    bundle: BundleId
    long: Rates
    long_samples: int
    mean: Rates
    hours: tuple[float | None, ...] = ()
    topics: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    now: Rates
    long: Rates
    long_samples: int
    topics: int


@dataclass(frozen=True, slots=True)
class Seed:
    head: SeedHead
    bundles: Mapping[BundleId, Expected]


def hour_of_week(at_ms: int) -> int:
    """Return the hour of the week of a wall-clock time in UTC; 0 begins on Monday at midnight."""
    return (at_ms // HOUR_MS + _THURSDAY_HOURS) % HOURS


def encode_seed(head: SeedHead, bundles: Iterable[BundleSeed]) -> Iterator[bytes]:
    """Yield the pieces of a seed file.

    Numbers are rounded to six significant digits. Raises `MalformedContent`: `read_seed` would
    reject a line.
    """
    packer = zlib.compressobj(wbits=_GZIP)
    for piece in _pieces(_lines(head, bundles)):
        yield packer.compress(piece)
    yield packer.flush()


def fits_in_seed(one: BundleSeed) -> bool:
    try:
        _line_of(one)
    except MalformedContent:
        return False
    return True


def _lines(head: SeedHead, bundles: Iterable[BundleSeed]) -> Iterator[bytes]:
    yield to_json({"format": FORMAT, **asdict(head)})
    count = 0
    for one in bundles:
        yield _line_of(one)
        count += 1
    yield to_json({"bundles": count})


def _line_of(one: BundleSeed) -> bytes:
    try:
        line = to_json(_bundle_to_json(one))
    except ValueError:
        raise MalformedContent("seed", one.bundle, "finite numbers") from None
    _bundle_of(parse_fields("seed", line), 0)
    return line


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    piece = bytearray()
    for line in lines:
        piece += line + b"\n"
        if len(piece) >= _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def _bundle_to_json(one: BundleSeed) -> dict[str, Any]:
    return {
        "bundle": one.bundle,
        "long": [six_digits(rate) for rate in one.long.row()],
        "samples": one.long_samples,
        "mean": [six_digits(rate) for rate in one.mean.row()],
        "hours": [None if factor is None else six_digits(factor) for factor in one.hours],
        "topics": one.topics,
    }


def read_seed(where: str, lines: Iterable[bytes], hour: int) -> Seed:
    """Return the seed for an hour of the week from the unpacked lines of a seed file.

    Raises `MalformedContent`: with the line, the field, the found value and the expected one.
    """
    head: SeedHead | None = None
    found: dict[BundleId, Expected] = {}
    for number, line in enumerate(lines, start=1):
        place = f"{where}: line {number}"
        if len(line) > MOST_LINE_BYTES:
            raise MalformedContent(place, f"{len(line)} bytes", f"at most {MOST_LINE_BYTES}")
        fields = parse_fields(place, line)
        if head is None:
            head = _head(fields)
        elif "bundles" in fields.names():
            if fields.count("bundles") != len(found):
                fields.refuse("bundles", f"{len(found)}, the number of bundles before it")
            return Seed(head, found)
        else:
            bundle, expected = _bundle_of(fields, hour)
            found[bundle] = expected
            if len(found) > MOST_BUNDLES:
                raise MalformedContent(place, "one more bundle", f"at most {MOST_BUNDLES}")
    raise MalformedContent(where, f"the end after {len(found)} bundles", "a last line with a count")


def _head(fields: Fields) -> SeedHead:
    if fields.count("format", default=None) != FORMAT:
        fields.refuse("format", f"{FORMAT}, the only one this version knows")
    return SeedHead(
        cluster=fields.text("cluster"),
        made_at_ms=fields.count("made_at_ms", None, TIME_MS),
        since_ms=fields.count("since_ms", None, TIME_MS),
        until_ms=fields.count("until_ms", None, TIME_MS),
    )


def _bundle_of(fields: Fields, hour: int) -> tuple[BundleId, Expected]:
    bundle = fields.parsed("bundle", parse_bundle)
    samples = fields.count("samples", default=None)
    if not 0 < samples <= LONG_SAMPLES:
        fields.refuse("samples", f"from 1 to {LONG_SAMPLES}")
    mean, factor = _rates(fields, "mean"), _factor(fields, hour)
    # A report may not exceed this bound, and the successor receives this figure as an average.
    now = Rates(*(min(rate * factor, RATE.most) for rate in mean.row()))
    return bundle, Expected(now, _rates(fields, "long"), samples, fields.count("topics"))


def _rates(fields: Fields, name: str) -> Rates:
    rates = fields.rates(name)
    if len(rates) != 4:  # noqa: PLR2004 - messages, bytes, in, out
        fields.refuse(name, f"four numbers, each {RATE.expected}")
    return Rates(*rates)


def _factor(fields: Fields, hour: int) -> float:
    hours = fields.values().get("hours")
    if not isinstance(hours, list) or len(hours) not in {0, HOURS}:
        fields.refuse("hours", f"a list of {HOURS} factors, or an empty one")
    factor = hours[hour] if hours else None
    if factor is None:
        return 1.0
    if not RATE.holds(factor):
        fields.refuse("hours", f"factors, each {RATE.expected}, or null")
    return float(factor)


SEEDED_SHORT_SAMPLES: Final = 1
"""The profile of this hour has the weight of one report: first a half, then a third."""

SEEDED_LONG_SAMPLES: Final = 30
"""Of the 1,000 samples of a long-term average: with a sample every ten seconds, reports have the
same weight after five minutes, and nine times the weight after three quarters of an hour."""


def seeded(
    bundles: Mapping[BundleId, Expected], boundaries: Mapping[Namespace, Boundaries]
) -> dict[BundleId, BundleAverages]:
    """Return the assumed averages of every bundle that a seed covers.

    If the ``boundaries`` of a namespace have changed, each current bundle receives a share of
    every former bundle that it overlaps, in proportion to the width of the ranges, and none if
    its range is not fully covered. For a namespace without boundaries, which may be created
    later, the bundles are used unchanged.
    """
    found: dict[BundleId, BundleAverages] = {}
    cut: dict[Namespace, list[BundleId]] = {}
    for bundle, expected in bundles.items():
        now = boundaries.get(namespace_of(bundle))
        if now is None or now.at(range_of(bundle)[0]) == bundle:
            found[bundle] = _averages(expected)
        else:
            cut.setdefault(namespace_of(bundle), []).append(bundle)
    for namespace, former in cut.items():
        ranges = [(*range_of(one), bundles[one]) for one in former]
        for present in boundaries[namespace].bundles:
            expected_now = None if present in bundles else _overlapped(range_of(present), ranges)
            if expected_now is not None:
                found[present] = _averages(expected_now)
    return found


def _overlapped(
    present: tuple[int, int], ranges: Iterable[tuple[int, int, Expected]]
) -> Expected | None:
    lower, upper = present
    parts = []
    covered = 0
    for low, high, expected in ranges:
        width = min(upper, high) - max(lower, low)
        if width > 0:
            covered += width
            parts.append((width / (high - low), expected))
    if covered != upper - lower:
        return None
    return Expected(
        now=_sum((share, one.now) for share, one in parts),
        long=_sum((share, one.long) for share, one in parts),
        long_samples=min(one.long_samples for _, one in parts),
        topics=round(sum(share * one.topics for share, one in parts)),
    )


def _sum(parts: Iterable[tuple[float, Rates]]) -> Rates:
    weighted = [[share * rate for rate in rates.row()] for share, rates in parts]
    return Rates(*(sum(column) for column in zip(*weighted, strict=True)))


def _averages(expected: Expected) -> BundleAverages:
    long_samples = min(SEEDED_LONG_SAMPLES, expected.long_samples)
    return BundleAverages(
        Average(SHORT_SAMPLES, SEEDED_SHORT_SAMPLES, expected.now),
        Average(LONG_SAMPLES, long_samples, expected.long),
        expected.topics,
    )

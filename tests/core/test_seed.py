"""What a seed file says of bundles in an hour of the week, and which files are none."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId
from loadmanager.core.rates import Rates
from loadmanager.core.seed import (
    HOURS,
    MOST_LINE_BYTES,
    BundleSeed,
    SeedHead,
    encode_seed,
    fits_in_seed,
    hour_of_week,
    read_seed,
)

HEAD = SeedHead(cluster="standalone", made_at_ms=3, since_ms=1, until_ms=2)
BUSY_AT_NOON = tuple(
    2.0 if hour % 24 == 12 else None if hour % 24 == 13 else 0.5 for hour in range(HOURS)
)
ONE = BundleSeed(
    bundle=BundleId("t/n/0x00000000_0x80000000"),
    long=Rates(1.0, 2.0, 3.0, 4.0),
    long_samples=1000,
    mean=Rates(10.0, 20.0, 30.0, 40.0),
    hours=BUSY_AT_NOON,
    topics=7,
)
OTHER = replace(ONE, bundle=BundleId("t/n/0x80000000_0xffffffff"), hours=())


def lines_of(*bundles: BundleSeed) -> list[bytes]:
    return gzip.decompress(b"".join(encode_seed(HEAD, bundles))).splitlines()


def test_a_week_begins_on_monday_at_midnight() -> None:
    assert hour_of_week(1_781_481_600_000) == 0  # 2026-06-15T00:00:00Z, a Monday
    assert hour_of_week(1_781_481_600_000 - 1) == HOURS - 1
    assert hour_of_week(1_781_481_600_000 + 12 * 3_600_000) == 12


@pytest.mark.parametrize(("hour", "factor"), [(12, 2.0), (36, 2.0), (0, 0.5), (13, 1.0)])
def test_what_is_expected_now_is_the_mean_of_this_hour(hour: int, factor: float) -> None:
    seed = read_seed("seed", lines_of(ONE, OTHER), hour)
    assert seed.head == HEAD
    assert seed.bundles[ONE.bundle].now == Rates(*(rate * factor for rate in ONE.mean.row()))
    assert seed.bundles[ONE.bundle].long == ONE.long
    assert seed.bundles[ONE.bundle].long_samples == 1000
    assert seed.bundles[ONE.bundle].topics == 7
    assert seed.bundles[OTHER.bundle].now == OTHER.mean


def test_a_large_file_comes_in_pieces() -> None:
    def many() -> Iterator[BundleSeed]:
        for number in range(3_000):
            yield replace(ONE, bundle=BundleId(f"t/n{number}/0x00000000_0xffffffff"))

    pieces = list(encode_seed(HEAD, many()))
    assert len(pieces) > 2
    seed = read_seed("seed", gzip.decompress(b"".join(pieces)).splitlines(), 0)
    assert len(seed.bundles) == 3_000


@pytest.mark.parametrize("rate", [1.1e15, float("inf"), float("nan")])
def test_rates_beyond_all_measure_are_told_before_they_spoil_a_file(rate: float) -> None:
    unfit = replace(ONE, mean=replace(ONE.mean, bytes_in_per_s=rate))
    assert fits_in_seed(ONE)
    assert not fits_in_seed(unfit)
    with pytest.raises(MalformedContent):
        lines_of(unfit)


def test_half_a_file_is_known_for_one() -> None:
    with pytest.raises(MalformedContent, match="the end after 1 bundles"):
        read_seed("seed", lines_of(ONE, OTHER)[:2], 0)
    with pytest.raises(MalformedContent, match="bundles = 2; expected 1"):
        read_seed("seed", [*lines_of(ONE, OTHER)[:2], lines_of(ONE, OTHER)[-1]], 0)
    with pytest.raises(MalformedContent, match="the end after 0 bundles"):
        read_seed("seed", [], 0)
    packed = b"".join(encode_seed(HEAD, [ONE]))
    assert not zlib.decompressobj(wbits=31).decompress(packed[:-12]).endswith(b'{"bundles":1}\n')


Spoil = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("line", "spoil", "told"),
    [
        (1, lambda d: d.update(format=2), "line 1: format = 2; expected 1"),
        (1, lambda d: d.update(cluster=5), "line 1: cluster = 5"),
        (1, lambda d: d.pop("until_ms"), "line 1: until_ms is missing"),
        (2, lambda d: d.update(bundle="t/n"), "line 2: bundle = 't/n'"),
        (2, lambda d: d.update(samples=0), "line 2: samples = 0; expected from 1 to 1000"),
        (2, lambda d: d.update(samples=1001), "line 2: samples = 1001"),
        (2, lambda d: d.update(long=[1, 2, 3]), "line 2: long = [1, 2, 3]; expected four numbers"),
        (2, lambda d: d.update(mean=[1, 2, 3, 1e16]), "line 2: mean"),
        (2, lambda d: d.update(mean=[1, 2, 3, -1]), "line 2: mean.3 = -1"),
        (2, lambda d: d.update(hours=[1.0]), "line 2: hours = [1.0]; expected a list of 168"),
        (2, lambda d: d.update(hours=None), "line 2: hours = None"),
        (2, lambda d: d.update(hours=[-1.0] * HOURS), "number from 0 to 1e+15, or null"),
        (2, lambda d: d.update(hours=["1"] * HOURS), "number from 0 to 1e+15, or null"),
        (2, lambda d: d.update(more="x" * MOST_LINE_BYTES), "expected at most 16384"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(line: int, spoil: Spoil, told: str) -> None:
    lines = lines_of(ONE)
    found = json.loads(lines[line - 1])
    spoil(found)
    lines[line - 1] = json.dumps(found).encode()
    with pytest.raises(MalformedContent) as raised:
        read_seed("seed", lines, 0)
    assert told in str(raised.value)


def test_more_bundles_than_anybody_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.core.seed.MOST_BUNDLES", 1)
    with pytest.raises(MalformedContent, match="one more bundle; expected at most 1"):
        read_seed("seed", lines_of(ONE, OTHER), 0)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(ONE, mean=Rates(float("nan"), 0.0, 0.0, 0.0)),
        replace(ONE, long=Rates(-1.0, 0.0, 0.0, 0.0)),
        replace(ONE, hours=(1.0,)),
        replace(ONE, long_samples=0),
    ],
)
def test_nothing_is_written_that_would_not_be_read(wrong: BundleSeed) -> None:
    with pytest.raises(MalformedContent):
        list(encode_seed(HEAD, [wrong]))

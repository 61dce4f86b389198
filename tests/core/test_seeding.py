"""What a leader supposes of its bundles, from a seed of the bundles there were."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.bundles import Boundaries
from loadmanager.core.columns import Listing
from loadmanager.core.errors import MalformedContent
from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker
from loadmanager.core.rates import Rates
from loadmanager.core.seed import (
    HOURS,
    MOST_LINE_BYTES,
    SEEDED_LONG_SAMPLES,
    SEEDED_SHORT_SAMPLES,
    BundleSeed,
    Expected,
    SeedHead,
    encode_seed,
    fits_in_seed,
    hour_of_week,
    read_seed,
    seeded,
)

NS = Namespace("t/n")
HALVES, QUARTERS = Boundaries.even(NS, 2), Boundaries.even(NS, 4)


def expected(rate: float, samples: int = 1000, topics: int = 10) -> Expected:
    return Expected(Rates(rate, 0.0, 0.0, 0.0), Rates(rate / 2, 0.0, 0.0, 0.0), samples, topics)


FIRST, SECOND = HALVES.bundles
A, B, C, D = QUARTERS.bundles
OTHER_SPACE = Boundaries.even(Namespace("t/other"), 1)


@pytest.mark.parametrize(
    ("former", "now", "supposed"),
    [
        # What is supposed of each bundle: messages/s in, topics, samples of the long average.
        pytest.param({FIRST: expected(8.0)}, HALVES, {FIRST: (8.0, 10, 30)}, id="still there"),
        pytest.param(
            {FIRST: expected(8.0, samples=3)}, HALVES, {FIRST: (8.0, 10, 3)}, id="few samples"
        ),
        pytest.param(
            {FIRST: expected(8.0)}, OTHER_SPACE, {FIRST: (8.0, 10, 30)}, id="yet to be made"
        ),
        pytest.param(
            {FIRST: expected(8.0)}, QUARTERS, {A: (4.0, 5, 30), B: (4.0, 5, 30)}, id="split"
        ),
        pytest.param(
            {A: expected(1.0, samples=7), B: expected(2.0)} | {C: expected(4.0), D: expected(8.0)},
            HALVES,
            {FIRST: (3.0, 20, 7), SECOND: (12.0, 20, 30)},
            id="merged",
        ),
        pytest.param({A: expected(1.0)}, HALVES, {}, id="told of in part"),
        pytest.param(
            {FIRST: expected(8.0), A: expected(1.0)},
            QUARTERS,
            {A: (1.0, 10, 30), B: (4.0, 5, 30)},
            id="told of by itself and as a part",
        ),
    ],
)
def test_a_bundle_is_supposed_as_it_was_or_as_its_parts_or_its_whole_were(
    former: dict[BundleId, Expected],
    now: Boundaries,
    supposed: dict[BundleId, tuple[float, int, int]],
) -> None:
    found = seeded(former, {now.namespace: now})
    assert found.keys() == supposed.keys()
    for bundle, (msgs_per_s, topics, samples) in supposed.items():
        one = found[bundle]
        assert one.short.rates.row() == pytest.approx((msgs_per_s, 0.0, 0.0, 0.0))
        assert one.long.rates.row() == pytest.approx((msgs_per_s / 2, 0.0, 0.0, 0.0))
        assert (one.topics, one.long.samples) == (topics, samples)


def test_what_is_supposed_counts_little_beside_what_is_reported() -> None:
    (averages,) = seeded({HALVES.bundles[0]: expected(8.0)}, {}).values()
    assert (averages.short.samples, averages.long.samples) == (
        SEEDED_SHORT_SAMPLES,
        SEEDED_LONG_SAMPLES,
    )
    reported = BundleStats(msgs_in_per_s=100.0)
    assert averages.add(reported).short.rates.msgs_in_per_s == pytest.approx(54.0)
    for _ in range(SEEDED_LONG_SAMPLES):
        averages = averages.add(reported)
    assert averages.long.rates.msgs_in_per_s == pytest.approx(52.0)
    assert averages.short.rates.msgs_in_per_s > 90.0


bounds = st.sets(st.integers(1, FULL_RANGE_END - 1), max_size=6).map(
    lambda inner: Boundaries(NS, (0, *sorted(inner), FULL_RANGE_END))
)


@given(bounds, bounds)
def test_the_traffic_of_a_namespace_stays_the_same(former: Boundaries, now: Boundaries) -> None:
    told = {bundle: expected(8.0) for bundle in former.bundles}
    found = seeded(told, {NS: now})
    assert found.keys() == set(now.bundles)
    total = sum(one.short.rates.msgs_in_per_s for one in found.values())
    assert total == pytest.approx(8.0 * len(former.bundles))


def test_what_no_broker_ever_reports_is_forgotten() -> None:
    tracker = LoadTracker()
    tracker.suppose(seeded({HALVES.bundles[0]: expected(8.0)}, {}))
    for _ in range(360):
        tracker.sample()
    assert tracker.averages()
    tracker.sample()
    assert not tracker.averages()


def test_a_live_sample_and_what_was_inherited_are_never_overridden() -> None:
    live, inherited, new = Boundaries.even(NS, 3).bundles
    tracker = LoadTracker()
    settled = BundleAverages(
        Average(10, 10, Rates(9.0, 0, 0, 0)), Average(1000, 500, Rates(9.0, 0, 0, 0))
    )
    tracker.seed({inherited: settled})
    stats = {live: BundleStats(msgs_in_per_s=3.0), new: BundleStats(msgs_in_per_s=4.0)}
    tracker.put(BrokerLoad(broker=BrokerId("a:1"), listing=Listing.of({live: stats[live]})))
    tracker.sample()
    tracker.put(BrokerLoad(broker=BrokerId("a:1"), listing=Listing.of(stats)))
    supposed = seeded({one: expected(50.0) for one in (live, inherited, new)}, {})
    assert tracker.suppose(supposed) == 1
    averages = tracker.averages()
    assert averages[live].short.rates.msgs_in_per_s == 3.0
    assert averages[inherited] == settled
    assert averages[new].short.rates.msgs_in_per_s == 50.0


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

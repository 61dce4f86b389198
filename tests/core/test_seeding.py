"""What a leader supposes of its bundles, from a seed of the bundles there were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.bundles import Boundaries
from loadmanager.core.columns import Listing
from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker
from loadmanager.core.rates import Rates
from loadmanager.core.seed import SEEDED_LONG_SAMPLES, SEEDED_SHORT_SAMPLES, Expected, seeded

NS = Namespace("t/n")
HALVES, QUARTERS = Boundaries.even(NS, 2), Boundaries.even(NS, 4)


def expected(rate: float, samples: int = 1000, topics: int = 10) -> Expected:
    return Expected(Rates(rate, 0.0, 0.0, 0.0), Rates(rate / 2, 0.0, 0.0, 0.0), samples, topics)


def test_a_bundle_that_is_still_there_is_supposed_as_it_was() -> None:
    found = seeded({HALVES.bundles[0]: expected(8.0)}, {NS: HALVES})
    (averages,) = found.values()
    assert list(found) == [HALVES.bundles[0]]
    assert averages.short.rates == Rates(8.0, 0.0, 0.0, 0.0)
    assert averages.long.rates == Rates(4.0, 0.0, 0.0, 0.0)
    assert averages.topics == 10


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


def test_fewer_samples_in_history_count_as_fewer() -> None:
    (averages,) = seeded({HALVES.bundles[0]: expected(8.0, samples=3)}, {}).values()
    assert averages.long.samples == 3


def test_parts_of_a_bundle_that_was_split_get_their_width_of_it() -> None:
    found = seeded({HALVES.bundles[0]: expected(8.0)}, {NS: QUARTERS})
    assert sorted(found) == sorted(QUARTERS.bundles[:2])
    assert all(one.short.rates.msgs_in_per_s == pytest.approx(4.0) for one in found.values())
    assert [one.topics for one in found.values()] == [5, 5]


def test_a_bundle_that_was_merged_gets_all_of_its_parts() -> None:
    former = dict(zip(QUARTERS.bundles, map(expected, (1.0, 2.0, 4.0, 8.0)), strict=True))
    former[QUARTERS.bundles[0]] = expected(1.0, samples=7)
    found = seeded(former, {NS: HALVES})
    assert [found[one].short.rates.msgs_in_per_s for one in HALVES.bundles] == pytest.approx(
        [3.0, 12.0]
    )
    assert found[HALVES.bundles[0]].long.samples == 7


def test_what_is_told_of_in_part_is_not_supposed_at_all() -> None:
    assert seeded({QUARTERS.bundles[0]: expected(1.0)}, {NS: HALVES}) == {}


def test_a_bundle_that_is_told_of_by_itself_is_not_computed_from_others() -> None:
    both = {HALVES.bundles[0]: expected(8.0), QUARTERS.bundles[0]: expected(1.0)}
    found = seeded(both, {NS: QUARTERS})
    assert found[QUARTERS.bundles[0]].short.rates.msgs_in_per_s == 1.0
    assert found[QUARTERS.bundles[1]].short.rates.msgs_in_per_s == pytest.approx(4.0)


def test_bundles_of_a_namespace_yet_to_be_made_are_supposed_as_they_were() -> None:
    other = Boundaries.even(Namespace("t/other"), 1)
    found = seeded({HALVES.bundles[0]: expected(8.0)}, {other.namespace: other})
    assert list(found) == [HALVES.bundles[0]]


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

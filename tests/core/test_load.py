"""What a leader's load tracker is given: averages, usage, reports, shares of traffic and scores."""

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_view import bundle, make_view

from loadmanager.core.averages import (
    DEFAULT_RATES,
    Average,
    BundleAverages,
    supposed_of,
)
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import (
    BrokerUrls,
    BundleStats,
    HostUsage,
    LoadReport,
    ResourceUsage,
    registration_of,
    with_registration,
)
from loadmanager.core.projection import TrafficShare
from loadmanager.core.rates import Rates
from loadmanager.core.report import MOST_SAMPLES, Due, Published, ReportRules, UsageSamples, due
from loadmanager.core.scores import (
    ResourceWeights,
    max_usage,
    percent_usage,
    report_usage,
    weighted_max_usage,
    weighted_max_with_memory,
)


def test_a_fraction_needs_a_limit_and_is_not_clipped() -> None:
    usages = ResourceUsage(5.0, 0.0), ResourceUsage(5.0, -1.0), ResourceUsage(250.0, 200.0)
    assert [one.fraction for one in usages] == [None, None, 1.25]


def test_the_traffic_of_a_topic_counts_both_ways() -> None:
    topic = Rates(msgs_in_per_s=1.0, msgs_out_per_s=2.0, bytes_in_per_s=3.0, bytes_out_per_s=4.0)
    assert (topic.msgs_per_s, topic.bytes_per_s) == (3.0, 7.0)


def test_rates_are_rounded_to_six_digits_and_counts_are_not() -> None:
    counts = (1_234_567, 2_345_678, 3_456_789, 4_567_891)
    one = BundleStats(1 / 3, 1_234_567.0, 1.5, 1e-9 / 3, *counts)
    assert one.rounded() == BundleStats(0.333333, 1_234_570.0, 1.5, 3.33333e-10, *counts)


REPORT = LoadReport(
    broker=BrokerId("a:1"),
    urls=BrokerUrls(http_url="http://a:1"),
    sidecar_url="http://a:2",
    reported_at_ms=7,
    started_at_ms=0,
    bundles=dict.fromkeys(map(BundleId, ("t/n/a", "t/n/b")), BundleStats(1.0, 2.0, 3.0, 4.0, 5)),
)


def test_totals_of_a_report_are_those_of_its_bundles() -> None:
    one = REPORT.bundles[BundleId("t/n/a")]
    assert (one.msgs_per_s, one.bytes_per_s) == (3.0, 7.0)
    assert (REPORT.totals, REPORT.topics) == (Rates(2.0, 4.0, 6.0, 8.0), 10)


def test_loads_stay_when_a_report_is_given_another_registration() -> None:
    draining = replace(registration_of(REPORT), draining=True)
    assert with_registration(REPORT, draining) == replace(REPORT, draining=True)
    cordoned = replace(REPORT, persistent_topics=False)
    assert (REPORT.takes, draining.takes, cordoned.takes) == (True, False, False)


amounts = st.floats(0, 1e9)
rates = st.builds(Rates, amounts, amounts, amounts, amounts)


@given(st.lists(rates, min_size=1, max_size=10))
def test_up_to_its_maximum_an_average_is_the_mean(samples: list[Rates]) -> None:
    average = Average(10, 0, DEFAULT_RATES)
    for sample in samples:
        average = average.add(sample)
    mean = sum(sample.msgs_in_per_s for sample in samples) / len(samples)
    assert average.samples == len(samples)
    assert math.isclose(average.rates.msgs_in_per_s, mean, rel_tol=1e-9, abs_tol=1e-6)


def test_a_part_and_a_whole_are_supposed_to_have_their_share_until_they_are_measured() -> None:
    def averages(samples: int, factor: float, topics: int) -> BundleAverages:
        short, long = (Rates(*(factor * n * part for n in range(1, 5))) for part in (1.0, 2.0))
        return BundleAverages(Average(10, samples, short), Average(1000, samples, long), topics)

    assert supposed_of([averages(9, 4.0, 6)], 0.25) == averages(1, 1.0, 2)
    assert supposed_of([averages(0, 4.0, 6)], 0.5) == averages(0, 2.0, 3)
    assert supposed_of([averages(9, 1.0, 2), averages(5, 3.0, 3)]) == averages(1, 4.0, 5)
    assert supposed_of([averages(9, 1.0, 2), averages(0, 3.0, 3)]).short.samples == 0


A, B = BundleId("t/n/0x00000010_0x00000020"), BundleId("t/n/0x00000020_0x00000030")


def sample(cpu: float | None, limit: float = 400.0) -> HostUsage:
    """Return a sample of a host with so much CPU used, None for a resource without a rate."""
    used = None if cpu is None else ResourceUsage(cpu, limit)
    return HostUsage(window_s=5.0, cpu=used, memory=ResourceUsage(3.0, 9.0))


def after(samples: Iterable[HostUsage]) -> UsageSamples:
    found = UsageSamples()
    for one in samples:
        found = found.after(one, {A})
    return found


def test_mean_and_variance_are_those_of_the_samples() -> None:
    last = after(sample(cpu) for cpu in (100.0, 200.0, 150.0)).last()
    assert last.cpu == ResourceUsage(150.0, 400.0, mean=150.0, variance=2500.0)
    assert last.memory == ResourceUsage(3.0, 9.0, mean=3.0, variance=0.0)
    assert (last.bandwidth_in, last.window_s) == (None, 5.0)


@pytest.mark.parametrize(
    ("samples", "cpu"),
    [
        pytest.param(
            [sample(1.0), sample(2.0), sample(5.0)],
            ResourceUsage(5.0, 400.0, mean=2.66667, variance=4.33333),
            id="six digits, as rates have",
        ),
        pytest.param([sample(None)], None, id="no rate"),
        pytest.param([sample(None), sample(7.0)], ResourceUsage(7.0, 400.0), id="a single one"),
        pytest.param(
            [sample(900.0), *[sample(100.0)] * MOST_SAMPLES],
            ResourceUsage(100.0, 400.0, mean=100.0, variance=0.0),
            id="only the last count",
        ),
        pytest.param(
            [sample(100.0), sample(100.0), sample(300.0, 800.0), sample(302.0, 800.0)],
            ResourceUsage(302.0, 800.0, mean=301.0, variance=2.0),
            id="those of another limit do not count",
        ),
    ],
)
def test_usage_after(samples: list[HostUsage], cpu: ResourceUsage | None) -> None:
    assert after(samples).last().cpu == cpu


@pytest.mark.parametrize("bundles", [{A, B}, set()])
def test_samples_begin_anew_when_a_bundle_comes_or_goes(bundles: set[BundleId]) -> None:
    moved = after([sample(100.0), sample(110.0)]).after(sample(300.0), bundles)
    assert moved.last().cpu == ResourceUsage(300.0, 400.0)
    again = moved.after(sample(310.0), bundles).last()
    assert again.cpu == ResourceUsage(310.0, 400.0, mean=305.0, variance=50.0)


BUNDLE = BundleId("t/n/0x00000000_0xffffffff")
RULES = ReportRules()

FIRST_REPORT = replace(
    REPORT,
    reported_at_ms=0,
    cpu=ResourceUsage(400.0, 800.0),
    memory=ResourceUsage(20.0, 100.0),
    bandwidth_out=ResourceUsage(150.0, 1000.0),
    bundles={BUNDLE: BundleStats(msgs_in_per_s=1000.0, bytes_in_per_s=1e6)},
)

LAST = Published(FIRST_REPORT, 100.0)


def carrying(msgs: float, size: float) -> LoadReport:
    return replace(
        FIRST_REPORT, bundles={BUNDLE: BundleStats(msgs_in_per_s=msgs, bytes_in_per_s=size)}
    )


def test_a_first_report_a_forced_one_and_a_drain_are_told_at_once() -> None:
    assert due(RULES, None, FIRST_REPORT, 0.0, 0.0) is Due.FIRST
    assert due(RULES, LAST, FIRST_REPORT, 100.0, 0.0, forced=True) is Due.FORCED
    assert due(RULES, LAST, replace(FIRST_REPORT, draining=True), 100.1, 0.0) is Due.REGISTRATION


@pytest.mark.parametrize(
    ("current", "reason"),
    [
        (FIRST_REPORT, None),
        (replace(FIRST_REPORT, bundles={}), Due.BUNDLES),
        (replace(FIRST_REPORT, cpu=ResourceUsage(560.0, 800.0)), Due.USAGE),
        (replace(FIRST_REPORT, bandwidth_in=ResourceUsage(0.0, 1e6)), Due.USAGE),
        (replace(FIRST_REPORT, cpu=None), Due.USAGE),
        (replace(FIRST_REPORT, cpu=ResourceUsage(470.0, 800.0)), None),
        (replace(FIRST_REPORT, bandwidth_out=ResourceUsage(260.0, 1000.0)), Due.USAGE),
        (replace(FIRST_REPORT, bandwidth_out=ResourceUsage(240.0, 1000.0)), None),
        (replace(FIRST_REPORT, memory=ResourceUsage(35.0, 100.0)), Due.USAGE),
        (replace(FIRST_REPORT, memory=ResourceUsage(25.0, 100.0)), None),
        (carrying(1101.0, 1e6), Due.MSG_RATE),
        (carrying(1100.0, 1e6), None),
        (carrying(1000.0, 1.2e6), Due.THROUGHPUT),
    ],
)
def test_a_change_is_due_after_the_shortest_time(current: LoadReport, reason: Due | None) -> None:
    assert due(RULES, LAST, current, 104.9, 0.0) is None
    assert due(RULES, LAST, current, 105.0, 0.0) is reason


def test_an_idle_broker_whose_trickle_multiplies_stays_silent() -> None:
    last = Published(carrying(0.1, 50.0), 0.0)
    assert due(RULES, last, carrying(33.0, 16_000.0), 30.0, 0.0) is None


@given(st.floats(0.0, 1.0), st.floats(0.0, 200.0))
def test_an_unchanged_report_is_renewed_within_its_longest_time(jitter: float, age: float) -> None:
    reason = due(RULES, LAST, FIRST_REPORT, 100.0 + age, jitter)
    assert reason in {None, Due.AGE}
    if age >= 60.0 + 1e-6:
        assert reason is Due.AGE
    if age < 48.0 - 1e-6:
        assert reason is None


@pytest.mark.parametrize(
    ("brokers", "number", "source", "cpu"),
    [
        pytest.param(({1: 100.0}, {2: 100.0}), 1, None, 400.0, id="orphaned: of the whole cluster"),
        pytest.param(
            ({1: 100.0, 2: 5.0}, {3: 100.0, 4: 7.0}), 9, None, 200.0, id="never measured: the mean"
        ),
        # The smallest traffic there is overflows no share.
        pytest.param(({1: 1e15}, {2: 5e-324}), 1, "b:1", 400.0, id="beside next to nothing"),
        pytest.param(({1: 0.0}, {}), 1, "a:1", 0.0, id="idle"),
    ],
)
def test_a_bundle_costs_its_share_of_the_traffic(
    brokers: tuple[dict[int, float], ...], number: int, source: str | None, cpu: float
) -> None:
    view = make_view({f"{name}:1": (0.5, sizes) for name, sizes in zip("ab", brokers, strict=True)})
    with np.errstate(all="raise"):
        of = BrokerId(source) if source else None
        usage = TrafficShare().usage(view, bundle(number), of)
    assert usage.tolist() == [cpu, 0.0, 0.0, 0.0, 0.0]
    assert not TrafficShare().usage(make_view({"a:1": (0.0, {})}), bundle(9), None).any()


rows = st.lists(st.floats(-10, 1e9), min_size=5, max_size=5).map(np.array)


@given(rows.map(np.abs), rows)
def test_a_percentage_is_that_of_32_bit_division(usage: np.ndarray, limit: np.ndarray) -> None:
    got = percent_usage(usage, limit)
    for used, most, percent in zip(usage, limit, got, strict=True):
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            want = np.float32(used) / np.float32(most) * np.float32(100) if most > 0 else 0.0
        assert percent == want or (np.isnan(percent) and np.isnan(want))


def test_heap_counts_only_in_the_extensible_score() -> None:
    usage, limit = np.array([10.0, 99.0, 20.0, 30.0, 40.0]), np.full(5, 100.0)
    weights = ResourceWeights(memory=1.0, direct_memory=1.0)
    assert float(max_usage(usage, limit)) == np.float32(0.4)
    assert float(weighted_max_usage(usage, limit, weights)) == float(np.float32(0.4) * 100) / 100
    assert float(weighted_max_with_memory(usage, limit, weights)) == 0.99


def test_without_weights_nothing_counts() -> None:
    none = ResourceWeights(cpu=0.0, bandwidth_in=0.0, bandwidth_out=0.0)
    assert float(weighted_max_usage(np.full(5, 90.0), np.full(5, 100.0), none)) == 0.0


def test_an_unknown_resource_is_nothing_of_nothing() -> None:
    report = replace(REPORT, memory=ResourceUsage(1.0, 2.0))
    usages, limits = report_usage(report)
    assert (usages, limits) == ([0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0, 0.0])

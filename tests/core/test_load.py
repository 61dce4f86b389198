from dataclasses import replace

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import (
    BrokerUrls,
    BundleStats,
    LoadReport,
    ResourceUsage,
    registration_of,
    with_registration,
)
from loadmanager.core.rates import Rates


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

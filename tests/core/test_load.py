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


def test_a_resource_without_a_limit_has_no_fraction() -> None:
    assert ResourceUsage(5.0, 0.0).fraction is None
    assert ResourceUsage(5.0, -1.0).fraction is None


def test_overload_is_not_clipped() -> None:
    assert ResourceUsage(250.0, 200.0).fraction == 1.25


def test_the_traffic_of_a_topic_counts_both_ways() -> None:
    topic = Rates(msgs_in_per_s=1.0, msgs_out_per_s=2.0, bytes_in_per_s=3.0, bytes_out_per_s=4.0)
    assert (topic.msgs_per_s, topic.bytes_per_s) == (3.0, 7.0)


def test_rates_are_rounded_to_six_digits_and_counts_are_not() -> None:
    one = BundleStats(
        msgs_in_per_s=1 / 3,
        msgs_out_per_s=1_234_567.0,
        bytes_in_per_s=1.5,
        bytes_out_per_s=1e-9 / 3,
        topics=1_234_567,
        producers=2_345_678,
        consumers=3_456_789,
        cache_size_bytes=4_567_891,
    )
    assert one.rounded() == BundleStats(
        msgs_in_per_s=0.333333,
        msgs_out_per_s=1_234_570.0,
        bytes_in_per_s=1.5,
        bytes_out_per_s=3.33333e-10,
        topics=1_234_567,
        producers=2_345_678,
        consumers=3_456_789,
        cache_size_bytes=4_567_891,
    )


def test_totals_of_a_report_are_those_of_its_bundles() -> None:
    one = BundleStats(
        msgs_in_per_s=1.0, msgs_out_per_s=2.0, bytes_in_per_s=3.0, bytes_out_per_s=4.0, topics=5
    )
    report = LoadReport(
        broker=BrokerId("a:1"),
        urls=BrokerUrls(http_url="http://a:1"),
        sidecar_url="http://a:2",
        reported_at_ms=0,
        started_at_ms=0,
        bundles={BundleId("t/n/a"): one, BundleId("t/n/b"): one},
    )
    assert (one.msgs_per_s, one.bytes_per_s) == (3.0, 7.0)
    assert (report.totals, report.topics) == (Rates(2.0, 4.0, 6.0, 8.0), 10)


def test_loads_stay_when_a_report_is_given_another_registration() -> None:
    report = LoadReport(
        broker=BrokerId("a:1"),
        urls=BrokerUrls(http_url="http://a:1"),
        sidecar_url="http://a:2",
        reported_at_ms=7,
        started_at_ms=0,
        bundles={BundleId("t/n/a"): BundleStats(topics=5)},
    )
    draining = replace(registration_of(report), draining=True)
    assert with_registration(report, draining) == replace(report, draining=True)

"""What a report counts for, minute by minute: small numbers, worked out by hand."""

from typing import TYPE_CHECKING, Any

import pytest
from load_rows import FIRST, NOON_MS, SECOND, report, reports, sample, samples
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.pipeline.rollup.minutes import (
    broker_minutes,
    broker_slices,
    bundle_minutes,
    bundle_slices,
    namespace_minutes,
)
from loadmanager.pipeline.rollup.rollup_tables import (
    BROKER_MINUTES,
    BUNDLE_MINUTES,
    NAMESPACE_MINUTES,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Row = dict[str, Any]

WHOLE = "t/n/0x00000000_0xffffffff"
OTHER = "t/m/0x00000000_0xffffffff"

# Each case is a cluster of its own, so that one job of Spark computes all of them: the reports, and
# for minutes since noon seconds, mean and highest.
Minutes = dict[int, list[float]]
CASES: dict[str, tuple[list[Row], Minutes]] = {
    # 10 s at 60 and 50 s at 120: (600 + 6000) / 60.
    "weighted by time": (
        [sample(10, 60.0, interval_s=10.0), sample(60, 120.0, interval_s=50.0)],
        {0: [60.0, 110.0, 120.0]},
    ),
    # From 0:45 to 2:15.
    "shared out over minutes": (
        [sample(135, 8.0, interval_s=90.0)],
        {0: [15.0, 8.0, 8.0], 1: [60.0, 8.0, 8.0], 2: [15.0, 8.0, 8.0]},
    ),
    "the first of a registration": (
        [sample(30, 8.0, interval_s=None, window_s=5.0)],
        {0: [5.0, 8.0, 8.0]},
    ),
    "nothing known": (
        [sample(30, 8.0, interval_s=None, window_s=None)],
        {0: [1.0, 8.0, 8.0]},
    ),
    "two at once": (
        [sample(30, 8.0, interval_s=30.0), sample(30, 9.0, interval_s=0.0)],
        {0: [30.001, 8.0 + 0.001 / 30.001, 9.0]},
    ),
    "at most five minutes after a silence": (
        [sample(3600, 8.0, interval_s=3600.0)],
        {minute: [60.0, 8.0, 8.0] for minute in range(55, 60)},
    ),
    # Ten seconds by the monotonic clock, an hour by the wall clock.
    "a clock that jumps forward": (
        [sample(10, 8.0), sample(3620, 8.0)],
        {0: [10.0, 8.0, 8.0], 60: [10.0, 8.0, 8.0]},
    ),
    "a clock that is set back": (
        [sample(60, 10.0, interval_s=60.0), sample(60.001, 30.0, interval_s=60.0)],
        {0: [60.0, 20.0, 30.0], 1: [0.001, 30.0, 30.0]},
    ),
    "two brokers": (
        [
            sample(60, rate, interval_s=60.0, broker=name)
            for name, rate in (("a", 10.0), ("b", 40.0))
        ],
        {0: [60.0, 25.0, 40.0]},
    ),
    "a clock that shows nonsense": (
        [sample(0, 8.0, at_ms=at_ms, interval_s=60.0) for at_ms in (0, 1)],
        {-NOON_MS // 60_000: [0.001, 8.0, 8.0]},
    ),
    # Of both halves together it is the traffic of the whole.
    "split": (
        [
            sample(30, 30.0, interval_s=30.0, bundle=WHOLE),
            sample(60, 10.0, interval_s=30.0, bundle=FIRST),
            sample(60, 20.0, interval_s=30.0, bundle=SECOND),
        ],
        {0: [30.0, 10.0, 10.0]},
    ),
    "namespaces": (
        [
            sample(60, 10.0, interval_s=60.0),
            sample(60, 40.0, interval_s=30.0, bundle=SECOND),
            sample(60, 7.0, interval_s=60.0, bundle=OTHER),
        ],
        {0: [60.0, 10.0, 10.0]},
    ),
}


@pytest.fixture(scope="module")
def bundles(spark: "SparkSession") -> "DataFrame":
    rows = [row | {"cluster": case} for case, (every, _) in CASES.items() for row in every]
    made = bundle_minutes(bundle_slices(samples(spark, rows)))
    return BUNDLE_MINUTES.conform(made).localCheckpoint()


def test_a_report_counts_for_the_minutes_that_it_stands_for(bundles: "DataFrame") -> None:
    found: dict[str, Minutes] = {case: {} for case in CASES}
    for row in bundles.where(F.col("bundle") == FIRST).collect():
        minute = round((row["minute"].timestamp() * 1000 - NOON_MS) / 60_000)
        names = ("seconds", "msgs_in_per_s_mean", "msgs_in_per_s_max")
        found[row["cluster"]][minute] = [row[name] for name in names]
    for case, (_, expected) in CASES.items():
        assert found[case].keys() == expected.keys(), case
        for minute, figures in expected.items():
            assert found[case][minute] == pytest.approx(figures, rel=1e-4), case


def test_a_minute_has_all_rates_and_says_whose_it_is(bundles: "DataFrame") -> None:
    (row,) = bundles.where(F.col("cluster") == "weighted by time").collect()
    assert (row["reports"], row["namespace"], str(row["date"])) == (2, "t/n", "2026-01-05")
    assert row["msgs_out_per_s_mean"] == pytest.approx(220.0)
    assert row["bytes_out_per_s_mean"] == pytest.approx(22_000.0)


def test_the_minute_of_a_split_has_the_traffic_of_the_whole(bundles: "DataFrame") -> None:
    rows = bundles.where(F.col("cluster") == "split").collect()
    counted = sum(row["msgs_in_per_s_mean"] * row["seconds"] for row in rows)
    assert counted == pytest.approx(30.0 * 60.0)


def test_a_namespace_has_the_traffic_of_its_bundles(bundles: "DataFrame") -> None:
    # One for the whole minute, one for a half: 10 + 40 / 2.
    made = namespace_minutes(bundles.where(F.col("cluster") == "namespaces"))
    found = {row["namespace"]: row for row in NAMESPACE_MINUTES.conform(made).collect()}
    assert found["t/n"]["msgs_in_per_s_mean"] == pytest.approx(30.0)
    assert (found["t/n"]["seconds"], found["t/n"]["bundles"]) == (60.0, 2)
    assert found["t/m"]["msgs_in_per_s_mean"] == pytest.approx(7.0)


BROKERS: dict[str, list[Row]] = {
    "six": [report(10 * place, float(place), cpu=place / 10) for place in range(1, 7)],
    "unmeasured": [
        report(30, 1.0, cpu=None, interval_s=30.0),
        report(60, 1.0, cpu=0.5, interval_s=30.0),
    ],
}


@pytest.fixture(scope="module")
def brokers(spark: "SparkSession") -> "DataFrame":
    rows = [row | {"cluster": case} for case, every in BROKERS.items() for row in every]
    made = broker_minutes(broker_slices(reports(spark, rows)))
    return BROKER_MINUTES.conform(made).localCheckpoint()


def test_a_brokers_minute_has_percentiles_over_its_reports(brokers: "DataFrame") -> None:
    (row,) = brokers.where(F.col("cluster") == "six").collect()
    assert row["msgs_in_per_s_mean"] == pytest.approx(3.5)
    assert (row["msgs_in_per_s_p50"], row["msgs_in_per_s_p95"]) == (3.0, 6.0)
    assert (row["msgs_in_per_s_p99"], row["msgs_in_per_s_max"]) == (6.0, 6.0)
    assert row["cpu_fraction_mean"] == pytest.approx(0.35)
    assert (row["cpu_fraction_p50"], row["cpu_fraction_max"]) == (0.3, 0.6)
    assert row["cpu_usage_mean"] == pytest.approx(140.0)
    assert (row["cpu_limit"], row["topics_mean"], row["reports"]) == (400.0, 3.0, 6)


def test_what_was_not_measured_is_null_and_counts_for_no_mean(brokers: "DataFrame") -> None:
    (row,) = brokers.where(F.col("cluster") == "unmeasured").collect()
    assert (row["cpu_fraction_mean"], row["memory_fraction_mean"]) == (0.5, None)
    assert (row["memory_fraction_p95"], row["memory_fraction_max"]) == (None, None)
    assert (row["cpu_usage_mean"], row["memory_usage_mean"]) == (200.0, None)

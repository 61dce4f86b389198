"""Hours, days, imbalance, profiles and rankings, worked out by hand."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from load_rows import FIRST, NOON_MS, SECOND, report, reports, sample, samples, table_of
from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.core.ids import BundleId
from loadmanager.core.rates import Rates
from loadmanager.core.seed import BundleSeed
from loadmanager.pipeline.rollup.frames import days, hours, longer
from loadmanager.pipeline.rollup.imbalance import cluster_minutes
from loadmanager.pipeline.rollup.measures import RATES
from loadmanager.pipeline.rollup.minutes import (
    broker_minutes,
    broker_slices,
    bundle_minutes,
    bundle_slices,
    namespace_minutes,
)
from loadmanager.pipeline.rollup.profiles import bundle_profiles, bundle_ranking
from loadmanager.pipeline.rollup.rollup_tables import (
    AVERAGES,
    BUNDLE_DAYS,
    BUNDLE_HOURS,
    BUNDLE_PROFILES,
    BUNDLE_RANKING,
    CLUSTER_MINUTES,
    NAMESPACE_HOURS,
)
from loadmanager.pipeline.rollup.seed_file import bundle_seeds, seeds_of
from loadmanager.pipeline.tables import ROUNDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Row = dict[str, Any]
KEYS = ("cluster", "bundle", "namespace")
WEEK_S = 7 * 86_400.0


@pytest.fixture(scope="module")
def minutes(spark: "SparkSession") -> "DataFrame":
    """Return minutes: twenty of the first bundle from noon on, with rates 1 to 20, and more.

    The tenth has ten seconds, the others sixty. A week later the bundle has one minute at 100.
    The second bundle has 200 in and 400 out in one minute.
    """
    rows = [
        sample(60.0 * place, float(place), interval_s=10.0 if place == 10 else 60.0)
        for place in range(1, 21)
    ]
    rows += [
        sample(WEEK_S + 60.0, 100.0, interval_s=60.0),
        sample(60.0, 200.0, interval_s=60.0, bundle=SECOND),
    ]
    return bundle_minutes(bundle_slices(samples(spark, rows))).localCheckpoint()


@pytest.fixture(scope="module")
def hourly(minutes: "DataFrame") -> "DataFrame":
    return BUNDLE_HOURS.conform(hours(longer(minutes, KEYS, RATES))).localCheckpoint()


@pytest.fixture(scope="module")
def daily(minutes: "DataFrame") -> "DataFrame":
    return BUNDLE_DAYS.conform(days(longer(minutes, KEYS, RATES))).localCheckpoint()


def first_of(frame: "DataFrame") -> Row:
    rows = frame.where(F.col("bundle") == FIRST).orderBy("date").collect()
    return rows[0].asDict()


def test_an_hour_has_the_mean_of_its_minutes_by_their_seconds(hourly: "DataFrame") -> None:
    row = first_of(hourly)
    seconds = 19 * 60.0 + 10.0
    assert (row["seconds"], row["minutes"]) == (seconds, 20)
    assert row["hour"].timestamp() * 1000 == NOON_MS
    mean = ((sum(range(1, 21)) - 10) * 60.0 + 10 * 10.0) / seconds
    assert row["msgs_in_per_s_mean"] == pytest.approx(mean)
    # Of twenty minutes: the 10th, 19th and 20th by size.
    assert row["msgs_in_per_s_p50"] == 10.0
    assert row["msgs_in_per_s_p95"] == 19.0
    assert (row["msgs_in_per_s_p99"], row["msgs_in_per_s_max"]) == (20.0, 20.0)
    assert row["bytes_out_per_s_p50"] == 2000.0


def test_hours_of_a_namespace_are_over_the_minutes_of_all_its_bundles(minutes: "DataFrame") -> None:
    made = hours(longer(namespace_minutes(minutes), ("cluster", "namespace"), RATES))
    row = NAMESPACE_HOURS.conform(made).orderBy("date").collect()[0]
    # The first minute has 1 + 200, the others 2 to 20.
    assert row["msgs_in_per_s_max"] == 201.0
    assert row["msgs_in_per_s_p50"] == 11.0


def test_an_hour_of_the_week_is_the_mean_over_all_weeks(hourly: "DataFrame") -> None:
    made = BUNDLE_PROFILES.conform(bundle_profiles(hourly)).where(F.col("bundle") == FIRST)
    (row,) = made.collect()
    assert (row["hour_of_week"], row["weeks"]) == (12, 2)
    hour = first_of(hourly)
    counted = hour["msgs_in_per_s_mean"] * hour["seconds"] + 100.0 * 60.0
    assert row["msgs_in_per_s_mean"] == pytest.approx(counted / (hour["seconds"] + 60.0))
    p95 = (19.0 * hour["seconds"] + 100.0 * 60.0) / (hour["seconds"] + 60.0)
    assert row["msgs_in_per_s_p95"] == pytest.approx(p95)


def test_the_hottest_is_first_by_its_share_and_the_most_volatile_by_its_deviation(
    daily: "DataFrame",
) -> None:
    rows = BUNDLE_RANKING.conform(bundle_ranking(daily)).collect()
    found = {(row["ranking"], row["rank"]): row for row in rows}
    assert len(found) == 4
    # 200 for one minute; 210 - 10 + 10 / 6 for one minute, and 100 for one.
    other = 200 + 10 / 6 + 100
    assert found["hottest", 1]["bundle"] == FIRST
    assert found["hottest", 1]["share"] == pytest.approx(other / (other + 200))
    assert found["most_volatile", 1]["bundle"] == FIRST
    assert found["most_volatile", 2]["msgs_per_s_std"] == 0.0
    weights = np.array([60.0] * 9 + [10.0] + [60.0] * 11)
    values = 3.0 * np.array([*range(1, 21), 100])
    mean = np.average(values, weights=weights)
    square = np.average((values - mean) ** 2, weights=weights)
    assert found["most_volatile", 1]["msgs_per_s_std"] == pytest.approx(square**0.5)
    assert found["most_volatile", 1]["msgs_std_over_mean"] == pytest.approx(square**0.5 / mean)


def test_imbalance_is_of_all_brokers_that_are_not_being_emptied(spark: "SparkSession") -> None:
    brokers = [
        report(60, 30.0, broker="a:1", interval_s=60.0, cpu=0.2),
        report(60, 10.0, broker="b:1", interval_s=60.0, cpu=0.6),
        report(60, 99.0, broker="gone:1", interval_s=60.0, cpu=0.0, draining=True),
    ]
    rounds = [seen(20.0, 0.2, 0.4), seen(40.0, 0.4, 0.8), seen(80.0, 0.5, 0.5)]
    minutes = broker_minutes(broker_slices(reports(spark, brokers)))
    made = cluster_minutes(minutes, table_of(spark, ROUNDS, rounds))
    (row,) = CLUSTER_MINUTES.conform(made).collect()
    assert (row["brokers"], row["msgs_in_per_s_mean"]) == (3, 139.0)
    assert row["cpu_fraction_mean"] == pytest.approx(0.8 / 3)
    # 0.2 and 0.6: mean 0.4, deviation 0.2.
    assert row["usage_mean"] == pytest.approx(0.4)
    assert row["usage_std_over_mean"] == pytest.approx(0.5)
    assert row["usage_max_over_mean"] == pytest.approx(1.5)
    assert row["usage_spread"] == pytest.approx(0.4)
    # 90 and 30 messages: mean 60, deviation 30.
    assert (row["msgs_mean"], row["msgs_std_over_mean"]) == (60.0, 0.5)
    # Of two rounds in the minute each broker's mean: 0.3 and 0.6.
    assert row["score_mean"] == pytest.approx(0.45)
    assert row["score_spread"] == pytest.approx(0.3)


def seen(at_s: float, first: float, second: float) -> Row:
    names = [field.name for field in ROUNDS.schema["brokers"].dataType.elementType.fields]  # type: ignore[attr-defined] # an array of rows
    rows = []
    for broker, score, draining in (
        ("a:1", first, False),
        ("b:1", second, False),
        ("c:1", 9.0, True),
    ):
        told = {"broker": broker, "score": score, "draining": draining}
        rows.append(tuple(told.get(name) for name in names))
    return {"cluster": "c", "at_ms": NOON_MS + round(at_s * 1000), "brokers": rows}


def test_a_seed_has_the_leaders_average_and_the_week_as_factors(
    spark: "SparkSession", hourly: "DataFrame", daily: "DataFrame"
) -> None:
    known: Row = {
        "cluster": "c",
        "bundle": FIRST,
        "long_samples": 1000,
        "topics": 7,
        **{f"long_{rate}": 5.0 for rate in RATES},
    }
    row = tuple(known.get(name) for name in AVERAGES.schema.names)
    averages = spark.createDataFrame([row], AVERAGES.schema)
    profiles = bundle_profiles(hourly)
    (seed,) = seeds_of(iter(bundle_seeds(averages, daily, profiles).collect()))
    mean = (200 + 10 / 6 + 100) / (20 + 1 / 6)
    assert isinstance(seed, BundleSeed)
    assert (seed.bundle, seed.long, seed.long_samples) == (BundleId(FIRST), Rates(5, 5, 5, 5), 1000)
    assert seed.mean.msgs_in_per_s == pytest.approx(mean)
    assert seed.topics == 7
    assert seed.hours[12] == pytest.approx(1.0)
    assert [hour for hour, factor in enumerate(seed.hours) if factor is not None] == [12]
    without = bundle_seeds(averages.limit(0), daily, profiles)
    found = {one.bundle: one for one in seeds_of(iter(without.collect()))}
    assert {one.long_samples for one in found.values()} == {1}
    assert found[BundleId(SECOND)].long.msgs_out_per_s == pytest.approx(400.0)
    unfit: list[Row] = [
        {"msgs_in_per_s_mean": 1e16},
        {"bundle": "none"},
        {"bytes_in_per_s_mean": math.inf},
    ]
    rows = [SparkRow(**{**without.collect()[0].asDict(), **changed}) for changed in unfit]
    passed_over: list[str] = []
    assert list(seeds_of(iter(rows), passed_over.append)) == []
    assert len(passed_over) == 3
    assert passed_over[1] == "none"

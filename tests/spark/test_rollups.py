"""Minutes, hours, days and rankings, worked out by hand; averages, as the leaders computed them."""

import math
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from load_rows import FIRST, NOON_MS, SECOND, report, reports, sample, samples, table_of
from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.core.ids import BundleId
from loadmanager.core.rates import Rates
from loadmanager.core.seed import BundleSeed
from loadmanager.pipeline.replay.events import AVERAGED
from loadmanager.pipeline.replay.job import Tables
from loadmanager.pipeline.rollup.frames import (
    AVERAGES,
    BROKER_DAYS,
    BROKER_MINUTES,
    BUNDLE_DAYS,
    BUNDLE_HOURS,
    BUNDLE_MINUTES,
    BUNDLE_PROFILES,
    BUNDLE_RANKING,
    CLUSTER_MINUTES,
    bundle_profiles,
    bundle_ranking,
    cluster_minutes,
)
from loadmanager.pipeline.rollup.job import bundle_seeds, seeds_of
from loadmanager.pipeline.rollup.leader_averages import latest_averages
from loadmanager.pipeline.rollup.minutes import (
    FRACTIONS,
    RATES,
    broker_minutes,
    broker_slices,
    bundle_minutes,
    bundle_slices,
    periods,
)
from loadmanager.pipeline.store import Store
from loadmanager.pipeline.tables import ROUNDS

if TYPE_CHECKING:
    from history_sinks import Archive
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
Row = dict[str, Any]
WHOLE = "t/n/0x00000000_0xffffffff"

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
    "the first": ([sample(30, 8.0, interval_s=None, window_s=5.0)], {0: [5.0, 8.0, 8.0]}),
    "nothing known": ([sample(30, 8.0, interval_s=None, window_s=None)], {0: [1.0, 8.0, 8.0]}),
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


def test_a_brokers_minute_is_of_all_its_reports(brokers: "DataFrame") -> None:
    (row,) = brokers.where(F.col("cluster") == "six").collect()
    assert row["msgs_in_per_s_mean"] == pytest.approx(3.5)
    assert row["msgs_in_per_s_max"] == 6.0
    assert row["cpu_fraction_mean"] == pytest.approx(0.35)
    assert row["cpu_fraction_max"] == 0.6
    assert row["cpu_usage_mean"] == pytest.approx(140.0)
    assert (row["cpu_limit"], row["topics_mean"], row["reports"]) == (400.0, 3.0, 6)


def test_what_was_not_measured_is_null_and_counts_for_no_mean(brokers: "DataFrame") -> None:
    (row,) = brokers.where(F.col("cluster") == "unmeasured").collect()
    assert (row["cpu_fraction_mean"], row["memory_fraction_mean"]) == (0.5, None)
    assert row["memory_fraction_max"] is None
    assert (row["cpu_usage_mean"], row["memory_usage_mean"]) == (200.0, None)


def averages_in(tables: Tables) -> dict[str, dict[str, Row]]:
    found: dict[str, dict[str, Row]] = {}
    for row in AVERAGES.conform(latest_averages(tables)).collect():
        found.setdefault(row["cluster"], {})[row["bundle"]] = row.asDict()
    return found


def test_at_each_base_they_are_the_leaders_to_the_bit(
    spark: "SparkSession", live_ingested: tuple["Archive", Store]
) -> None:
    """The history before each base round but the first is given as that of another cluster."""
    archive, store = live_ingested
    recorded = sorted(archive.lines("bundles"), key=lambda line: int(line["round"]))
    ends = spark.createDataFrame(
        [(f"until-{line['round']}", line["round"], line["tick"]) for line in recorded[1:]],
        "until string, end_round bigint, end_tick bigint",
    )
    before = {"rounds": "round < end_round", "bundle_averages": "round < end_round",
              "ticks": "tick < end_tick OR tick = end_tick AND sampled"}  # fmt: skip

    def each(name: str) -> "DataFrame":
        rows = store.table(name).crossJoin(ends).where(before.get(name, "true"))
        return rows.withColumn("cluster", F.col("until"))

    computed = averages_in(each)
    (cut,) = archive.lines("cut")
    off: Counter[str] = Counter()
    for former, line in pairwise(recorded):
        found, told = computed[f"until-{line['round']}"], line["bundles"]
        assert {row["ticks"] for row in found.values()} == {line["tick"] - former["tick"]}
        assert line["tick"] > former["tick"]
        for place, bundle in enumerate(told["bundle"]):
            wanted = [told[name][place] for name in AVERAGED]
            if [found.get(bundle, {}).get(name) for name in AVERAGED] != wanted:
                off[bundle] += 1
    # What a split divides no report shows; it may happen while a base round is recorded.
    assert set(off) <= {*cut["parts"], cut["whole"]}
    assert max(off.values()) <= 2
    assert len(recorded) > 8


def test_without_ticks_they_are_those_that_were_recorded(ingested: Store) -> None:
    (found,) = averages_in(ingested.table).values()
    last = ingested.table("bundle_averages")
    newest = last.agg({"round": "max"}).first()
    assert newest is not None
    recorded = {row["bundle"]: row for row in last.where(last["round"] == newest[0]).collect()}
    assert found.keys() == recorded.keys()
    for bundle, row in found.items():
        assert row["ticks"] == 0
        assert [row[name] for name in AVERAGED] == [recorded[bundle][name] for name in AVERAGED]


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
    return BUNDLE_HOURS.conform(periods(minutes, KEYS, RATES, "hour")).localCheckpoint()


@pytest.fixture(scope="module")
def daily(minutes: "DataFrame") -> "DataFrame":
    return BUNDLE_DAYS.conform(periods(minutes, KEYS, RATES, "date")).localCheckpoint()


def first_of(frame: "DataFrame") -> Row:
    rows = frame.where(F.col("bundle") == FIRST).orderBy("date").collect()
    return rows[0].asDict()


def test_an_hour_has_the_mean_by_time_and_the_deviation_over_minutes(hourly: "DataFrame") -> None:
    hour = first_of(hourly)
    seconds, rates = np.array([60.0] * 9 + [10.0] + [60.0] * 10), np.arange(1.0, 21.0)
    mean = np.average(rates, weights=seconds)
    off = 3.0 * np.average((rates - mean) ** 2, weights=seconds) ** 0.5  # In and out together.
    assert (hour["minutes"], hour["seconds"], hour["namespace"]) == (20, seconds.sum(), "t/n")
    assert hour["msgs_in_per_s_mean"] == pytest.approx(mean)
    assert (hour["msgs_in_per_s_max"], hour["msgs_per_s_std"]) == (20.0, pytest.approx(off))


def test_what_was_not_measured_takes_no_part_in_a_day(brokers: "DataFrame") -> None:
    measures = (*RATES, *FRACTIONS)
    made = periods(brokers, ("cluster", "broker", "broker_class"), measures, "date")
    row = BROKER_DAYS.conform(made).where(F.col("cluster") == "unmeasured").collect()[0]
    assert (row["cpu_fraction_mean"], row["cpu_fraction_max"]) == (0.5, 0.5)
    assert (row["memory_fraction_mean"], row["memory_fraction_max"]) == (None, None)


def test_an_hour_of_the_week_is_the_mean_over_all_weeks(hourly: "DataFrame") -> None:
    made = BUNDLE_PROFILES.conform(bundle_profiles(hourly)).where(F.col("bundle") == FIRST)
    (row,) = made.collect()
    assert (row["hour_of_week"], row["weeks"]) == (12, 2)
    hour = first_of(hourly)
    counted = hour["msgs_in_per_s_mean"] * hour["seconds"] + 100.0 * 60.0
    assert row["msgs_in_per_s_mean"] == pytest.approx(counted / (hour["seconds"] + 60.0))


def test_the_hottest_is_first_by_share_and_the_volatile_by_deviation(daily: "DataFrame") -> None:
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

"""The report of tables that were made by hand: every part reads what its job wrote."""

import shutil
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from load_rows import GivenStore
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import DataType, DoubleType, LongType, StringType

from loadmanager.pipeline.contract import Table
from loadmanager.pipeline.costs import BACKGROUNDS, COST_QUALITY, COST_TERMS
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.move_effects import MOVE_EFFECTS, MOVE_SUMMARY, PING_PONG
from loadmanager.pipeline.replay.job import REPLAY_SCORES, REPLAY_TRUST
from loadmanager.pipeline.reporting import job as report
from loadmanager.pipeline.reporting.capacity import CAPACITY
from loadmanager.pipeline.reporting.cost_parts import QUALITY, SPEEDS
from loadmanager.pipeline.reporting.loads import BALANCE, DISTANCE, HOTTEST, RANKED
from loadmanager.pipeline.reporting.moves import MOVES
from loadmanager.pipeline.reporting.parts import Finding, Section, Weight
from loadmanager.pipeline.reporting.runs import REPLAYED
from loadmanager.pipeline.reporting.shapes import sizes
from loadmanager.pipeline.reporting.sources import Tables, bounds_ms, sound
from loadmanager.pipeline.rollup.frames import (
    BROKER_HOURS,
    BROKER_MINUTES,
    BUNDLE_RANKING,
    CLUSTER_MINUTES,
)
from loadmanager.pipeline.store import Store
from loadmanager.pipeline.tables import INGESTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
PARTS = (BALANCE, MOVES, HOTTEST, CAPACITY, SPEEDS, QUALITY, REPLAYED)
CLUSTER = "small"
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
AHEAD = datetime(2099, 1, 1, tzinfo=UTC)
HOURS = 80
BROKERS = ("old-1:8080", "old-2:8080", "new-1:8080")
CPU_OF_A_MESSAGE = {"old-1:8080": 0.004, "old-2:8080": 0.006, "new-1:8080": 0.002}
"""By the costs an old broker needs 0.004, a new one 0.002: old-2 is half as slow again."""
EMPTY: Final[dict[DataType, Any]] = {LongType(): 0, DoubleType(): 0.0, StringType(): ""}


def rows(spark: "SparkSession", table: Table, told: Iterable[Mapping[str, Any]]) -> "DataFrame":
    """Return rows of a table: what is not told is 0 or empty, of other types null."""

    def complete(row: Mapping[str, Any]) -> tuple[Any, ...]:
        row = {"cluster": CLUSTER, **row}
        return tuple(row.get(one.name, EMPTY.get(one.dataType)) for one in table.schema)

    return spark.createDataFrame([complete(row) for row in told], table.schema)


def at(hour: int, minute: int = 0) -> dict[str, Any]:
    when = MONDAY + timedelta(hours=hour, minutes=minute)
    return {"minute": when, "hour": when, "date": date(when.year, when.month, when.day)}


def rollup(spark: "SparkSession") -> dict[Table, "DataFrame"]:
    def load(hour: int, place: int) -> float:
        return 0.2 + 0.1 * place + 0.01 * (hour % 24) + 0.001 * hour

    minutes = [
        {**at(hour), "brokers": len(BROKERS), "score_mean": 0.5,
         "score_max_over_mean": 1.2 if hour < 48 else 1.6, "score_spread": 0.4,
         "score_std_over_mean": 0.2, "msgs_in_per_s_mean": 10.0,
         "msgs_out_per_s_mean": 20.0}
        for hour in range(HOURS)
    ]  # fmt: skip
    hours = [
        {"broker": broker, "broker_class": broker[:3], **at(hour),
         "cpu_fraction_mean": load(hour, place), "direct_memory_fraction_mean": None}
        for hour in range(HOURS)
        for place, broker in enumerate(BROKERS)
    ]  # fmt: skip
    of_brokers = [
        {"broker": broker, "broker_class": broker[:3], **at(hour, minute), "seconds": 60.0,
         "cpu_limit": 400.0, "msgs_in_per_s_mean": 10_000.0 + 3000.0 * (hour % 5),
         "cpu_usage_mean": 5.0 + CPU_OF_A_MESSAGE[broker] * (10_000.0 + 3000.0 * (hour % 5))}
        for hour in range(20)
        for minute in range(0, 60, 5)
        for broker in BROKERS
    ]  # fmt: skip
    ranking = [
        {"ranking": ranking, "rank": rank, "bundle": f"t/n/0x{rank:08x}_0x{rank + 1:08x}",
         "namespace": "t/n", "share": 0.3 / rank, "msgs_per_s_mean": 9.0, "msgs_per_s_std": 1.0}
        for ranking in ("hottest", "most_volatile")
        for rank in range(1, 31)
    ]  # fmt: skip
    return {
        CLUSTER_MINUTES: rows(spark, CLUSTER_MINUTES, minutes),
        BROKER_HOURS: rows(spark, BROKER_HOURS, hours),
        BROKER_MINUTES: rows(spark, BROKER_MINUTES, of_brokers),
        BUNDLE_RANKING: rows(spark, BUNDLE_RANKING, ranking),
    }


def moves(spark: "SparkSession") -> dict[Table, "DataFrame"]:
    effects = [
        {"seq": number, "at": MONDAY, "ordered_at": MONDAY + timedelta(minutes=number),
         "date": MONDAY.date(), "bundle": f"t/n/{number}", "source": "old-1:8080",
         "target": "new-1:8080", "outcome": "moved", "cause": "overloaded", "pause_s": 0.3,
         "verdict": ("helped", "helped", "hurt", "unknown")[number % 4],
         "reason": "no hand-over is recorded" if number % 4 == 3 else "",
         "spread_expected": 0.4, "spread_after": 0.3, "gain": 0.1}
        for number in range(8)
    ]  # fmt: skip
    summary = {
        "shedder": "S", "placement": "P", "cause": "overloaded", "moves": 8, "judged": 6,
        "helped": 4, "hurt": 2, "helped_fraction": 2 / 3, "returns": 2, "pause_s": 2.4,
    }  # fmt: skip
    returned = {"rank": 1, "bundle": "t/n/0", "returns": 2, "moves": 3, "brokers": 2}
    return {
        MOVE_EFFECTS: rows(spark, MOVE_EFFECTS, effects),
        MOVE_SUMMARY: rows(spark, MOVE_SUMMARY, [summary]),
        PING_PONG: rows(spark, PING_PONG, [returned]),
    }


def costs(spark: "SparkSession") -> dict[Table, "DataFrame"]:
    terms = [
        {"broker_class": name, "resource": "cpu", "rate": "msgs_in_per_s", "value": value,
         "low": value * 0.9, "high": value * 1.1, "typical_usage": 40.0, "verdict": "known",
         "partners": ""}
        for name, value in (("old", 0.004), ("new", 0.002))
    ]  # fmt: skip
    quality: list[dict[str, Any]] = [
        {"broker_class": "old", "resource": "cpu", "refused": None, "mape": 0.05,
         "baseline_mape": 0.2, "coverage": 0.9},
        {"broker_class": "old", "resource": "memory", "mape": None, "refused": "too few minutes"},
    ]  # fmt: skip
    idle = [
        {"broker_class": one[:3], "broker": one, "resource": "cpu", "value": 5.0} for one in BROKERS
    ]
    return {
        COST_TERMS: rows(spark, COST_TERMS, terms),
        COST_QUALITY: rows(spark, COST_QUALITY, quality),
        BACKGROUNDS: rows(spark, BACKGROUNDS, idle),
    }


ADVICE: Final = {
    "verdict": "try", "text": "Try avg+avg, observing first.", "name": "avg+avg", "sure": "fair",
    "rests_on": "10 h of history.", "costs": "12 moves an hour.",
    "because": "77% of the traffic lay elsewhere",
}  # fmt: skip


def replays(spark: "SparkSession") -> dict[Table, "DataFrame"]:
    scores = [
        {"rank": rank, "combination": number, "name": name, "gap": gap, "max_over_mean": 1.3,
         "shedder": shedder, "covered_s": 36_000.0}
        for rank, number, name, gap, shedder in (
            (1, 4, "avg+avg", -0.2, "avg"), (2, -1, "(recorded)", 0.0, ""))
    ]  # fmt: skip
    trust = [{"combination": 4, "name": "avg+avg", "level": "fair", "because": "", "rounds": 9}]
    return {
        REPLAY_SCORES: rows(spark, REPLAY_SCORES, scores),
        REPLAY_TRUST: rows(spark, REPLAY_TRUST, trust),
    }


@pytest.fixture(scope="module")
def bare(spark: "SparkSession", ingested: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("report") / "tables"
    shutil.copytree(ingested.out, folder)
    return Store(spark, str(folder))


@pytest.fixture(scope="module")
def full(spark: "SparkSession", ingested: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("report") / "tables"
    shutil.copytree(ingested.out, folder)
    store = Store(spark, str(folder))
    store.replace("rollup", rollup(spark), {})
    store.replace("moves", moves(spark), {"window_s": 300.0, "back_within_s": 3600.0})
    store.replace("costs", costs(spark), {})
    store.replace("replay", replays(spark), {"advice": ADVICE})
    return store


def test_each_part_says_what_makes_it(spark: "SparkSession", bare: Store) -> None:
    lines = report.run(Work(spark=spark, store=bare))
    file = Path(bare.out, "report.html")
    assert lines[0].startswith(f"{bare.out}/report.html: ")
    text = file.read_text(encoding="utf-8")
    for job in ("rollup", "moves", "costs", "replay"):
        assert f"loadmanager pipeline {job} --out {bare.out}" in text
    assert text.count('class="plot"') == 1  # sizes of namespaces need nothing but ingest
    assert "tenant/clicks" in text
    assert "lines read" in text


@pytest.fixture(scope="module")
def found(full: Store) -> Mapping[Section, Any]:
    return {part: part.read(Tables(full, CLUSTER)) for part in PARTS}


Found = Mapping[Section, Any]


def test_balance_is_read_by_intervals_and_by_days(found: Found) -> None:
    told = found[BALANCE]
    assert told["measure"] == "score"
    assert len(told["points"]) == HOURS
    assert told["points"][0]["highest"] == pytest.approx(0.6)
    assert told["points"][0]["lowest"] == pytest.approx(0.2)
    assert [row["day"] for row in told["days"]] == [f"2026-01-0{day}" for day in (5, 6, 7, 8)]
    assert [row["uneven"] for row in told["days"]] == [1.0, 1.0, 1.0, 1.0]
    assert told["days"][-1]["max_over_mean"] == pytest.approx(1.6)
    assert told["map"]["brokers"] == sorted(BROKERS)
    assert told["map"]["loads"][0][0] == pytest.approx(0.4)
    assert sum(told["moves"].values()) == 8


def test_only_the_asked_for_time_is_told_of(full: Store) -> None:
    def minutes(tables: Tables) -> int:
        return tables.table("cluster_minutes").count()

    assert minutes(Tables(full, CLUSTER, since=MONDAY + timedelta(hours=30))) == HOURS - 30
    assert minutes(Tables(full, CLUSTER, until=MONDAY + timedelta(hours=1))) == 1
    assert minutes(Tables(full, "another")) == 0
    assert BALANCE.read(Tables(full, CLUSTER, until=MONDAY)) is None


def test_a_clock_far_ahead_spoils_no_part(spark: "SparkSession", full: Store, found: Found) -> None:
    def with_ahead(name: str, **changed: object) -> "DataFrame":
        """Return a table of which one row is there once more, in the year 2099."""
        frame = full.table(name)
        times = [one for one in frame.columns if one in {"minute", "hour", "at"}]
        more = {one: F.lit(AHEAD) for one in times}
        more["date"] = F.lit(AHEAD.date())
        more.update({one: F.lit(value) for one, value in changed.items()})
        return frame.union(frame.limit(1).withColumns(more).select(frame.columns))

    given = {
        "cluster_minutes": with_ahead("cluster_minutes", brokers=1, score_mean=0.9),
        "broker_hours": with_ahead("broker_hours", cpu_fraction_mean=0.9),
        "broker_load": with_ahead("broker_load"),
        "bundle_load": with_ahead("bundle_load"),
    }
    tables = Tables(GivenStore(spark, full.out, given), CLUSTER)
    told: Found = {part: part.read(tables) for part in (BALANCE, CAPACITY)}
    assert told[BALANCE]["points"] == found[BALANCE]["points"]
    assert told[BALANCE]["map"] == found[BALANCE]["map"]
    assert told[CAPACITY]["loads"].tolist() == found[CAPACITY]["loads"].tolist()
    lately, as_ever = sizes(tables), sizes(Tables(full, CLUSTER))
    assert lately is not None
    assert as_ever is not None
    assert lately.count == as_ever.count > 1


def test_the_distance_from_the_best_is_read_of_all(spark: "SparkSession", full: Store) -> None:
    tables = Tables(full, CLUSTER)
    assert DISTANCE.read(tables) == {"total": None}
    began_ms, _ = bounds_ms(sound(tables.table("broker_load")), "at") or (0, 0)
    now = datetime.fromtimestamp(began_ms / 1000, UTC)
    of_round = {"at": now, "date": now.date(), "active_gap": 0.25, "active_moves": 3}
    gaps = [
        {**of_round, "largest": 0.5 + use, "bound": 0.4, "gap": 0.25 + use / 0.4}
        for use in (0.0, 0.04)
    ]
    shadows = [
        {**of_round, "strategy": strategy, "gap": gap, "moves": 2, "moved": 0.1}
        for strategy, gap in (("A", 0.3), ("B", 0.05), ("B", 0.15))
    ]
    late = {"at": AHEAD, "date": AHEAD.date(), "gap": 99.0, "bound": 0.4}
    given = {
        "optimality": rows(spark, INGESTED["optimality"], [*gaps, late]),
        "shadows": rows(spark, INGESTED["shadows"], [*shadows, {**late, "strategy": "B"}]),
    }
    found = DISTANCE.read(Tables(GivenStore(spark, full.out, given), CLUSTER))
    assert found is not None
    assert (found["total"]["rounds"], found["total"]["gap"]) == (2, pytest.approx(0.3))
    assert [row["largest"] for row in found["points"]] == [pytest.approx(0.52)]
    assert [(row["strategy"], row["rounds"], row["moves"]) for row in found["shadows"]] == [
        ("B", 2, 4),
        ("A", 1, 2),
    ]
    assert [row["regret"] for row in found["shadows"]] == pytest.approx([0.15, -0.05])
    assert [(row["strategy"], row["regret"]) for row in found["regrets"]] == [
        ("A", pytest.approx(-0.05)),
        ("B", pytest.approx(0.15)),
    ]
    # All rounds are of one interval: that is no course to draw.
    assert "is not drawn: there are fewer than three points" in DISTANCE.show(found).html("x")


def test_capacity_is_read_of_the_scarcest_resource(found: Found) -> None:
    told = found[CAPACITY]
    assert told["resource"] == "cpu"
    assert len(told["loads"]) == HOURS
    assert told["loads"][0] == pytest.approx(0.3)
    words = CAPACITY.show(told).findings[0].text
    assert "+2.40 points a day" in words
    assert "weekdays look like a trend" in words


def test_the_slow_broker_is_found(found: Found) -> None:
    told = found[SPEEDS]
    assert told["learned"]
    assert {row["broker"]: row["slope"] for row in told["brokers"]} == {
        "old-1:8080": pytest.approx(1.0),
        "old-2:8080": pytest.approx(1.5),
        "new-1:8080": pytest.approx(1.0),
    }
    words = SPEEDS.show(told).findings[0].text
    assert words.startswith("old-2:8080 needs 50 % more CPU")


def test_predictions_are_held_against_what_was_measured(found: Found) -> None:
    told = found[QUALITY]
    assert len(told["hours"]) == 60
    right = [row for row in told["hours"] if row["broker"] != "old-2:8080"]
    assert [row["predicted"] for row in right] == pytest.approx([row["used"] for row in right])


def test_rankings_moves_and_scores_are_read(found: Found) -> None:
    hot, moved, tried = found[HOTTEST], found[MOVES], found[REPLAYED]
    assert [row["rank"] for row in hot["hottest"]] == list(range(1, RANKED + 1))
    assert [row["hour"] for row in hot["week"]] == list(range(HOURS))
    assert len(moved["sample"]) == 6
    assert [row["count"] for row in moved["reasons"]] == [2]
    assert [row["name"] for row in tried["scores"]] == ["avg+avg", "(recorded)"]
    assert tried["trust"][4]["level"] == "fair"
    shown = REPLAYED.show(tried)
    assert shown.findings == [Finding(Weight.ACT, "Try avg+avg, observing first.")]
    assert "fair: 77% of the traffic lay elsewhere" in shown.html("x")


def test_a_replay_of_a_version_without_advice_is_to_be_made_again(
    spark: "SparkSession", full: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "tables"
    shutil.copytree(full.out, folder)
    former = Store(spark, str(folder))
    former.replace("replay", replays(spark), {})
    assert REPLAYED.read(Tables(former, CLUSTER)) is None

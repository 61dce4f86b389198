"""The job ``costs``: from tables of history to what traffic costs, in Spark as in one array."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cost_months import Made, Month, made
from load_rows import GivenStore

from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline import costs
from loadmanager.pipeline.costs import RATES, minutes, plausible
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.tables import INGESTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
MONTH = Month(brokers=4, bundles=30, days=3, step_minutes=5, moves_per_day=16.0, odd=0.0)
START_MINUTE = 20_000 * 1440
NAMES = [f"b-{unit}:8080" for unit in range(4)]


def frame(spark: "SparkSession", name: str, rows: list[dict[str, Any]]) -> "DataFrame":
    schema = INGESTED[name].schema
    filled = [tuple(row.get(column) for column in schema.names) for row in rows]
    return spark.createDataFrame(filled, schema)


def report(
    unit: int, minute: int, rates: Any, usage: Any, limit: Any, **others: Any
) -> dict[str, Any]:
    amounts = dict(zip(RATES, [float(one) for one in rates], strict=True))
    sessions = int(amounts.pop("connections"))
    used = {f"{one}_usage": float(v) for one, v in zip(RESOURCES, usage, strict=True)}
    most = {f"{one}_limit": float(v) for one, v in zip(RESOURCES, limit, strict=True)}
    return {
        "cluster": "cluster",
        "broker": NAMES[unit],
        "broker_class": "",
        "reported_at_ms": minute * 60_000 + 7_000,
        "interval_s": 300.0,
        "window_s": 60.0,
        "healthy": True,
        **amounts,
        "topics": int(amounts["topics"]),
        "producers": sessions // 2,
        "consumers": sessions - sessions // 2,
        **used,
        **most,
        **others,
    }


def reports(of: Made) -> Iterator[dict[str, Any]]:
    rows = of.rows
    for row, (unit, minute) in enumerate(zip(rows.unit, rows.minute, strict=True)):
        at = START_MINUTE + int(minute)
        yield report(unit, at, rows.rates[row], rows.usage[row], rows.limit[row])


@pytest.fixture(scope="module")
def month() -> Made:
    return made(MONTH)


def test_spark_finds_what_an_array_tells(
    spark: "SparkSession", month: Made, tmp_path: Path
) -> None:
    given = {"broker_load": frame(spark, "broker_load", list(reports(month)))}
    store = GivenStore(spark, str(tmp_path), given)
    lines = costs.run(Work(spark=spark, store=store))
    units = [costs.Unit("cluster", "", name) for name in NAMES]
    alone = costs.learn(replace(month.rows, minute=month.rows.minute + START_MINUTE), units)
    assert lines == list(costs.summary(alone))
    for table, rows in zip(("cost_terms", "cost_quality", "backgrounds"), alone, strict=True):
        found = [row.asDict() for row in store.table(table).collect()]
        for row, one in zip(sorted(found, key=words), sorted(rows, key=words), strict=True):
            assert words(row) == words(one)
            measured = {name: value for name, value in one.items() if isinstance(value, float)}
            assert {name: row[name] for name in measured} == pytest.approx(measured, rel=1e-3)


def words(row: Mapping[str, Any]) -> list[str]:
    return [str(row[name]) for name in sorted(row) if not isinstance(row[name], float)]


def test_a_minute_weighs_its_reports_by_the_seconds_they_stand_for(spark: "SparkSession") -> None:
    def of(second: int, rate: float, **others: Any) -> dict[str, Any]:
        others = {"reported_at_ms": 60_000_000 + second * 1000, **others}
        return report(0, 0, [rate, 0, 0, 0, 4, 6], [rate] * 5, [100.0] * 5, **others)

    given = [
        of(5, 10.0, interval_s=30.0),
        of(15, 20.0, interval_s=10.0),
        of(20, 999.0, healthy=False),
        of(25, 999.0, window_s=None),
        of(70, 50.0, interval_s=None, memory_limit=0.0, memory_usage=0.0),
    ]
    found = minutes(frame(spark, "broker_load", given)).orderBy("minute").collect()
    assert [row["msgs_in_per_s"] for row in found] == [pytest.approx(12.5), 50.0]
    assert [row["cpu_usage"] for row in found] == [pytest.approx(12.5), 50.0]
    assert [row["memory_usage"] for row in found] == [pytest.approx(12.5), None]
    assert [row["connections"] for row in found] == [6.0, 6.0]


def test_minutes_that_no_broker_can_have_had_are_left_out(spark: "SparkSession") -> None:
    sound = [
        report(0, minute, [10.0 + minute, 0, 0, 0, 4, 6], [50.0] * 5, [100.0] * 5)
        for minute in range(300)
    ]
    jumped = report(0, 301, [1e12, 0, 0, 0, 4, 6], [50.0] * 5, [100.0] * 5)
    mistaken = report(0, 302, [9.0, 0, 0, 0, 4, 6], [1e6] * 5, [100.0] * 5)
    given = frame(spark, "broker_load", [*sound, jumped, mistaken])
    found = plausible(minutes(given)).where("minute >= 299").orderBy("minute").collect()
    assert [row["minute"] for row in found] == [299, 302]
    assert [row["cpu_usage"] for row in found] == [50.0, None]
    assert [row["msgs_in_per_s"] for row in found] == [309.0, 9.0]


def test_nothing_to_learn_from_gives_empty_tables(spark: "SparkSession", tmp_path: Path) -> None:
    empty = {name: frame(spark, name, []) for name in ("broker_load",)}
    store = GivenStore(spark, str(tmp_path), empty)
    lines = costs.run(Work(spark=spark, store=store))
    assert lines == ["no report of a broker in the asked-for time: no costs"]
    assert store.table("cost_terms").count() == 0

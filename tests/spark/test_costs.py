"""The job ``costs``: from tables of history to what traffic costs, in Spark as in one array."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cost_months import Made, Month, changes, made
from given_store import GivenStore
from rows_in_memory import InMemory

from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.cost_model import job as costs
from loadmanager.pipeline.cost_model.job import changes as spark_changes
from loadmanager.pipeline.cost_model.job import minutes, plausible
from loadmanager.pipeline.cost_model.learning import learn
from loadmanager.pipeline.cost_model.rows import RATES, Rows
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.store import Store
from loadmanager.pipeline.tables import INGESTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
MONTH = Month(brokers=4, bundles=30, days=3, step_minutes=5, moves_per_day=16.0, odd=0.0)
START_MINUTE = 20_000 * 1440
SIX_HOURS = 6 * 60
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
    steps = len(of.owner)
    for row in range(len(of.rows)):
        unit, step = divmod(row, steps)
        minute = START_MINUTE + step * MONTH.step_minutes
        yield report(unit, minute, of.rows.rates[row], of.rows.usage[row], of.rows.limit[row])


def hand_overs(of: Made) -> Iterator[dict[str, Any]]:
    for step in range(1, len(of.owner)):
        for bundle in np.flatnonzero(of.owner[step] != of.owner[step - 1]).tolist():
            minute = START_MINUTE + step * MONTH.step_minutes
            yield {
                "cluster": "cluster",
                "bundle": str(bundle),
                "source": NAMES[of.owner[step - 1, bundle]],
                "target": NAMES[of.owner[step, bundle]],
                "outcome": "finished",
                "acquired_at_ms": minute * 60_000 + 100,
            }


@pytest.fixture(scope="module")
def month() -> Made:
    return made(MONTH)


@pytest.fixture(scope="module")
def tables(spark: "SparkSession", month: Made) -> dict[str, "DataFrame"]:
    return {
        "broker_load": frame(spark, "broker_load", list(reports(month))).cache(),
        "hand_overs": frame(spark, "hand_overs", list(hand_overs(month))).cache(),
    }


def rows_of(month: Made) -> Rows:
    units, steps = len(month.class_of), len(month.owner)
    moved = np.zeros((units, steps), dtype=np.bool_)
    for step in range(1, steps):
        other = month.owner[step] != month.owner[step - 1]
        moved[month.owner[step][other], step] = True
        moved[month.owner[step - 1][other], step] = True
    rates, usage = (one.reshape(units, steps, -1) for one in (month.rows.rates, month.rows.usage))
    changed = changes(rates, usage, moved, month.class_of)
    block = START_MINUTE // SIX_HOURS + np.arange(steps) * MONTH.step_minutes // SIX_HOURS
    late = START_MINUTE + np.arange(steps) * MONTH.step_minutes >= START_MINUTE + middle(steps)
    minutes_alone = Rows(
        unit=month.rows.unit,
        block=np.tile(block, units),
        level=month.rows.level,
        held_out=np.tile(block % 5 == 4, units),
        late=np.tile(late, units),
        rates=month.rows.rates,
        usage=month.rows.usage,
        limit=month.rows.limit,
    )
    return Rows.joined([minutes_alone, changed.rows(block[changed.slot], late[changed.slot])])


def middle(steps: int) -> float:
    first, end = START_MINUTE, START_MINUTE + (steps - 1) * MONTH.step_minutes + 1
    return (first + end) // 2 - START_MINUTE


@pytest.fixture(scope="module")
def done(
    spark: "SparkSession", tables: dict[str, "DataFrame"], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Store, list[str]]:
    store = GivenStore(spark, str(tmp_path_factory.mktemp("costs")), tables)
    return store, costs.run(Work(spark=spark, store=store))


def test_spark_finds_what_an_array_tells(done: tuple[Store, list[str]], month: Made) -> None:
    alone = learn(InMemory(rows_of(month)), month.class_of)
    found = {(row["resource"], row["rate"]): row for row in done[0].table("cost_terms").collect()}
    for (_, resource), finding in alone.findings.items():
        for one in finding.terms:
            row = found.pop((RESOURCES[resource], one.rate))
            assert row["value"] == pytest.approx(one.term.value, rel=1e-5, abs=1e-12)
            assert row["low"] == pytest.approx(one.term.low, rel=1e-3, abs=1e-12)
            assert row["high"] == pytest.approx(one.term.high, rel=1e-3, abs=1e-12)
            assert row["verdict"] == one.verdict
    assert found == {}


def test_what_moves_changed_is_compared(tables: dict[str, "DataFrame"], month: Made) -> None:
    found = spark_changes(minutes(tables["broker_load"]), tables["hand_overs"]).collect()
    rows = rows_of(month)
    expected = rows.take(~rows.level)
    assert len(found) == len(expected) > 20
    by_place = {(row["broker"], row["cpu_usage"]): row for row in found}
    for at in range(len(expected)):
        cpu = expected.usage[at, 0]
        near = [one for key, one in by_place.items() if abs(key[1] - cpu) < 1e-6 * (1 + abs(cpu))]
        assert [one["broker"] for one in near] == [NAMES[expected.unit[at]]]
        np.testing.assert_allclose(
            [near[0][rate] for rate in RATES], expected.rates[at], rtol=1e-6, atol=1e-6
        )
        assert near[0]["memory_limit"] == pytest.approx(expected.limit[at, 1])


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
    empty = {name: frame(spark, name, []) for name in ("broker_load", "hand_overs")}
    store = GivenStore(spark, str(tmp_path), empty)
    lines = costs.run(Work(spark=spark, store=store))
    assert lines == ["no report of a broker in the asked-for time: no costs"]
    assert store.table("cost_terms").count() == 0

"""What every job relies on: the session, bounds of time, names as numbers, files as they are."""

import io
import re
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.pipeline import progress
from loadmanager.pipeline.expressions import between
from loadmanager.pipeline.ingest.job import PARQUET_FILES, SEPARATOR, write_parquet_files
from loadmanager.pipeline.rollup.minutes import KEY, keys_of, names_in, with_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def test_times_are_in_utc_wherever_the_host_is(spark: "SparkSession") -> None:
    row = spark.range(1).select(F.date_format(F.timestamp_millis(F.lit(0)), "HH:mm")).first()
    assert row is not None
    assert row[0] == "00:00"


def test_progress_tells_its_stages(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.02)
    stream = io.StringIO()
    deadline_s = time.monotonic() + 120
    with progress.progress_on(stream)(spark, "sum"):
        while "tasks" not in stream.getvalue() and time.monotonic() < deadline_s:
            spark.range(2_000_000).mapInArrow(lambda batches: batches, "id bigint").count()
    line = re.compile(r"sum: stage \d+: \d+ of \d+ tasks, \d+ running")
    assert any(map(line.fullmatch, stream.getvalue().splitlines())), stream.getvalue()


MIDNIGHT: Final = datetime(2026, 1, 6, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
AROUND_MIDNIGHT: Final = tuple(MIDNIGHT + number * HOUR for number in range(-2, 3))


@pytest.fixture(scope="module")
def hours(spark: "SparkSession") -> "DataFrame":
    rows = [(at, at.date()) for at in AROUND_MIDNIGHT]
    return spark.createDataFrame(rows, "at timestamp, date date")


def told(frame: "DataFrame") -> list[int]:
    return sorted((row["at"].astimezone(UTC) - MIDNIGHT) // HOUR for row in frame.collect())


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, [-2, -1, 0, 1, 2]),
        (MIDNIGHT, None, [0, 1, 2]),
        (None, MIDNIGHT, [-2, -1]),
        (MIDNIGHT - HOUR, MIDNIGHT + HOUR, [-1, 0]),
        (MIDNIGHT, MIDNIGHT, []),
    ],
)
def test_since_is_within_and_until_is_not(
    hours: "DataFrame", since: datetime | None, until: datetime | None, expected: list[int]
) -> None:
    assert told(between(hours, since, until)) == expected
    assert told(between(hours.drop("date"), since, until)) == expected


def test_a_margin_reaches_over_midnight_to_either_side(hours: "DataFrame") -> None:
    found = between(hours, MIDNIGHT, MIDNIGHT + HOUR, margin=HOUR)
    assert told(found) == [-1, 0, 1]
    found = between(hours, MIDNIGHT - HOUR, MIDNIGHT, margin=HOUR)
    assert told(found) == [-2, -1, 0]


def test_of_rows_that_are_whole_days_each_day_counts_that_is_touched(hours: "DataFrame") -> None:
    days = hours.select("date").distinct()
    touched = between(days, MIDNIGHT - HOUR, MIDNIGHT + HOUR, time=None)
    assert touched.count() == 2
    assert between(days, MIDNIGHT, None, time=None).count() == 1


def test_folders_of_other_days_are_left_out(hours: "DataFrame") -> None:
    plan = between(hours, MIDNIGHT, None)._jdf.queryExecution().optimizedPlan().toString()
    assert "date#" in plan.partition("Filter")[2].partition("\n")[0]


def test_rows_are_summed_by_numbers_as_by_their_names(spark: "SparkSession") -> None:
    # Names that are the same put together, swapped, or empty are not the same.
    names = [("ab", "c"), ("a", "bc"), ("c", "ab"), ("", "abc"), ("abc", "")]
    rows = [(*name, number) for number, name in enumerate(names * 3)]
    frame = spark.createDataFrame(rows, "cluster string, bundle string, number bigint")
    numbered = (
        frame.select(*keys_of(("cluster", "bundle")), "number")
        .groupBy(*KEY)
        .agg(F.sum("number").alias("n"))
    )
    made = with_names(numbered, names_in(frame, ("cluster", "bundle")))
    assert made.columns == ["n", "cluster", "bundle"]
    found = {(row["cluster"], row["bundle"]): row["n"] for row in made.collect()}
    assert found == {name: 3 * place + 15 for place, name in enumerate(names)}


def test_the_two_numbers_of_a_name_are_not_made_of_each_other(spark: "SparkSession") -> None:
    frame = spark.range(1000).select(F.lit("c").alias("cluster"), F.col("id").cast("string"))
    keys = frame.select(*keys_of(("cluster", "id")))
    assert all(keys.select(key).distinct().count() == 1000 for key in KEY)
    differences = keys.select(F.expr(f"{KEY[0]} ^ {KEY[1]}")).distinct()
    assert differences.count() == 1000


def test_each_row_is_a_file_of_its_own_byte_for_byte(spark: "SparkSession", tmp_path: Path) -> None:
    every_byte, monday = bytes(range(256)), date(2026, 1, 5)
    # More days than a task has files open at a time.
    days = [monday + timedelta(days=number) for number in range(40)]
    rows: list[tuple[str, date | None, bytes]] = [
        ("bundle_load", day, every_byte + bytes([number])) for number, day in enumerate(days)
    ]
    rows += [("bundle_load", monday, every_byte * size) for size in (2, 3)]
    rows += [("lines", None, b"\r\n\xff\xfe\0"), ("lines", None, b"")]
    made = spark.createDataFrame(rows, PARQUET_FILES).coalesce(1)
    write_parquet_files(made, str(tmp_path / "out [1]"))
    found = {
        (str(path.parent.relative_to(tmp_path)), path.read_bytes())
        for path in tmp_path.rglob("part-*")
        if path.is_file()
    }
    assert found == {
        (
            f"out [1]/part={part}/date={day or '__HIVE_DEFAULT_PARTITION__'}",
            content + SEPARATOR.encode(),
        )
        for part, day, content in rows
    }

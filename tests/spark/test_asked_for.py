"""`--since` and `--until`, which every job takes alike."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

from loadmanager.pipeline.expressions import between

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MIDNIGHT: Final = datetime(2026, 1, 6, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
AROUND_MIDNIGHT: Final = tuple(MIDNIGHT + number * HOUR for number in range(-2, 3))


@pytest.fixture(scope="module")
def hours(spark: "SparkSession") -> "DataFrame":
    """Return a row for each hour from two before a midnight to two after it."""
    rows = [(at, at.date()) for at in AROUND_MIDNIGHT]
    return spark.createDataFrame(rows, "at timestamp, date date")


def told(frame: "DataFrame") -> list[int]:
    """Return how many hours from midnight the rows are."""
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

"""What every job relies on of the session it is given."""

import io
import re
import time
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.pipeline import progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_times_are_in_utc_wherever_the_host_is(spark: "SparkSession") -> None:
    row = spark.range(1).select(F.date_format(F.timestamp_millis(F.lit(0)), "HH:mm")).first()
    assert row is not None
    assert row[0] == "00:00"


def test_progress_tells_the_stages_that_run(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.02)
    stream = io.StringIO()
    deadline_s = time.monotonic() + 120
    with progress.progress_on(stream)(spark, "sum"):
        while "tasks" not in stream.getvalue() and time.monotonic() < deadline_s:
            spark.range(2_000_000).mapInArrow(lambda batches: batches, "id bigint").count()
    line = re.compile(r"sum: stage \d+: \d+ of \d+ tasks, \d+ running")
    assert any(map(line.fullmatch, stream.getvalue().splitlines())), stream.getvalue()


def test_python_runs_in_the_workers(spark: "SparkSession") -> None:
    doubled = spark.range(10).mapInArrow(lambda batches: batches, "id bigint").agg(F.sum("id"))
    row = doubled.first()
    assert row is not None
    assert row[0] == 45

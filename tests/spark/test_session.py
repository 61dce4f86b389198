"""What every job relies on of the session it is given."""

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_times_are_in_utc_wherever_the_host_is(spark: "SparkSession") -> None:
    row = spark.range(1).select(F.date_format(F.timestamp_millis(F.lit(0)), "HH:mm")).first()
    assert row is not None
    assert row[0] == "00:00"


def test_python_runs_in_the_workers(spark: "SparkSession") -> None:
    doubled = spark.range(10).mapInArrow(lambda batches: batches, "id bigint").agg(F.sum("id"))
    row = doubled.first()
    assert row is not None
    assert row[0] == 45

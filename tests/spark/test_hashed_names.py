"""Names come back as they were after their rows were grouped by numbers."""

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.pipeline.rollup.hashed_names import KEY, keys_of, names_in, with_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAMES = ("cluster", "bundle")


def test_rows_are_summed_by_numbers_as_by_their_names(spark: "SparkSession") -> None:
    # Names that are the same put together, swapped, or empty are not the same.
    names = [("ab", "c"), ("a", "bc"), ("c", "ab"), ("", "abc"), ("abc", "")]
    rows = [(*name, number) for number, name in enumerate(names * 3)]
    frame = spark.createDataFrame(rows, "cluster string, bundle string, number bigint")
    numbered = frame.select(*keys_of(NAMES), "number").groupBy(*KEY).agg(F.sum("number").alias("n"))
    made = with_names(numbered, names_in(frame, NAMES))
    assert made.columns == ["n", *NAMES]
    found = {(row["cluster"], row["bundle"]): row["n"] for row in made.collect()}
    assert found == {name: 3 * place + 15 for place, name in enumerate(names)}


def test_the_two_numbers_of_a_name_are_not_made_of_each_other(spark: "SparkSession") -> None:
    frame = spark.range(1000).select(F.lit("c").alias("cluster"), F.col("id").cast("string"))
    keys = frame.select(*keys_of(("cluster", "id")))
    assert all(keys.select(key).distinct().count() == 1000 for key in KEY)
    differences = keys.select(F.expr(f"{KEY[0]} ^ {KEY[1]}")).distinct()
    assert differences.count() == 1000

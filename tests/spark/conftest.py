"""One Spark for all tests of a run: starting it takes longer than most of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from loadmanager.pipeline.runtime import SparkUnavailable
from loadmanager.pipeline.session import SessionSettings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = SessionSettings(
    master="local[2]",
    driver_memory="1g",
    more={"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"},
)


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """Yield a session with two cores."""
    try:
        with spark_session(SETTINGS, "tests") as session:
            yield session
    except SparkUnavailable as error:
        pytest.skip(str(error))

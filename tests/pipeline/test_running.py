import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.running import spark_errors_named


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PySparkRuntimeError("No space left on device"), "job rollup: the disk is full; expected"),
        (Py4JNetworkError("Answer from Java side is empty"), "job rollup: Spark's Java is gone; "),
        (OSError(28, "No space left on device"), "job rollup: the disk is full; expected"),
    ],
)
def test_what_spark_throws_becomes_one_line_that_names_the_job(error: Exception, told: str) -> None:
    with pytest.raises(PipelineError) as raised, spark_errors_named("rollup"):
        raise error
    assert str(raised.value).startswith(told)
    assert raised.value.__cause__ is error


def test_what_a_job_says_itself_is_left_as_it_is() -> None:
    said = PipelineError("tables: there is no table rounds yet")
    with pytest.raises(PipelineError) as raised, spark_errors_named("rollup"):
        raise said
    assert raised.value is said

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from loadmanager.pipeline.failures import PipelineError, plain_cause
from loadmanager.pipeline.running import spark_errors_named

JAVA = """\
An error occurred while calling o1234.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 7.0 failed
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2844)
Caused by: java.io.IOException: {cause}
\tat org.apache.hadoop.fs.RawLocalFileSystem.write(RawLocalFileSystem.java:1179)
\t... 28 more
"""
PYTHON = """\
An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/opt/loadmanager/lib/python3.11/site-packages/pyspark/worker.py", line 1247, in main
    process()
loadmanager.core.errors.InvalidName: bundle 'x'; expected tenant/ns/0xLLLLLLLL_0xUUUUUUUU
"""
INVALID = PYTHON.splitlines()[-1]


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("No space left on device", "the disk is full; expected room in --out"),
        ("java.lang.OutOfMemoryError: Java heap space", "the memory is short; expected more: "),
        ('Cannot run program "/opt/a/bin/python3"', "a worker has no such Python; expected"),
        ("No FileSystem for scheme s3a", "Spark does not support this kind of address; expected"),
        ("Answer from Java side is empty", "Spark's Java is gone; the system kills it"),
    ],
)
def test_what_users_can_mend_is_told_with_what_to_do(cause: str, told: str) -> None:
    said = plain_cause(JAVA.format(cause=cause))
    assert said.startswith(told)
    assert cause in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(JAVA.format(cause="bad"), "java.io.IOException: bad", id="the last of causes"),
        pytest.param(PYTHON, INVALID, id="the exception of a worker"),
        pytest.param("\n  [NOT_FOUND] rounds\n== SQL ==", "[NOT_FOUND] rounds", id="first line"),
        pytest.param("", "it failed without a word", id="nothing"),
    ],
)
def test_anything_else_is_told_in_a_line(text: str, told: str) -> None:
    assert plain_cause(text) == told
    assert len(plain_cause("x" * 9999)) < 500


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PySparkRuntimeError("No space left on device"), "job rollup: the disk is full; expected"),
        (Py4JNetworkError("Answer from Java side is empty"), "job rollup: Spark's Java is gone; "),
        (OSError(28, "No space left on device"), "job rollup: the disk is full; expected"),
        (PipelineError("tables: there is no table rounds yet"), "tables: there is no table rounds"),
    ],
)
def test_what_spark_throws_names_the_job_and_what_a_job_says_is_left(
    error: Exception, told: str
) -> None:
    with pytest.raises(PipelineError) as raised, spark_errors_named("rollup"):
        raise error
    assert str(raised.value).startswith(told)
    assert error in {raised.value, raised.value.__cause__}

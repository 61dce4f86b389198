import pytest

from loadmanager.pipeline.failures import plain_cause

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


def test_of_a_chain_of_causes_the_last_is_told() -> None:
    assert plain_cause(JAVA.format(cause="bad blocks")) == "java.io.IOException: bad blocks"


def test_of_a_worker_in_python_its_exception_is_told() -> None:
    told = "loadmanager.core.errors.InvalidName: bundle 'x'; expected "
    assert plain_cause(PYTHON) == told + "tenant/ns/0xLLLLLLLL_0xUUUUUUUU"


def test_anything_else_is_told_by_its_first_line_and_never_at_length() -> None:
    assert plain_cause("\n  [TABLE_OR_VIEW_NOT_FOUND] rounds\n== SQL ==") == (
        "[TABLE_OR_VIEW_NOT_FOUND] rounds"
    )
    assert len(plain_cause("x" * 9999)) < 500
    assert plain_cause("") == "it failed without a word"

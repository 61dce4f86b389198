"""What starts before a job, and what is told while it runs and when it fails."""

import importlib.util
import io
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from loadmanager.pipeline import progress
from loadmanager.pipeline.failures import PipelineError, plain_cause
from loadmanager.pipeline.progress import progress_on, status_of
from loadmanager.pipeline.running import job_lock, spark_errors_named
from loadmanager.pipeline.session import (
    SessionSettings,
    SparkUnavailable,
    addresses,
    check_memory,
    conf_of,
    is_standalone,
    java_home,
    own_address,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPENED = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
REFUSES_VECTOR = 'case "$*" in *incubator*) exit 1;; esac\n'

WARNS_OF_OPENED = (
    'case "$*" in *sun.security.action*) echo "WARNING: package x not in java.base" >&2;; esac\n'
)


def java_saying(folder: Path, version: str, refusal: str = "") -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\n{refusal}echo \'openjdk version "{version}"\' >&2\necho "$*"\n')
    java.chmod(0o755)
    return folder


def test_a_whole_java_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = java_saying(tmp_path / "jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home(tmp_path / "shim") == home
    assert not (tmp_path / "shim").exists()


@pytest.mark.parametrize(
    ("refusal", "passed"),
    [
        (REFUSES_VECTOR, f"{OPENED} -Xmx1g -cp a b:c Main"),
        (WARNS_OF_OPENED, "--add-modules=jdk.incubator.vector -Xmx1g -cp a b:c Main"),
        (REFUSES_VECTOR + WARNS_OF_OPENED, "-Xmx1g -cp a b:c Main"),
    ],
)
def test_a_java_that_lacks_something_gets_a_shim_that_leaves_it_out(
    refusal: str, passed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_saying(tmp_path / "jre", "25", refusal)))
    home = java_home(tmp_path / "shim")
    given = [OPENED, "--add-modules=jdk.incubator.vector", "-Xmx1g", "-cp", "a b:c", "Main"]
    done = subprocess.run(
        [home / "bin" / "java", *given], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == passed
    assert "WARNING" not in done.stderr


def test_an_old_java_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_saying(tmp_path / "old", "11.0.22")))
    new = java_saying(tmp_path / "new", "21.0.2")
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/usr/bin:/bin")
    assert java_home(tmp_path / "shim") == new


def test_if_all_are_old_each_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_saying(tmp_path / "home", "1.8.0_402")))
    on_path = java_saying(tmp_path / "path", "11.0.22")
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    told = r"home/bin/java: is Java 8, Spark needs 17; PATH: .*is Java 11, .*; install Java 17"
    with pytest.raises(SparkUnavailable, match=told):
        java_home(tmp_path / "shim")


@pytest.mark.parametrize(("wanted", "free_mib"), [("2g", 2400), ("900m", 1100), ("64g", None)])
def test_memory_that_is_there_or_not_known_is_accepted(wanted: str, free_mib: int | None) -> None:
    check_memory(wanted, None if free_mib is None else free_mib * 2.0**20)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("4g", r"4g needs 4710 MiB .* 2000 MiB are free"),
        *((size, "expected a size such as 2g or 900m") for size in ("", "2", "much", "-1g")),
    ],
)
def test_memory_that_is_not_there_or_no_size_is_told(wanted: str, told: str) -> None:
    with pytest.raises(SparkUnavailable, match=told):
        check_memory(wanted, 2000 * 2.0**20)


def closed_port() -> int:
    """Return a port that nobody listens on: it was free a moment ago."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def test_only_addresses_of_standalone_masters_are_taken_for_such() -> None:
    others = ("local[*]", "yarn", "k8s://https://spark.example.org:6443")
    assert [is_standalone(one) for one in ("spark://a:7077", *others)] == [True, *[False] * 3]


def test_several_masters_are_told_apart() -> None:
    found = addresses("spark://spark-1:7077,[fe80::1]:7078")
    assert found == [("spark-1", 7077), ("fe80::1", 7078)]


@pytest.mark.parametrize("master", ["spark://", "spark://a", "spark://a:7077,b", "spark://a:x"])
def test_an_address_of_another_form_is_refused(master: str) -> None:
    with pytest.raises(SparkUnavailable, match=r"expected spark://HOST:PORT\[,HOST:PORT"):
        addresses(master)


def test_the_own_address_is_that_on_the_way_to_a_master_that_answers() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        assert own_address(f"spark://127.0.0.1:{closed_port()},127.0.0.1:{port}") == "127.0.0.1"


def test_masters_that_do_not_answer_are_told_with_why() -> None:
    master = f"spark://127.0.0.1:{closed_port()}"
    told = rf"no Spark master answers at {master} \(.*Connection refused\); expected one that runs"
    with pytest.raises(SparkUnavailable, match=told):
        own_address(master)


HOLDER = """
import sys
from loadmanager.pipeline.running import job_lock
with job_lock(sys.argv[1], "rollup"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_held_by_one_process_until_it_is_killed(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    command = [sys.executable, "-c", HOLDER, out]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(PipelineError, match="out: another rollup is writing to it"),
            job_lock(out, "rollup"),
        ):
            pass
        with job_lock(out, "moves"):
            assert not (tmp_path / "out" / ".ingest.lock").exists()
        holder.kill()
    with job_lock(out, "rollup"):
        assert (tmp_path / "out").is_dir()


def test_a_path_and_its_url_are_one_folder_and_elsewhere_nothing_is_held(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/a%20b"
    with job_lock(url, "x"), pytest.raises(PipelineError), job_lock(str(tmp_path / "a b"), "x"):
        pass
    with job_lock("s3a://bucket/tables", "x"), job_lock("s3a://bucket/tables", "x"):
        pass
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "out")
    with pytest.raises(PipelineError, match="expected a writable directory"), job_lock(out, "x"):
        pass


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
def test_what_spark_throws_names_the_job_and_a_jobs_is_left(error: Exception, told: str) -> None:
    with pytest.raises(PipelineError) as raised, spark_errors_named("rollup"):
        raise error
    assert str(raised.value).startswith(told)
    assert error in {raised.value, raised.value.__cause__}


def stage(tasks: int, running: int, done: int, failed: int = 0) -> Any:
    return SimpleNamespace(
        numTasks=tasks, numActiveTasks=running, numCompletedTasks=done, numFailedTasks=failed
    )


@dataclass
class Stages:
    """Tells the same stages each time it is asked, as Spark's tracker would."""

    stages: dict[int, Any]
    asked: threading.Event = field(default_factory=threading.Event)

    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - Spark's name
        return list(self.stages)

    def getStageInfo(self, stageId: int) -> Any:  # noqa: N802, N803 - Spark's names
        self.asked.set()
        return self.stages[stageId]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def session(stages: Stages) -> "SparkSession":
    context = SimpleNamespace(statusTracker=lambda: stages)
    return cast("SparkSession", SimpleNamespace(sparkContext=context))


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        (
            {9: stage(200, 2, 50, 1), 8: stage(8, 1, 7), 10: None},
            "2 stages from 8 on: 57 of 208 tasks, 3 running, 1 failed and tried again",
        ),
        ({7: stage(4, 1, 3)}, "stage 7: 3 of 4 tasks, 1 running"),
        ({}, "between two stages"),
    ],
)
def test_stages_that_run_at_once_are_told_together(stages: dict[int, Any], told: str) -> None:
    assert str(status_of(Stages(stages))) == told


def test_without_a_terminal_lines_come_while_the_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.01)
    stages, stream = Stages({7: stage(4, 1, 3)}), io.StringIO()
    with progress_on(stream)(session(stages), "rollup"):
        assert stages.asked.wait(30)
    said = stream.getvalue()
    assert said.startswith("rollup: stage 7: 3 of 4 tasks, 1 running\n")
    assert not [one for one in threading.enumerate() if one.name == "progress"]
    assert stream.getvalue() == said


class Gone(Stages):
    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - Spark's name
        self.asked.set()
        raise Py4JNetworkError("Answer from Java side is empty")


def test_without_java_progress_leaves_it_to_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.01)
    stages, stream, uncaught = Gone({}), io.StringIO(), list[threading.ExceptHookArgs]()
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    with progress_on(stream)(session(stages), "rollup"):
        assert stages.asked.wait(30)
    assert stream.getvalue() == ""
    assert uncaught == []


def test_a_terminal_shows_a_bar_and_is_clean_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "BAR_EVERY_S", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    stages, stream = Stages({7: stage(4, 1, 3)}), Terminal()
    with progress_on(stream)(session(stages), "rollup"):
        assert stages.asked.wait(30)
    assert "rollup" in stream.getvalue()
    # The cursor goes back up, and the line is erased.
    assert stream.getvalue().rstrip().endswith("\x1b[2K")


OPTIONS = "spark.driver.extraJavaOptions"
QUICK = "-XX:+UseParallelGC"


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as clean:
        for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"):
            clean.delenv(name, raising=False)
        yield


def options(master: str = "local[2]", **more: str) -> list[str]:
    named = {f"spark.driver.{name}": value for name, value in more.items()}
    return conf_of(SessionSettings(master=master, more=named))[OPTIONS].split()


def test_a_local_java_collects_garbage_in_the_way_that_takes_least_time() -> None:
    assert QUICK in options()
    assert options(extraJavaOptions="-Da=b")[1:] == [QUICK, "-Da=b"]
    assert QUICK not in options(master="spark://host:7077"), "executors do the work there"


@pytest.mark.parametrize("other", ["-XX:+UseSerialGC", "-XX:+UseG1GC", "-XX:+UseZGC"])
def test_a_collector_that_is_asked_for_is_used(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert options(extraJavaOptions=f"-Da=b {other}")[1:] == ["-Da=b", other]
    assert QUICK not in options(defaultJavaOptions=other)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", other)
    assert QUICK not in options()


def test_a_setting_of_sparks_own_wins_over_ours() -> None:
    name = "spark.sql.maxConcurrentOutputFileWriters"
    assert conf_of(SessionSettings())[name] == "32"
    assert conf_of(SessionSettings(more={name: "0"}))[name] == "0"

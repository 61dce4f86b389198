"""What Spark is told before it starts: ours, unless others ask for something else."""

from collections.abc import Iterator

import pytest

from loadmanager.pipeline.session import SessionSettings, conf_of

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

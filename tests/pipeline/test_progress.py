import io
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from py4j.protocol import Py4JNetworkError

from loadmanager.pipeline import progress
from loadmanager.pipeline.progress import progress_on, status_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def test_where_there_is_no_terminal_lines_come_while_the_job_runs_and_none_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_when_java_is_gone_progress_leaves_it_to_the_job_to_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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

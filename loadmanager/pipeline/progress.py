"""The progress of Spark's stages: a bar on a terminal, plain lines elsewhere.

Both are written to standard error; the results of jobs are written to standard output.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAR_EVERY_S: Final = 0.5
LINE_EVERY_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class StageStatus:
    """The numbers of the running stages, and the counts of their tasks together."""

    stages: tuple[int, ...] = ()
    tasks: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0

    def __str__(self) -> str:
        if not self.stages:
            return "between two stages"
        which = f"stage {self.stages[0]}"
        if len(self.stages) > 1:
            which = f"{len(self.stages)} stages from {self.stages[0]} on"
        failed = f", {self.failed} failed and tried again" if self.failed else ""
        return f"{which}: {self.done} of {self.tasks} tasks, {self.running} running{failed}"


Progress = Callable[["SparkSession", str], AbstractContextManager[None]]
"""Shows the stages of a session under the name of a job while the context is open."""


def status_of(tracker: Any) -> StageStatus:
    """Return what Spark's ``StatusTracker`` says of its stages; it drops old ones."""
    numbers = sorted(tracker.getActiveStageIds())
    found = {number: tracker.getStageInfo(number) for number in numbers}
    known = {number: info for number, info in found.items() if info is not None}
    infos = known.values()
    return StageStatus(
        stages=tuple(known),
        tasks=sum(info.numTasks for info in infos),
        running=sum(info.numActiveTasks for info in infos),
        done=sum(info.numCompletedTasks for info in infos),
        failed=sum(info.numFailedTasks for info in infos),
    )


def no_progress(_spark: "SparkSession", _job: str) -> AbstractContextManager[None]:
    return nullcontext()


def progress_on(stream: TextIO) -> Progress:
    show = _bar if stream.isatty() else _lines

    @contextmanager
    def shown(spark: "SparkSession", job: str) -> Iterator[None]:
        tracker = spark.sparkContext.statusTracker()
        with show(job, stream) as (every_s, show_now), _watching(tracker, every_s, show_now):
            yield

    return shown


@contextmanager
def _watching(
    tracker: Any, every_s: float, show_now: Callable[[StageStatus], None]
) -> Iterator[None]:
    over = threading.Event()

    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with PySpark, which is optional

    def watch() -> None:
        # If the JVM has ended, the job itself reports it.
        with suppress(Py4JError, OSError):
            while not over.wait(every_s):
                show_now(status_of(tracker))

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _lines(job: str, stream: TextIO) -> Iterator[tuple[float, Callable[[StageStatus], None]]]:
    def show_now(status: StageStatus) -> None:
        print(f"{job}: {status}", file=stream, flush=True)

    yield LINE_EVERY_S, show_now


@contextmanager
def _bar(job: str, stream: TextIO) -> Iterator[tuple[float, Callable[[StageStatus], None]]]:
    # Rich is slow to import and only needed on terminals.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
    bars = Bars(
        *columns,
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
        refresh_per_second=4,
        # Text printed meanwhile appears above the bar, but is never redirected to another stream.
        redirect_stdout=sys.stdout.isatty(),
    )
    with bars:
        row = bars.add_task(job, total=None, status="starting")

        def show_now(status: StageStatus) -> None:
            bars.update(row, total=status.tasks or None, completed=status.done, status=str(status))

        yield BAR_EVERY_S, show_now

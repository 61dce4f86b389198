"""Jobs one after the other in one Spark session, each once at a time in a folder."""

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from loadmanager.pipeline.failures import PipelineError, plain_cause
from loadmanager.pipeline.progress import Progress, no_progress
from loadmanager.pipeline.session import SessionSettings, spark_session

if TYPE_CHECKING:
    from loadmanager.pipeline.jobs import Work

LOCK: Final = ".{job}.lock"
"""Spark passes over names that begin with a dot."""


@contextmanager
def job_lock(out: str, job: str) -> Iterator[None]:
    """Hold ``out`` for one ``job``, run by this process, as long as it lives.

    Object stores have no locks: at a URL that is not of this host no other job is kept out, and
    the scheduler that runs the job has to ensure it.

    Raises:
        PipelineError: another process holds it, or it is not writable.
    """
    folder = _local(out)
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK.format(job=job), os.O_CREAT | os.O_RDWR, 0o666)
    except OSError as error:
        raise PipelineError(f"{out}: {error.strerror}; expected a writable directory") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        text = f"{out}: another {job} is writing to it"
        raise PipelineError(f"{text}; expected one at a time") from None
    try:
        yield
    finally:
        os.close(lock)


def _local(out: str) -> Path | None:
    parts = urlsplit(out)
    if not parts.scheme:
        return Path(out)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be done: jobs of `JOBS` in their order, on which history, to where."""

    jobs: Sequence[str]
    out: str
    history: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def run_jobs(
    request: Request,
    settings: SessionSettings,
    print_line: Callable[[str], None],
    progress: Progress = no_progress,
) -> None:
    """Run every job, and print its lines under its name.

    Jobs that were done stay done if a later one fails.

    Raises:
        SparkUnavailable: Spark cannot run here or there.
        PipelineError: a job cannot go on.
    """
    with spark_session(settings, " ".join(request.jobs)) as spark:
        # These need PySpark, without which a session says what to install.
        from loadmanager.pipeline.jobs import Work  # noqa: PLC0415
        from loadmanager.pipeline.store import Store  # noqa: PLC0415

        work = Work(
            spark=spark,
            store=Store(spark, request.out),
            history=request.history,
            since=request.since,
            until=request.until,
            options=request.options,
            print_line=lambda line: print_line(f"  {line}"),
        )
        for name in request.jobs:
            print_line(name)
            started_s = time.monotonic()
            with spark_errors_named(name), progress(spark, name):
                lines = run_job(name, work)
            _print_all(lines, print_line)
            print_line(f"  done in {time.monotonic() - started_s:.1f} s")


def run_job(name: str, work: "Work") -> list[str]:
    """Run one job, if no other process is at it in the same place; return what it says.

    Raises:
        PipelineError: another process runs it there, or it cannot go on.
    """
    from loadmanager.pipeline.jobs import job  # noqa: PLC0415 - the same

    with job_lock(work.store.out, name):
        return job(name)(work)


def _print_all(lines: Iterable[str], print_line: Callable[[str], None]) -> None:
    for line in lines:
        print_line(f"  {line}")


@contextmanager
def spark_errors_named(job: str) -> Iterator[None]:
    """Make of what Spark throws in ``job`` an error of one line."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with PySpark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the same

    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        raise PipelineError(f"job {job}: {plain_cause(str(error))}") from error
